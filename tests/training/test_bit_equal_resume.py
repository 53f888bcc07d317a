"""An interrupted run and an uninterrupted run end with the same bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from training.checkpoint.layout import views_of
from training.checkpoint.storage.urls import open_backend
from training.checkpoint.store import checkpoint_entries, read_manifest, read_part


def final_tensors(checkpoints: str) -> dict[str, torch.Tensor]:
    backend = open_backend(checkpoints)
    manifest = read_manifest(backend, next(checkpoint_entries(backend)))
    tensors = {}
    for part in manifest.parts:
        flat = torch.frombuffer(read_part(backend, part), dtype=torch.uint8)
        tensors |= views_of(flat, part.tensors)
    return tensors


def assert_same_end(broken: str, unbroken: str) -> None:
    one, other = final_tensors(broken), final_tensors(unbroken)
    assert one.keys() == other.keys()
    assert any(name.startswith("optimizer/") for name in one)
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


# make chaos compares runs of four ranks bit by bit, after many more kills.
@pytest.mark.parametrize("world_size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_killed_then_stopped_then_finished(
    world_size: int, gangs: Any, tiny_config: dict[str, Any], tmp_path: Path
) -> None:
    unbroken = gangs.finish("unbroken", tiny_config, world_size, checkpoints=str(tmp_path / "unbroken-checkpoints"))

    killed = gangs.start("killed", tiny_config, world_size, generation=1)
    killed.wait_for(lambda: max(killed.losses(), default=0) >= 8)
    killed.kill()
    # Even if the save was in flight: the writer processes commit what has been copied.
    assert killed.committed_steps()
    assert max(killed.losses()) < tiny_config["steps"], "killed too late for the test"

    stopped = gangs.start("stopped", tiny_config, world_size, generation=2)
    stopped.wait_for(lambda: stopped.records("step"))
    (stopped.directory / "stop").write_text(json.dumps({"reason": "spot interruption"}))
    assert stopped.wait() == [75] * world_size, stopped.errors()
    resumed_from = stopped.records("start")[0]["resumed_from_step"]
    assert resumed_from >= 5
    stops = {(outcome["outcome"], outcome["step"], outcome["checkpoint_step"]) for outcome in stopped.outcomes()}
    assert len(stops) == 1
    ((ending, step, checkpoint_step),) = stops
    assert ending == "stopped"
    assert step == checkpoint_step < tiny_config["steps"]
    assert "spot interruption" in stopped.outcomes()[0]["message"]

    finished = gangs.finish("finished", tiny_config, world_size, generation=3)
    assert finished.records("start")[0]["resumed_from_step"] == step

    losses = unbroken.losses()
    assert sorted(losses) == list(range(1, tiny_config["steps"] + 1))
    for run in (killed, stopped, finished):
        assert run.losses() == {step: losses[step] for step in run.losses()}
    assert set(stopped.losses()) | set(finished.losses()) == set(range(resumed_from + 1, tiny_config["steps"] + 1))
    assert finished.records("validation")[-1]["loss"] == unbroken.records("validation")[-1]["loss"]
    assert_same_end(finished.checkpoints, unbroken.checkpoints)


@pytest.mark.slow
@pytest.mark.timeout(1800)  # each start compiles, on as many cores as ranks
def test_compiled_run_resumes_with_the_same_bits(gangs: Any, tiny_config: dict[str, Any], tmp_path: Path) -> None:
    config = {**tiny_config, "steps": 16, "compile": True, "schedule": {"warmup_steps": 12}}
    unbroken = gangs.start("unbroken", config, 2, checkpoints=str(tmp_path / "unbroken-checkpoints"))
    assert unbroken.wait(600.0) == [0, 0], unbroken.errors()
    stopped = gangs.start("stopped", config, 2, generation=1)
    stopped.wait_for(lambda: max(stopped.losses(), default=0) >= 2, 600.0)
    (stopped.directory / "stop").touch()
    assert stopped.wait(600.0) == [75, 75], stopped.errors()
    finished = gangs.start("finished", config, 2, generation=2)
    assert finished.wait(600.0) == [0, 0], finished.errors()
    assert 0 < finished.records("start")[0]["resumed_from_step"] < 12, "during the warm-up"
    assert finished.losses().items() <= unbroken.losses().items()
    assert_same_end(finished.checkpoints, unbroken.checkpoints)
    assert list((tmp_path / "compile-cache" / "inductor").iterdir()), "cached for later starts"


def test_other_world_size_continues_with_the_same_batches(gangs: Any, tiny_config: dict[str, Any]) -> None:
    """Without dropout, the world size changes only the order of additions."""
    config = {**tiny_config, "steps": 16, "model": {**tiny_config["model"], "dropout": 0.0}}
    alone = gangs.finish("alone", config, 1, checkpoints=str(gangs._root / "alone-checkpoints"))
    gangs.finish("two", {**config, "steps": 8, "schedule": {"warmup_steps": 4, "kind": "constant"}}, 2, generation=1)
    three = gangs.finish("three", {**config, "schedule": {"warmup_steps": 4, "kind": "constant"}}, 3, generation=2)
    assert three.records("start")[0]["resumed_from_step"] == 8
    assert "deriving new states from seed, rank and step" in three.errors()
    constant = gangs.finish(
        "constant",
        {**config, "schedule": {"warmup_steps": 4, "kind": "constant"}},
        1,
        checkpoints=str(gangs._root / "c"),
    )
    assert constant.losses() != alone.losses()
    for step, loss in three.losses().items():
        assert loss == pytest.approx(constant.losses()[step], rel=1e-6)
