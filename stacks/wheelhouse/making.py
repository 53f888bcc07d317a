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
    """A wheelhouse: its archive, its lock, and whether the lock is another than before."""

    archive: BundleFile
    locked: Locked
    is_new: bool


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
        archive = build(known.all_wheels(), list(known.image), directory, progress)
        if archive.sha256 != known.sha256:
            raise WheelhouseError(
                f"the locked wheels make an archive of SHA-256 {archive.sha256}, the lock says {known.sha256}; it was "
                "edited, or comes from another version of this program: lock anew with --upgrade"
            )
        return Made(archive, known, is_new=False)
    locked = Locked(inputs, "", tuple(dependencies.image), _resolve(config, dependencies, progress))
    archive = build(locked.all_wheels(), list(locked.image), directory, progress)
    locked = replace(locked, sha256=archive.sha256)
    if locked != known:
        write_lock(config_path, locked)
    return Made(archive, locked, is_new=locked != known)


def _resolve(config: DeploymentConfig, dependencies: Dependencies, progress: Callable[[str], None]) -> Wheels:
    every = node_wheels()
    image = IMAGE_TORCH.search(config.node.ami)
    found: Wheels = {}
    for python in config.node.python.versions:
        found[python] = {}
        if dependencies.requirements:
            progress(f"Python {python}: {', '.join(dependencies.requirements)} are resolved")
            constraints = [f"{name}=={wheel.version}" for name, wheel in every[python].items()]
            constraints += [f"torch=={image.group(1)}.*"] if image else []
            resolved = resolve([*dependencies.requirements, *dependencies.image], python, constraints)
            found[python] = {name: wheel for name, wheel in resolved.items() if name not in every[python]}
    return found
