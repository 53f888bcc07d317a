"""`bundle`: lock and build the wheels that a deployment's nodes install."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from stacks.config import read
from stacks.errors import ConfigError
from stacks.wheelhouse import DIRECTORY, LOCK_NAME

if TYPE_CHECKING:
    from stacks.wheelhouse.dependencies import Dependencies

NO_WHEELS = (
    "`--explain` says what asks for each distribution. One without a wheel for Linux on x86_64 and the Pythons of "
    "node.python.versions cannot be shipped: take another version, list training.dependencies, or let node.ami have it"
)


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "bundle",
        help="lock and build the wheels that nodes install; from then on synthesis ships them",
        description="Resolves what the trainer and your own code need on a node besides the image's packages, writes "
        "their versions and hashes to wheelhouse.lock.json beside the file (commit it), and builds the archive in "
        "build/wheelhouse/. What is locked stays, unless its inputs changed, or with --upgrade; then only what is not "
        "built is built. Needs the package index for what it has not downloaded before.",
    )
    parser.add_argument("config", type=Path, help="deployment file, such as config/single-gpu.yaml")
    parser.add_argument("--explain", action="store_true", help="print what your code needs and why; lock nothing")
    parser.add_argument(
        "--locked",
        action="store_true",
        help="build what is locked of the file, and of the stages of its pipeline, if it is not there; lock nothing",
    )
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions, not those that are locked")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Lock and build; return 0, or 1 when pip or the index does not deliver."""
    # What asks pip and reads code is loaded here, not with every command.
    from stacks.wheelhouse.dependencies import dependencies_of
    from stacks.wheelhouse.lock import lock_path
    from stacks.wheelhouse.making import make
    from stacks.wheelhouse.resolving import WheelhouseError

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
        print(f"{options.config}: node.python.wheelhouse is {config.node.python.wheelhouse}: nothing to lock")
        return 0
    try:
        made = make(config, options.config, dependencies, DIRECTORY, _tell, upgrade=options.upgrade)
    except WheelhouseError as error:
        print(f"{options.config}: {error}", file=sys.stderr)
        print(NO_WHEELS, file=sys.stderr)
        return 1
    size_bytes, wheels = made.archive.path.stat().st_size, made.locked.all_wheels()
    count = len({wheel.sha256 for of_one in wheels.values() for wheel in of_one.values()})
    if options.json:
        answer = {"path": str(made.archive.path), "sha256": made.archive.sha256, "bytes": size_bytes, "wheels": count}
        print(
            json.dumps(
                {**answer, "lock": str(lock_path(options.config)), "lock_changed": made.is_locked_anew}, indent=2
            )
        )
        return 0
    print(f"{made.archive.path}: {count} wheels, {size_bytes / 2**20:.1f} MiB")
    path = lock_path(options.config)
    print(f"{path}: written; commit it" if made.is_locked_anew else f"{path}: as it was")
    if made.is_another:
        print("the next deploy replaces nodes")
    return 0


def _build_locked(path: Path) -> int:
    """Build the archives that synthesis of a file will ask for; says nothing when nothing is locked."""
    pipeline = read(path).delivery.pipeline
    locks = [
        one for one in (path, *map(Path, pipeline.stages if pipeline else ())) if one.with_name(LOCK_NAME).exists()
    ]
    if not locks:
        return 0
    from stacks.wheelhouse.making import build_locked
    from stacks.wheelhouse.resolving import WheelhouseError

    for one in locks:
        try:
            archive = build_locked(one, DIRECTORY, _tell)
        except WheelhouseError as error:
            print(f"{one}: {error}", file=sys.stderr)
            return 1
        if archive is not None:
            print(f"{archive.path}: built, as locked for {one}")
    return 0


def _tell(text: str) -> None:
    print(text, file=sys.stderr)


def _explain(dependencies: Dependencies, *, as_json: bool) -> None:
    if as_json:
        keys = ("source", "distribution", "why")
        print(json.dumps([dict(zip(keys, one, strict=True)) for one in dependencies.explanation], indent=2))
        return
    if not dependencies.explanation:
        print("your code needs nothing besides what the image and the trainer bring")
    for source, distribution, why in dependencies.explanation:
        print(f"{source} -> {distribution}: {why}")
