"""Makes a deployment's wheelhouse: resolves what is not locked, builds what is not built, writes the lock."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from stacks.bundles import BundleFile
from stacks.config import DeploymentConfig
from stacks.wheelhouse.building import build
from stacks.wheelhouse.dependencies import Dependencies
from stacks.wheelhouse.lock import Locked, inputs_digest, read_lock, write_lock
from stacks.wheelhouse.resolving import WheelhouseError, resolve
from stacks.wheelhouse.wheels import Wheels, node_wheels

# The version of torch is part of the names of AWS's images.
# Source: https://docs.aws.amazon.com/dlami/latest/devguide/find-dlami-id.html (2026-11).
IMAGE_TORCH = re.compile(r"/deeplearning/.*-pytorch-(\d+\.\d+)-")


@dataclass(frozen=True)
class Made:
    """A wheelhouse: its archive, its lock, and whether lock and archive are others than before."""

    archive: BundleFile
    locked: Locked
    is_locked_anew: bool
    is_another: bool


def make(
    config: DeploymentConfig,
    config_path: Path,
    dependencies: Dependencies,
    directory: Path,
    progress: Callable[[str], None],
    *,
    upgrade: bool = False,
) -> Made:
    """Lock and build the wheelhouse of a deployment file.

    What is locked for the same inputs stays, unless `upgrade`: then the newest versions are taken.

    Raises:
        ConfigError: The lock beside the file is not one.
        WheelhouseError: There are no such wheels, or they cannot be fetched.
    """
    known = read_lock(config_path)
    inputs = inputs_digest(config, dependencies)
    if known is not None and known.inputs == inputs and not upgrade:
        return Made(_build(known, directory, progress), known, is_locked_anew=False, is_another=False)
    locked = Locked(inputs, "", tuple(dependencies.image), _resolve(config, dependencies, progress))
    archive = build(locked.all_wheels(), list(locked.image), directory, progress)
    locked = replace(locked, sha256=archive.sha256)
    if locked != known:
        write_lock(config_path, locked)
    is_another = known is None or known.sha256 != locked.sha256
    return Made(archive, locked, is_locked_anew=locked != known, is_another=is_another)


def build_locked(config_path: Path, directory: Path, progress: Callable[[str], None]) -> BundleFile | None:
    """Build what is locked of a deployment file, unless it is there; None: it is, or nothing is locked.

    Raises:
        ConfigError: The lock beside the file is not one.
        WheelhouseError: A wheel cannot be fetched, or the lock is not of these wheels.
    """
    locked = read_lock(config_path)
    if locked is None or (directory / f"{locked.sha256}.zip").is_file():
        return None
    return _build(locked, directory, progress)


def _build(locked: Locked, directory: Path, progress: Callable[[str], None]) -> BundleFile:
    archive = build(locked.all_wheels(), list(locked.image), directory, progress)
    if archive.sha256 != locked.sha256:
        raise WheelhouseError(
            f"the locked wheels make an archive of SHA-256 {archive.sha256}, the lock says {locked.sha256}: "
            "node.lock.json or the lock changed since; `python -m stacks bundle FILE` locks anew"
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
