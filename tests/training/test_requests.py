"""Requests to stop and to save, and all outcomes, with real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.training.conftest import free_port

LONG = {"steps": 100000, "schedule": {"kind": "constant", "warmup_steps": 4}, "checkpoint": {"interval_steps": 100000}}


def test_sigterm_on_one_rank_stops_all_ranks_and_a_second_one_changes_nothing(
    gangs: Any, tiny_config: dict[str, Any]
) -> None:
    run = gangs.start("run", {**tiny_config, **LONG}, 2)
    run.wait_for_step(3)
    (run.directory / "save").touch()
    run.wait_for(lambda: run.records("checkpoint"))
    assert run.records("checkpoint")[0]["reason"] == "request"
    assert not (run.directory / "save").exists()
    os.kill(run.processes[1].pid, signal.SIGTERM)
    os.kill(run.processes[1].pid, signal.SIGTERM)
    assert run.wait() == [75, 75], run.errors()
    first, second = run.outcomes()
    assert first["outcome"] == second["outcome"] == "stopped"
    assert first["step"] == second["step"] == first["checkpoint_step"] == second["checkpoint_step"]
    assert "SIGTERM" in first["message"]
    assert run.records("end")[0]["outcome"] == "stopped"
    assert [record["reason"] for record in run.records("checkpoint")] == ["request", "stop"]


def test_stop_during_validation(gangs: Any, tiny_config: dict[str, Any]) -> None:
    validation = {"interval_steps": 2, "batches": 100000}
    run = gangs.start("run", {**tiny_config, **LONG, "micro_batch_size": 1, "validation": validation})
    run.wait_for_step(1)
    (run.directory / "stop").touch()
    assert run.wait() == [75], run.errors()
    assert run.outcomes()[0]["step"] == run.outcomes()[0]["checkpoint_step"]


def test_stop_before_the_first_step_saves_nothing(gangs: Any, tiny_config: dict[str, Any]) -> None:
    config = {**tiny_config, "steps": 3}
    (gangs._root / "early").mkdir()
    (gangs._root / "early" / "stop").touch()
    early = gangs.start("early", config)
    assert early.wait() == [75], early.errors()
    (outcome,) = early.outcomes()
    assert (outcome["outcome"], outcome["checkpoint_step"]) == ("stopped", None)
    assert "before the first step" in outcome["message"]
    later = gangs.finish("later", config, generation=2)
    assert later.records("start")[0]["resumed_from_step"] is None
    assert sorted(later.losses()) == [1, 2, 3]


def test_missed_deadline_is_reported_and_the_run_stops(gangs: Any, tiny_config: dict[str, Any]) -> None:
    # Several chunks, the last of which cannot be stored before the save is cancelled.
    model = {**tiny_config["model"], "hidden_size": 512}
    run = gangs.start("run", {**tiny_config, **LONG, "model": model})
    run.wait_for_step(1)
    request = run.directory / "request"
    request.write_text(json.dumps({"reason": "reclaimed", "deadline_unix_seconds": time.time() - 1}))
    request.rename(run.directory / "stop")
    assert run.wait() == [75], run.errors()
    outcome = run.outcomes()[0]
    assert outcome["checkpoint_step"] is None
    assert "missed the deadline" in outcome["message"]


def test_nan_loss_fails_all_ranks_and_is_never_saved(gangs: Any, tiny_config: dict[str, Any]) -> None:
    # Decoupled decay multiplies the weights by 1 - 10 * 10 = -99 every step, until they overflow.
    optimizer = {"learning_rate": 10.0, "weight_decay": 10.0}
    config = {
        **tiny_config,
        "optimizer": optimizer,
        "schedule": {"warmup_steps": 0},
        "checkpoint": {"interval_steps": 1},
    }
    run = gangs.start("run", config, 2)
    assert run.wait() == [1, 1], run.errors()
    for outcome in run.outcomes():
        assert outcome["outcome"] == "failed"
        assert "NaN or infinite at step" in outcome["message"]
        assert "Traceback" in outcome["traceback"]
    first_bad_step = int(run.outcomes()[0]["message"].partition("at step ")[2].split()[0])
    # The writer processes commit what was copied before.
    assert max(run.committed_steps()) < first_bad_step


def test_killed_rank_ends_the_others(gangs: Any, tiny_config: dict[str, Any]) -> None:
    run = gangs.start("run", {**tiny_config, **LONG}, 2)
    run.wait_for_step(3)
    run.processes[1].kill()
    assert run.wait(30) == [1, -9]
    (outcome,) = run.outcomes()
    assert (outcome["rank"], outcome["outcome"]) == (0, "failed")
    assert outcome["step"] >= 3 and "Traceback" in outcome["traceback"]


def test_newer_generation_supersedes_an_older_one(gangs: Any, tiny_config: dict[str, Any]) -> None:
    gangs.finish("new", {**tiny_config, "steps": 2}, generation=7)
    old = gangs.start("old", {**tiny_config, "steps": 4}, generation=6)
    assert old.wait() == [76]
    assert old.outcomes()[0]["outcome"] == "superseded"
    assert "generation 7 has owned" in old.outcomes()[0]["message"]


def test_invalid_inputs_are_reported(gangs: Any, tiny_config: dict[str, Any], tmp_path: Path) -> None:
    bad = gangs.start("bad", {**tiny_config, "steps": 0, "colour": "red"})
    absent = gangs.start("absent", tiny_config, dataset=tmp_path / "nowhere")
    model = {"num_hidden_layers": 1, "num_attention_heads": 1, "hidden_size": 8, "sequence_length": 1000000}
    long = gangs.start("long", {**tiny_config, "model": model})
    assert bad.wait() == absent.wait() == long.wait() == [78]
    messages = [run.outcomes()[0]["message"] for run in (bad, absent, long)]
    assert "steps: 0" in messages[0] and "colour: unknown key" in messages[0]
    assert "nowhere" in messages[1] and "tokenize" in messages[1]
    assert "needs 1000001" in messages[2] and "validation split" in messages[2] and "train split" in messages[2]
    assert {run.outcomes()[0]["outcome"] for run in (bad, absent, long)} == {"bad_configuration"}


def test_checkpoint_of_another_model_is_rejected(gangs: Any, tiny_config: dict[str, Any]) -> None:
    gangs.finish("first", {**tiny_config, "steps": 2})
    shallow = {**tiny_config["model"], "num_hidden_layers": 1}
    other = gangs.start("other", {**tiny_config, "model": shallow}, generation=2)
    assert other.wait() == [78]
    assert (
        "its model has num_hidden_layers 2, but this run has 1; undo the change, or name a new run"
        in other.outcomes()[0]["message"]
    )


def test_missing_bucket_is_reported(gangs: Any, tiny_config: dict[str, Any], s3_environment: dict[str, str]) -> None:
    run = gangs.start("run", tiny_config, checkpoints="s3://no-such-bucket-here/x", environment=s3_environment)
    assert run.wait() == [1]
    assert "NoSuchBucket; create the bucket, or correct the URL" in run.outcomes()[0]["message"]


@pytest.mark.slow  # make demo runs torchrun on an S3 endpoint, for hundreds of steps
def test_torchrun_and_s3_end_to_end(
    gangs: Any,
    tiny_config: dict[str, Any],
    tiny_dataset: Path,
    tmp_path: Path,
    s3_environment: dict[str, str],
    bucket: str,
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**tiny_config, "steps": 6}))
    url = f"s3://{bucket}/runs/demo/checkpoints"
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "0"),
        *("--master-addr", "127.0.0.1", "--master-port", str(free_port()), "-m", "training", "train"),
        *("--config", str(tmp_path / "config.json"), "--dataset", str(tiny_dataset), "--checkpoints", url),
        *("--run-directory", str(tmp_path / "run"), "--generation", "1"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    shown = subprocess.run(
        [sys.executable, "-m", "training", "checkpoint", "show", "--json", url],
        capture_output=True,
        text=True,
        check=True,
    )
    described = json.loads(shown.stdout)
    assert (described["step"], described["world_size"], described["generation"]) == (6, 2, 1)
