"""Problems that the engines with managed clusters have in common."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from stacks.config import DeploymentConfig
from stacks.errors import Problem


def shared_folder(config: DeploymentConfig, mount: str | None) -> Iterator[Problem]:
    """Yield a problem if `slurm.directory` is not on the shared file system, which is mounted at `mount`."""
    if mount is None:
        rule = f"is missing: engine {config.engine} needs a file system that all nodes share"
        yield Problem("storage.lustre", None, rule, "add storage.lustre: {zone: a}")
        return
    folder = None if config.slurm is None else config.slurm.directory
    if folder is not None and PurePosixPath(mount) not in PurePosixPath(folder).parents:
        rule = f"must be below storage.lustre.mount, {mount}, which all nodes share"
        yield Problem("slurm.directory", folder, rule, f"set {mount.rstrip('/')}/{config.name}")


def unsupported_storage(config: DeploymentConfig) -> Iterator[Problem]:
    """Yield a problem for each section that a managed cluster does not support."""
    rule = f"is supported only by the nodes of a fleet, not with engine: {config.engine}"
    for key in ("dataset_volume", "checkpoint_volume", "shared_volume"):
        if getattr(config.storage, key) is not None:
            yield Problem(f"storage.{key}", "set", rule, "remove it, and use storage.lustre")
    for key in ("pipeline", "github"):
        if getattr(config.delivery, key) is not None:
            yield Problem(f"delivery.{key}", "set", rule, "remove it, and run `trainstack up`")
