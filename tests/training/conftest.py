"""Fixtures: a tiny dataset, an S3 server, and gangs of real trainer processes."""

from __future__ import annotations

import json
import multiprocessing
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.training.rank_process import PRELOADED, run_rank
from training.checkpoint.storage.urls import open_backend
from training.checkpoint.store import checkpoint_entries

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess

    from training.process.distributed import Gang

WORDS = "loss of node is no work when every step saved and read again in the same order".split()  # noqa: SIM905

TINY = {
    "steps": 60,
    "global_batch_size": 8,
    "micro_batch_size": 2,
    "model": {
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "hidden_size": 32,
        "sequence_length": 32,
        "dropout": 0.1,
    },
    "checkpoint": {"interval_steps": 5},
    "validation": {"interval_steps": 20, "batches": 2},
    "threads": 1,
}


@pytest.fixture(autouse=True)
def _keep_denormal_numbers() -> Iterator[None]:
    """Undo a trainer's change to its process: `torch.set_flush_denormal(True)` makes small numbers zero."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)


@pytest.fixture
def alone() -> Iterator[Gang]:
    """A gang of one process: this one."""
    from training.process.distributed import (
        join_gang,
    )  # imports torch, which most tests import only in their subprocesses

    gang = join_gang()
    yield gang
    gang.leave()


def write_text(folder: Path, files: int = 30) -> None:
    """Write text with some structure to learn: sentences of a few words, different in every file."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        lines = [
            " ".join(WORDS[(number * 7 + line * 3 + word * word) % len(WORDS)] for word in range(12))
            for line in range(60)
        ]
        (folder / f"file-{number}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture(scope="session")
def tiny_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from training.__main__ import main

    root = tmp_path_factory.mktemp("dataset")
    write_text(root / "text")
    arguments = ["--input", str(root / "text"), "--output", str(root), "--name", "tiny", "--vocabulary-size", "300"]
    assert main(["tokenize", *arguments, "--workers", "1", "--validation-share", "0.2"]) == 0
    return root / "tiny"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Trained:
    """The run directory of a gang that is running or has ended."""

    directory: Path
    checkpoints: str
    processes: list[ForkServerProcess] = field(default_factory=list)
    _records: list[dict[str, Any]] = field(default_factory=list)
    _read_bytes: int = 0

    def records(self, kind: str) -> list[dict[str, Any]]:
        """Read what the run has appended since the last call: tests poll the records of runs that do not end."""
        path = self.directory / "metrics.jsonl"
        if path.exists():
            with path.open("rb") as file:
                file.seek(self._read_bytes)
                content = file.read()
            complete = content[: content.rfind(b"\n") + 1]
            self._records += map(json.loads, complete.splitlines())
            self._read_bytes += len(complete)
        return [record for record in self._records if record["record"] == kind]

    def losses(self) -> dict[int, float]:
        return {record["step"]: record["loss"] for record in self.records("step")}

    def outcomes(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted((self.directory / "outcomes").glob("rank-*.json"))]

    def wait_for(self, condition: Callable[[], object], seconds: float = 90.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"not reached in {seconds} s"
            assert any(process.is_alive() for process in self.processes), self.errors()
            time.sleep(0.005)

    def wait_for_step(self, step: int) -> None:
        self.wait_for(lambda: max(self.losses(), default=0) >= step)

    def committed_steps(self, seconds: float = 60.0) -> list[int]:
        """Wait for a checkpoint, and return all steps, newest first. Writer processes outlive their trainers."""
        deadline = time.monotonic() + seconds
        while not (steps := [entry.step for entry in checkpoint_entries(open_backend(self.checkpoints))]):
            assert time.monotonic() < deadline, self.errors()
            time.sleep(0.02)
        return steps

    def wait(self, seconds: float = 120.0) -> list[int | None]:
        deadline = time.monotonic() + seconds
        for process in self.processes:
            process.join(max(0.1, deadline - time.monotonic()))
        return [process.exitcode for process in self.processes]

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
        self.wait()

    def errors(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.directory.glob("stderr-*")))


class Gangs:
    """Starts gangs like torchrun: one process per rank, configured by environment variables."""

    def __init__(self, root: Path, dataset: Path) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)
        self._root = root
        self._dataset = dataset
        self._started: list[Trained] = []

    def start(
        self,
        name: str,
        config: dict[str, Any],
        world_size: int = 1,
        generation: int = 1,
        checkpoints: str | None = None,
        environment: dict[str, str] | None = None,
        dataset: Path | None = None,
        rank_environment: dict[int, dict[str, str]] | None = None,
        dataset_url: str | None = None,
    ) -> Trained:
        directory = self._root / name
        directory.mkdir(exist_ok=True)
        (directory / "config.json").write_text(json.dumps(config))
        run = Trained(directory, checkpoints or str(self._root / "checkpoints"))
        self._started.append(run)
        port = free_port()
        for rank in range(world_size):
            run.processes.append(
                self._start_rank(
                    run,
                    rank,
                    world_size,
                    port,
                    generation,
                    {**(environment or {}), **(rank_environment or {}).get(rank, {})},
                    dataset or self._dataset,
                    [] if dataset_url is None else ["--dataset-url", dataset_url],
                )
            )
        return run

    def _start_rank(
        self,
        run: Trained,
        rank: int,
        world_size: int,
        port: int,
        generation: int,
        extra: dict[str, str],
        dataset: Path,
        more: list[str],
    ) -> ForkServerProcess:
        environment = dict(extra)
        if world_size > 1:
            environment |= {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank)}
            environment |= {"LOCAL_WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        arguments = [
            *("train", "--config", str(run.directory / "config.json"), "--dataset", str(dataset)),
            *("--checkpoints", run.checkpoints, "--run-directory", str(run.directory)),
            *("--generation", str(generation)),
            *more,
        ]
        process = self._context.Process(
            target=run_rank, args=(arguments, environment, str(run.directory / f"stderr-{rank}"))
        )
        process.start()
        return process

    def finish(self, name: str, config: dict[str, Any], world_size: int = 1, **options: Any) -> Trained:
        run = self.start(name, config, world_size, **options)
        assert run.wait() == [0] * world_size, run.errors()
        return run

    def kill_all(self) -> None:
        for run in self._started:
            for process in run.processes:
                process.kill()
                process.join()


@pytest.fixture
def gangs(tmp_path: Path, tiny_dataset: Path) -> Iterator[Gangs]:
    gangs = Gangs(tmp_path, tiny_dataset)
    yield gangs
    gangs.kill_all()


@pytest.fixture(scope="session")
def tiny_config() -> dict[str, Any]:
    return json.loads(json.dumps(TINY))


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    from benchmarks.servers.local_moto import local_moto

    with local_moto() as endpoint:
        yield endpoint


@pytest.fixture
def s3_environment(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    environment = {
        "AWS_ENDPOINT_URL": s3_endpoint,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return environment


@pytest.fixture
def bucket(s3_environment: dict[str, str], request: pytest.FixtureRequest) -> str:
    import uuid

    import boto3

    name = f"checkpoints-{uuid.uuid4().hex[:12]}"
    boto3.client("s3").create_bucket(Bucket=name)
    return name
