"""`bundle`: lock and build the wheels that a deployment's nodes install."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from stacks.artifacts.wheelhouse import DIRECTORY, LOCK_NAME
from stacks.errors import ConfigError
from stacks.loading import read

if TYPE_CHECKING:
    from stacks.artifacts.wheelhouse.dependencies import Dependencies

NO_WHEELS = (
    "`--explain` prints the origin of each distribution. Nodes need a wheel for Linux on x86_64 for each version in "
    "node.python.versions: use another version, list training.dependencies, or add the distribution to node.ami"
)


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "bundle",
        help="lock and build the wheels that nodes install; synthesis then publishes them",
        description="Resolves the distributions that the trainer and user code need on a node but the image does not "
        "contain. Writes their versions and hashes to wheelhouse.lock.json next to the file (commit it), and builds "
        "the archive in build/wheelhouse/. Locked versions are kept until their inputs change or --upgrade is given. "
        "Needs access to the package index to resolve wheels, and to download them for the first time.",
    )
    parser.add_argument("config", type=Path, help="deployment file, such as config/single-gpu.yaml")
    parser.add_argument("--explain", action="store_true", help="print each of your code's dependencies and its origin")
    parser.add_argument(
        "--locked",
        action="store_true",
        help="if necessary, build the locked wheels for the file and its pipeline's stages, without changing the lock",
    )
    parser.add_argument("--upgrade", action="store_true", help="lock the newest versions")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Lock and build the wheels. Return 0, or 1 if pip fails or the package index is not reachable."""
    # Imported here so that the other commands start faster.
    from stacks.artifacts.wheelhouse.dependencies import dependencies_of
    from stacks.artifacts.wheelhouse.lock import lock_path
    from stacks.artifacts.wheelhouse.making import make
    from stacks.artifacts.wheelhouse.resolving import WheelhouseError

    if options.locked:
        return _build_locked(options.config)
    config = read(options.config)
    dependencies = dependencies_of(config)
    if options.explain:
        _explain(dependencies, as_json=options.json)
    if dependencies.problems:
        raise ConfigError(str(options.config), dependencies.problems)
    if options.explain:
        return 0
    if config.node.python.wheelhouse != "auto":
        print(f"{options.config}: nothing to lock, because node.python.wheelhouse is {config.node.python.wheelhouse}")
        return 0
    try:
        made = make(config, options.config, dependencies, DIRECTORY, _log, upgrade=options.upgrade)
    except WheelhouseError as error:
        print(f"{options.config}: {error}", file=sys.stderr)
        print(NO_WHEELS, file=sys.stderr)
        return 1
    size_bytes, wheels = made.archive.path.stat().st_size, made.locked.all_wheels()
    count = len({wheel.sha256 for of_one in wheels.values() for wheel in of_one.values()})
    if options.json:
        answer = {"path": str(made.archive.path), "sha256": made.archive.sha256, "bytes": size_bytes, "wheels": count}
        print(
            json.dumps({**answer, "lock": str(lock_path(options.config)), "lock_changed": made.lock_changed}, indent=2)
        )
        return 0
    print(f"{made.archive.path}: {count} wheels, {size_bytes / 2**20:.1f} MiB")
    path = lock_path(options.config)
    print(f"{path}: written; commit it" if made.lock_changed else f"{path}: unchanged")
    if made.archive_changed:
        print("the next deploy replaces nodes")
    return 0


def _build_locked(path: Path) -> int:
    """Build the archives that synthesizing a file requires. Do nothing if there is no lock."""
    pipeline = read(path).delivery.pipeline
    locks = [
        one for one in (path, *map(Path, pipeline.stages if pipeline else ())) if one.with_name(LOCK_NAME).exists()
    ]
    if not locks:
        return 0
    from stacks.artifacts.wheelhouse.making import build_locked
    from stacks.artifacts.wheelhouse.resolving import WheelhouseError

    for one in locks:
        try:
            archive = build_locked(one, DIRECTORY, _log)
        except WheelhouseError as error:
            print(f"{one}: {error}", file=sys.stderr)
            return 1
        if archive is not None:
            print(f"{archive.path}: built from the lock for {one}")
    return 0


def _log(text: str) -> None:
    print(text, file=sys.stderr)


def _explain(dependencies: Dependencies, *, as_json: bool) -> None:
    if as_json:
        keys = ("source", "distribution", "why")
        print(json.dumps([dict(zip(keys, one, strict=True)) for one in dependencies.explanation], indent=2))
        return
    if not dependencies.explanation and not dependencies.problems:
        print("your code needs only distributions that the image and the trainer provide")
    for source, distribution, why in dependencies.explanation:
        print(f"{source} -> {distribution}: {why}")
