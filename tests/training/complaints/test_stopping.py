"""Bug reports about stops that arrive too late, at the wrong process, or at one rank only."""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.chaos.faulty_s3 import FaultyS3, Misbehaviour
from benchmarks.servers.local_moto import endpoint_environment
from bootstrap.supervise.trainers.launch import launcher_command
from tests.training.conftest import free_port
from training.config.parallel import ParallelConfig
from training.loop.build import StopBeforeStepsError, _stop_if_requested
from training.process.batch import Batch
from training.process.distributed import Gang
from training.process.precision import Precision
from training.process.replication import PRIMING_PASSES, Replica

LONG = {"steps": 100000, "schedule": {"kind": "constant", "warmup_steps": 4}}


@pytest.fixture
def slow_s3(s3_endpoint: str) -> Iterator[FaultyS3]:
    proxy = FaultyS3(s3_endpoint, "seed")
    yield proxy
    proxy.close()


def test_completes_the_running_save_if_a_new_one_would_miss_the_deadline(
    gangs: Any, tiny_config: dict[str, Any], bucket: str, slow_s3: FaultyS3
) -> None:
    """The alternative to a new emergency save: https://github.com/pytorch/pytorch/issues/119856."""
    slow_s3.misbehaviour = Misbehaviour(delay_seconds=0.7)
    config = {**tiny_config, **LONG, "checkpoint": {"interval_steps": 20}}
    environment = endpoint_environment(slow_s3.endpoint)
    run = gangs.start("run", config, checkpoints=f"s3://{bucket}/x", environment=environment)
    run.wait_for(lambda: run.records("checkpoint"))
    slow_s3.misbehaviour = Misbehaviour(delay_seconds=60.0)  # uploads from now on hang until this is reset
    (first,) = run.records("checkpoint")[:1]
    at_commit, usual_seconds = max(run.losses()), first["seconds"]
    run.wait_for(lambda: max(run.losses()) >= at_commit + config["checkpoint"]["interval_steps"] + 2)
    begun = time.time()
    run.wait_for(lambda: time.time() >= begun + usual_seconds)
    # Too short for a new save, which may take 1.5 times as long; long enough for the rest of the running one.
    request = run.directory / "request"
    deadline = time.time() + 1.2 * usual_seconds
    request.write_text(json.dumps({"reason": "reclaimed", "deadline_unix_seconds": deadline}))
    request.rename(run.directory / "stop")
    run.wait_for(lambda: "last save: " in run.errors())
    slow_s3.misbehaviour = Misbehaviour()
    assert run.wait() == [75], run.errors()
    (outcome,) = run.outcomes()
    assert "saving it would miss the deadline" in outcome["message"], (outcome, run.records("checkpoint"))
    assert first["step"] < outcome["checkpoint_step"] < outcome["step"]


class Refusing(http.server.BaseHTTPRequestHandler):
    """A server that responds to every PUT with NoSuchBucket."""

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        content = b"<Error><Code>NoSuchBucket</Code><Message>The specified bucket does not exist</Message></Error>"
        self.send_response(404)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def refusing_s3() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


SAVES_AT_THE_STOP_ONLY = {**LONG, "checkpoint": {"interval_steps": 100000}, "validation": {"interval_steps": 100000}}


def test_storage_error_of_one_rank_in_the_last_save_fails_all(
    gangs: Any, tiny_config: dict[str, Any], bucket: str, s3_environment: dict[str, str], refusing_s3: str
) -> None:
    """The other ranks do not hang: https://github.com/marin-community/marin/issues/9213."""
    run = gangs.start(
        "run",
        {**tiny_config, **SAVES_AT_THE_STOP_ONLY},
        3,
        checkpoints=f"s3://{bucket}/x",
        environment=s3_environment,
        rank_environment={2: {"AWS_ENDPOINT_URL": refusing_s3}},
    )
    run.wait_for_step(2)
    (run.directory / "stop").touch()
    assert run.wait(90) == [1, 1, 1], run.errors()
    for outcome in run.outcomes():
        assert "rank 2" in outcome["message"] and "NoSuchBucket" in outcome["message"]


def test_hanging_storage_of_one_rank_delays_no_rank_past_the_deadline(
    gangs: Any, tiny_config: dict[str, Any], bucket: str, s3_environment: dict[str, str], slow_s3: FaultyS3
) -> None:
    """https://github.com/marin-community/marin/issues/9209."""
    run = gangs.start(
        "run",
        {**tiny_config, **SAVES_AT_THE_STOP_ONLY},
        2,
        checkpoints=f"s3://{bucket}/x",
        environment=s3_environment,
        rank_environment={1: {"AWS_ENDPOINT_URL": slow_s3.endpoint}},
    )
    run.wait_for_step(2)
    slow_s3.misbehaviour = Misbehaviour(delay_seconds=600.0)
    request = run.directory / "request"
    request.write_text(json.dumps({"reason": "reclaimed", "deadline_unix_seconds": time.time() + 2}))
    request.rename(run.directory / "stop")
    assert run.wait(90) == [75, 75], run.errors()
    slow_s3.misbehaviour = Misbehaviour()
    for outcome in run.outcomes():
        assert "missed the deadline" in outcome["message"] and outcome["checkpoint_step"] is None


def test_gangs_are_static() -> None:
    """There is no elastic rendezvous that could outlive its host: https://github.com/pytorch/pytorch/issues/147064."""
    launch = SimpleNamespace(
        interpreter="python",
        rank=1,
        record=SimpleNamespace(
            members=("a", "b"), master_address="10.0.0.1", master_port=29500, generation=3, survivors=0
        ),
        run=SimpleNamespace(processes_per_node=8, run="r", dataset="d", prepare=None),
        node=SimpleNamespace(deployment="f", dataset_bucket="d", checkpoint_bucket="b", volumes=()),
        layout=SimpleNamespace(dataset=lambda name: Path(name)),
        directory=Path("gen-3"),
    )
    command = launcher_command(launch)  # type: ignore[arg-type]
    assert {"--nnodes=2", "--node-rank=1"} <= set(command)
    assert not any("c10d" in argument or "--rdzv-endpoint" in argument for argument in command)


def test_stops_between_warm_up_passes(alone: Gang) -> None:
    """https://github.com/goodfire-ai/spd/pull/677."""
    passes: list[int] = []

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            passes.append(1)  # compilation would run here
            return self.weight * tokens.sum()

    asked = SimpleNamespace(wants_stop=True, reason=lambda: "received SIGTERM")
    batch = Batch((torch.ones(1, 4), torch.ones(1, 4)), 4)
    model = Model()
    with pytest.raises(StopBeforeStepsError, match="received SIGTERM; stopped before the first step"):
        Replica(model, alone, ParallelConfig()).prime(
            model,
            batch,
            Precision("fp32", "cpu"),
            lambda: _stop_if_requested(alone, asked),  # type: ignore[arg-type]
        )
    assert len(passes) == 1 < PRIMING_PASSES


def test_signal_to_torchrun_reaches_the_ranks(tiny_config: dict[str, Any], tiny_dataset: Path, tmp_path: Path) -> None:
    """https://github.com/aws/sagemaker-training-toolkit/issues/173."""
    (tmp_path / "config.json").write_text(json.dumps({**tiny_config, **LONG}))
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1", "--max-restarts", "0"),
        *("--master-addr", "127.0.0.1", "--master-port", str(free_port()), "-m", "training", "train"),
        *("--config", str(tmp_path / "config.json"), "--dataset", str(tiny_dataset)),
        *("--checkpoints", str(tmp_path / "checkpoints"), "--run-directory", str(tmp_path / "run")),
    ]
    metrics = tmp_path / "run" / "metrics.jsonl"
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]) as torchrun:
        deadline = time.monotonic() + 120
        while not (metrics.exists() and '"record": "step"' in metrics.read_text()):
            assert torchrun.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(torchrun.pid, signal.SIGTERM)
        torchrun.communicate(timeout=60)
    outcome = json.loads((tmp_path / "run" / "outcomes" / "rank-00000.json").read_text())
    assert outcome["outcome"] == "stopped" and "SIGTERM" in outcome["message"]
    assert outcome["step"] == outcome["checkpoint_step"] >= 1
