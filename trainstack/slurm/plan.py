"""The plan for a file whose run consists of Slurm jobs: runs, their job documents, and paths in the shared folder."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from bootstrap.slurm.records import JobDocument
from stacks.artifacts.bundles import BundleFile, job_bundle
from stacks.capacity.plan import fabric, gpus, processes_per_node
from stacks.config import DeploymentConfig
from stacks.config.run import training_document
from stacks.config.slurm import SlurmConfig
from stacks.config.sweep import members


@dataclass(frozen=True)
class Member:
    """A run: one combination of a sweep, or the only run of a file without a sweep.

    Attributes:
        run: Name of the run.
        values: The combination; empty without a sweep.
        config_text: The trainer's configuration as JSON.
        steps: Optimizer steps of the run.
    """

    run: str
    values: Mapping[str, Any]
    document: JobDocument
    config_text: str
    steps: int


@dataclass(frozen=True)
class Plan:
    """A deployment file's jobs.

    Attributes:
        code_digest: SHA-256 of the code bundle, which names the code's folder.
    """

    config: DeploymentConfig
    slurm: SlurmConfig
    code_digest: str
    members: tuple[Member, ...]

    @property
    def job_name(self) -> str:
        """Name of the jobs."""
        return f"trainstack-{self.config.name}"

    @property
    def code(self) -> PurePosixPath:
        """Folder with the code of the trainer, the node program and the user."""
        return PurePosixPath(self.slurm.directory) / "code" / self.code_digest

    @property
    def folder(self) -> PurePosixPath:
        """Folder with the job script and the logs."""
        return PurePosixPath(self.slurm.directory) / "runs" / self.config.training.run

    @property
    def script(self) -> PurePosixPath:
        """Path of the job script."""
        return self.folder / "job.sh"

    @property
    def is_sweep(self) -> bool:
        """Whether the file describes a sweep."""
        return bool(self.slurm.sweep)

    @property
    def gres(self) -> str | None:
        """The job's `--gres`, or None without GPUs."""
        count = gpus(self.config)
        return self.slurm.gres or (f"gpu:{count}" if count else None)


def plan_of(config: DeploymentConfig) -> Plan:
    """Return the plan of a valid deployment whose run consists of Slurm jobs.

    Raises:
        BundleError: The user code cannot be bundled.
    """
    slurm = config.slurm
    assert slurm is not None, "stacks.validators.slurm.has_section"
    with tempfile.TemporaryDirectory() as folder:
        digest = bundle(config, Path(folder)).sha256
    combinations = members(config.training.config, slurm.sweep) if slurm.sweep else [({}, config.training.config)]
    found = []
    for index, (values, training) in enumerate(combinations):
        document = _document(config, slurm, index if slurm.sweep else None)
        text = json.dumps(training_document(training), indent=2, sort_keys=True) + "\n"
        found.append(Member(document.run, values, document, text, training.steps))
    return Plan(config, slurm, digest, tuple(found))


def bundle(config: DeploymentConfig, folder: Path) -> BundleFile:
    """Write the code bundle to a folder. Raises BundleError."""
    code = config.training.code
    return job_bundle(folder, None if code is None else Path(code))


def _document(config: DeploymentConfig, slurm: SlurmConfig, index: int | None) -> JobDocument:
    run = config.training.run if index is None else f"{config.training.run}-{index}"
    base = PurePosixPath(slurm.directory)
    datasets = slurm.datasets or str(base / "datasets")
    store = slurm.checkpoints or str(base / "checkpoints")
    return JobDocument(
        name=config.name,
        run=run,
        folder=str(base / "runs" / run),
        script=str(base / "runs" / config.training.run / "job.sh"),
        array_index=index,
        nodes=config.capacity.nodes,
        min_nodes=config.capacity.min_nodes or config.capacity.nodes,
        processes_per_node=processes_per_node(config),
        gpus=gpus(config),
        interpreter=config.node.python.interpreter,
        dataset=f"{datasets.rstrip('/')}/{config.training.dataset}",
        checkpoints=",".join(f"{part.rstrip('/')}/{run}" for part in store.split(",")),
        fabric=fabric(config),
        launch=slurm.launch,
        continue_by=slurm.continue_by,
        max_failures=slurm.max_failures,
        signal_seconds=slurm.signal_seconds,
        watch_spot_notices=slurm.watch_spot_notices,
        health_check=slurm.health_check,
        region=config.region,
        partition=slurm.partition or "",
        instance_type=next(iter(config.capacity.instance_types), ""),
    )
