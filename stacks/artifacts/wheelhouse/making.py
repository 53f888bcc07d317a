"""Creates a deployment's wheelhouse: resolves and builds the wheels, and writes the lock."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from stacks.artifacts.bundles import BundleFile
from stacks.artifacts.wheelhouse.building import build
from stacks.artifacts.wheelhouse.dependencies import Dependencies
from stacks.artifacts.wheelhouse.lock import Locked, inputs_digest, read_lock, write_lock
from stacks.artifacts.wheelhouse.resolving import WheelhouseError, resolve
from stacks.artifacts.wheelhouse.wheels import Wheels, node_wheels
from stacks.config import DeploymentConfig

# AWS includes the torch version in its image names.
# Source: https://docs.aws.amazon.com/dlami/latest/devguide/find-dlami-id.html (2026-11).
IMAGE_TORCH = re.compile(r"/deeplearning/.*-pytorch-(\d+\.\d+)-")


@dataclass(frozen=True)
class Made:
    """A wheelhouse's archive and lock, and whether each has changed."""

    archive: BundleFile
    locked: Locked
    lock_changed: bool
    archive_changed: bool


def make(
    config: DeploymentConfig,
    config_path: Path,
    dependencies: Dependencies,
    directory: Path,
    progress: Callable[[str], None],
    *,
    upgrade: bool = False,
) -> Made:
    """Lock and build the wheelhouse for a deployment file.

    A lock with the same inputs stays unchanged, unless `upgrade` requests the newest versions.

    Raises:
        ConfigError: The lock next to the file is not valid.
        WheelhouseError: No suitable wheels exist, or they cannot be downloaded.
    """
    known = read_lock(config_path)
    inputs = inputs_digest(config, dependencies)
    if known is not None and known.inputs == inputs and not upgrade:
        return Made(_build(known, directory, progress), known, lock_changed=False, archive_changed=False)
    locked = Locked(inputs, "", tuple(dependencies.image), _resolve(config, dependencies, progress))
    archive = build(locked.all_wheels(), list(locked.image), directory, progress)
    locked = replace(locked, sha256=archive.sha256)
    if locked != known:
        write_lock(config_path, locked)
    archive_changed = known is None or known.sha256 != locked.sha256
    return Made(archive, locked, lock_changed=locked != known, archive_changed=archive_changed)


def build_locked(config_path: Path, directory: Path, progress: Callable[[str], None]) -> BundleFile | None:
    """Build the locked wheelhouse for a deployment file. Return None if there is no lock or the archive already exists.

    Raises:
        ConfigError: The lock next to the file is not valid.
        WheelhouseError: A wheel cannot be downloaded, or does not match the lock.
    """
    locked = read_lock(config_path)
    if locked is None or (directory / f"{locked.sha256}.zip").is_file():
        return None
    return _build(locked, directory, progress)


def _build(locked: Locked, directory: Path, progress: Callable[[str], None]) -> BundleFile:
    archive = build(locked.all_wheels(), list(locked.image), directory, progress)
    if archive.sha256 != locked.sha256:
        raise WheelhouseError(
            f"the archive of the locked wheels has SHA-256 {archive.sha256}, expected {locked.sha256} from the lock: "
            "node.lock.json or the lock has changed; run `python -m stacks bundle FILE`"
        )
    return archive


def _resolve(config: DeploymentConfig, dependencies: Dependencies, progress: Callable[[str], None]) -> Wheels:
    every = node_wheels()
    image = IMAGE_TORCH.search(config.node.ami)
    found: Wheels = {}
    for python in config.node.python.versions:
        found[python] = {}
        if dependencies.requirements:
            progress(f"Python {python}: resolving {', '.join(dependencies.requirements)}")
            constraints = [f"{name}=={wheel.version}" for name, wheel in every[python].items()]
            constraints += [f"torch=={image.group(1)}.*"] if image else []
            resolved = resolve([*dependencies.requirements, *dependencies.image], python, constraints)
            found[python] = {name: wheel for name, wheel in resolved.items() if name not in every[python]}
    return found
