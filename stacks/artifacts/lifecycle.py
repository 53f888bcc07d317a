"""The folder with the life-cycle scripts of HyperPod's nodes, which `trainstack up` uploads to the control bucket."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bootstrap.slurm.hyperpod.settings import COMPUTE, Settings
from stacks.artifacts.bundles import BUNDLES, ROOT, node_bundle
from stacks.capacity.plan import fabric, gpus
from stacks.config import DeploymentConfig
from stacks.config.clusters.hyperpod import CONTROLLER, LOGIN

SCRIPT = ROOT / "bootstrap" / "slurm" / "hyperpod" / "node.sh"
PREFIX = "hyperpod/"
"""The folders in the control bucket, each named by its digest."""
REPORTS = "nodes/hyperpod"
"""The nodes' reports in the control bucket, which S3 deletes with those of other nodes."""


@dataclass(frozen=True)
class LifecycleFolder:
    """The files of a folder.

    Attributes:
        digest: SHA-256 of everything except the bucket's name, which names the folder. Another digest is another
            life-cycle configuration of the instance groups.
    """

    digest: str
    settings: Settings
    bundle: Path

    @property
    def prefix(self) -> str:
        """Key of the folder in the control bucket."""
        return f"{PREFIX}{self.digest}"

    def files(self, bucket: str) -> Mapping[str, bytes]:
        """Return the contents of the files by name. `bucket`: the control bucket."""
        settings = dataclasses.replace(self.settings, reports=f"s3://{bucket}/{REPORTS}")
        scripts = {script_name(group): SCRIPT.read_bytes() for group in (COMPUTE, CONTROLLER, LOGIN)}
        return {**scripts, "settings.json": settings.to_text().encode(), "node.zip": self.bundle.read_bytes()}


def script_name(group: str) -> str:
    """Return the name of an instance group's script."""
    return f"{group}.sh"


def lifecycle_folder(config: DeploymentConfig, folder: Path = BUNDLES) -> LifecycleFolder:
    """Return a deployment's folder, and write its bundle to `folder`."""
    bundle = node_bundle(folder)
    settings = Settings(
        deployment=config.name,
        region=config.region,
        reports="",
        gpus=gpus(config),
        adapters=1 if fabric(config) == "efa" else 0,  # HyperPod decides how many a node gets
        shared_folder=config.slurm.directory if config.runs_slurm_jobs and config.slurm is not None else "",
    )
    parts = [settings.to_text().encode(), bundle.sha256.encode(), SCRIPT.read_bytes()]
    return LifecycleFolder(hashlib.sha256(b"\0".join(parts)).hexdigest(), settings, bundle.path)
