"""Buffers and random number generators of user-supplied models: equal bits after a kill and a resume, from rank 0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.training.conftest import Gangs
from training.checkpoint.selection import select
from training.checkpoint.store import read_tensors
from training.data.probe import probe
from training.process.buffers import preserved_state

CODE = '''
import os
import random

import numpy as np
import torch
from torch import nn


class Model(nn.Module):
    """BatchNorm, a layer that is dropped by `random`, and buffers that each rank sets to its rank."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 1)
        with torch.no_grad():
            self.last.weight.copy_(torch.from_numpy(np.random.standard_normal((1, 8))))
        for number in range(8):
            self.register_buffer(f"rank{number}", torch.full((64,), -1.0))

    def forward(self, x, y):
        for number in range(8):
            if self.training:
                self.get_buffer(f"rank{number}").fill_(float(os.environ.get("RANK", "0")))
        hidden = self.norm(self.first(x))
        if self.training and random.random() < 0.5:
            hidden = hidden * np.random.rand()
        return (self.last(torch.relu(hidden)) - y).square().mean()


class OddBuffers(Model):
    """Buffers that DDP cannot broadcast; the loss depends on them, and each rank changes them."""

    def __init__(self):
        super().__init__()
        self.register_buffer("passes", torch.zeros(3, dtype=torch.uint16))
        self.register_buffer("scale", torch.ones(5).to(torch.float8_e4m3fn))
        self.register_buffer("phase", torch.randn(3, dtype=torch.complex64))
        self.register_buffer("mask", torch.ones(1, 3).expand(2, 3), persistent=False)
        self.first.bias = nn.Parameter(torch.ones(8).to(torch.float8_e4m3fn), requires_grad=False)

    def forward(self, x, y):
        rank = float(os.environ.get("RANK", "0"))
        hidden = x @ self.first.weight.t() + self.first.bias.float()
        loss = (self.last(hidden) - y).square().mean() + self.scale.float().sum() + self.passes.float().sum()
        loss = loss + self.phase.abs().sum() * self.mask.sum() + self.norm(hidden).sum() * 0
        if self.training:
            self.passes.fill_(int(rank))
            self.scale.fill_(rank + 1)
            self.phase.mul_(1 + rank)
        return loss


class Counting(Model):
    """Extra state that counts forward passes."""

    calls = 0

    def forward(self, x, y):
        self.calls += self.training
        return super().forward(x, y)

    def get_extra_state(self):
        return {"calls": self.calls}

    def set_extra_state(self, state):
        self.calls = state["calls"]


class Data:
    def __init__(self):
        self.first = int(os.environ.get("FIRST_SAMPLE", "0"))

    def __len__(self):
        return 64

    def __getitem__(self, number):
        generator = torch.Generator().manual_seed(self.first + number)
        noise = torch.rand(1) * float(os.environ.get("NOISE", "0"))
        return torch.randn(4, generator=generator) + noise, torch.randn(1, generator=generator)


def model():
    return Model()


def odd_buffers():
    return OddBuffers()


def counting():
    return Counting()


def exits():
    import argparse

    argparse.ArgumentParser().parse_args(["--unknown"])


def exits_in_a_step():
    model = Model()
    model.last.register_forward_hook(leave)
    return model


passes = []


def leave(*_):
    passes.append(None)
    if len(passes) > 4:
        raise SystemExit(3)


def dataset(split):
    return Data()
'''


def config(steps: int, **changes: Any) -> dict[str, Any]:
    return {
        "steps": steps,
        "global_batch_size": 8,
        "micro_batch_size": 4,
        "model": {"function": "userstate:model"},
        "data": {"function": "userstate:dataset", "workers": 0},
        "schedule": {"kind": "constant", "warmup_steps": 0},
        "checkpoint": {"interval_steps": 4},
        "validation": {"interval_steps": 1000, "batches": 1},
        "threads": 1,
        **changes,
    }


@pytest.fixture
def code(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "userstate.py").write_text(CODE, encoding="utf-8")
    return {"PYTHONPATH": str(folder)}


def saved_tensors(url: str, wanted: list[str]) -> dict[str, torch.Tensor]:
    selected = select(url)
    found = {}
    for part in selected.manifest.parts:
        for name in wanted:
            if name in part.tensors:
                record = part.tensors[name]
                content = bytearray(record.bytes)
                read_tensors(selected.backend, part, {name: memoryview(content)})
                dtype = getattr(torch, record.dtype)
                found[name] = torch.frombuffer(content, dtype=dtype).view(record.shape)
    return found


def test_buffers_are_those_of_rank_zero_and_of_training_steps_only(gangs: Gangs, code: dict[str, str]) -> None:
    """Rank 0's buffers are authoritative:
    https://docs.pytorch.org/docs/2.13/generated/torch.nn.parallel.DistributedDataParallel.html

    `broadcast_buffers` (2026-11): "in every iteration, buffers are broadcast from the module in rank 0".
    """
    run = gangs.finish("run", config(6), 2, environment=code)
    names = [f"model/rank{number}" for number in range(8)]
    counter = "model/norm.num_batches_tracked"
    found = saved_tensors(run.checkpoints, [*names, counter])
    assert {float(found[name].max()) for name in names} == {0.0}, "rank 1 saved some of its own"
    assert int(found[counter]) == 6, "a forward pass per step, and none of the passes before the first step"


def test_buffers_that_ddp_cannot_broadcast_are_shared_and_resumed(gangs: Gangs, code: dict[str, str]) -> None:
    """Gloo raises "Invalid scalar type" for unsigned 16-bit integers and float8, and DDP writes to expanded buffers."""
    changes = {"model": {"function": "userstate:odd_buffers"}}
    alone = gangs.finish("alone", config(8, **changes), 1, checkpoints=str(gangs._root / "a"), environment=code)
    gangs.finish("broken", config(6, **changes), 2, environment=code)
    resumed = gangs.finish("resumed", config(8, **changes), 2, environment=code, generation=2)
    assert resumed.losses() == pytest.approx({step: alone.losses()[step] for step in (7, 8)}, rel=1e-5)
    found = saved_tensors(resumed.checkpoints, ["model/passes", "model/scale"])
    assert found["model/passes"].tolist() == [0, 0, 0] and found["model/scale"].float().tolist() == [1.0] * 5


def test_extra_state_counts_training_steps_only(gangs: Gangs, code: dict[str, str]) -> None:
    run = gangs.finish("run", config(6, model={"function": "userstate:counting"}), environment=code)
    assert select(run.checkpoints).manifest.extra_states == {"_extra_state": {"calls": 12}}, "two micro-batches a step"


def test_generators_of_python_and_numpy_are_seeded_and_resumed(gangs: Gangs, code: dict[str, str]) -> None:
    root = str(gangs._root / "unbroken-store")
    unbroken = gangs.finish("unbroken", config(14), 2, checkpoints=root, environment=code).losses()
    gangs.finish("broken", config(6), 2, environment=code)
    resumed = gangs.finish("resumed", config(14), 2, environment=code, generation=2).losses()
    assert min(resumed) == 7
    assert resumed == {step: loss for step, loss in unbroken.items() if step > 6}
    other = gangs.finish("other", config(2, seed=7), 2, checkpoints=f"{root}-7", environment=code).losses()
    assert other[1] != unbroken[1]


def test_buffers_are_restored_where_a_pass_changed_or_replaced_them() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))
            self.register_buffer("last", torch.ones(2), persistent=False)
            self.register_buffer("mask", torch.ones(1, 3).expand(2, 3), persistent=False)
            self.register_buffer("nothing", None)

        def forward(self) -> None:
            self.get_buffer("count").add_(1)
            self.last = torch.zeros(3)
            self.nothing = torch.zeros(1)

    model = Counting()
    before = dict(model._buffers)
    with preserved_state(model):
        model()
    assert all(model._buffers[name] is buffer for name, buffer in before.items())
    assert model.get_buffer("count").item() == 0 and torch.equal(model.get_buffer("last"), torch.ones(2))


def resumed_with(gangs: Gangs, code: dict[str, str], changes: dict[str, Any], environment: dict[str, str]) -> str:
    gangs.finish("before", config(4), environment=code)
    run = gangs.start("after", config(8, **changes), environment={**code, **environment}, generation=2)
    codes = run.wait()
    return f"{codes} {run.outcomes()[0]['message']}"


def test_resume_on_other_contents_of_the_same_length_is_refused(gangs: Gangs, code: dict[str, str]) -> None:
    message = resumed_with(gangs, code, {}, {"FIRST_SAMPLE": "1000"})
    assert message.startswith("[78]") and "different contents" in message and "name a new run" in message


def test_resume_with_another_seed_is_refused(gangs: Gangs, code: dict[str, str]) -> None:
    message = resumed_with(gangs, code, {"seed": 7}, {})
    assert (
        message.startswith("[78]") and "seed is 1337, but this run's is 7" in message and "undo the change" in message
    )


def test_resume_on_samples_that_are_made_in_another_way_is_refused(gangs: Gangs, tiny_config: dict[str, Any]) -> None:
    """Documents of one sequence each, and streamed blocks, have a different order from joined documents."""
    gangs.finish("before", {**tiny_config, "steps": 2})
    changed = {**tiny_config, "steps": 4, "data": {"documents": "apart"}}
    run = gangs.start("after", changed, generation=2)
    assert run.wait() == [78]
    message = run.outcomes()[0]["message"]
    assert "its samples are joined, but this run's are apart" in message and "name a new run" in message


def test_resume_on_the_same_contents_with_rounding_is_accepted(gangs: Gangs, code: dict[str, str]) -> None:
    """Processors round differently, and augmentation draws from the seeded generators."""
    assert resumed_with(gangs, code, {}, {"NOISE": "1e-6"}).startswith("[0]")


@pytest.mark.parametrize(("function", "code_of"), [("exits", "2"), ("exits_in_a_step", "3")])
def test_exit_of_user_code_has_an_outcome(gangs: Gangs, code: dict[str, str], function: str, code_of: str) -> None:
    settings = config(8, model={"function": f"userstate:{function}"})
    run = gangs.start("run", settings, environment=code)
    assert run.wait() == [1]
    (outcome,) = run.outcomes()
    assert outcome["outcome"] == "failed" and f"the code exited with {code_of}" in outcome["message"]
    assert "userstate.py" in outcome["traceback"]


def test_probe_of_samples() -> None:
    samples: list[Any] = [{"x": torch.tensor([float(n), 1.0]), "y": n, "name": str(n)} for n in range(10)]
    first = probe(10, samples.__getitem__)
    assert len(first) == 8 and probe(10, samples.__getitem__) == first
    samples[9] = {**samples[9], "x": torch.tensor([-9.0, 1.0])}
    assert probe(10, samples.__getitem__)[:7] == first[:7]
    assert probe(10, samples.__getitem__)[7] == pytest.approx(2 * float(first[7] or 0), rel=0.1), "another sign"
    samples[9] = {**samples[9], "x": torch.tensor([9.0, 1.0])}
    assert probe(10, samples.__getitem__) == first
    samples[9] = {**samples[9], "y": 8}
    assert probe(10, samples.__getitem__)[:6] == first[:6]
    assert probe(10, samples.__getitem__)[6] != first[6], "another label"
    assert probe(10, samples.__getitem__)[7] == first[7]
    draws = iter(range(1000))
    assert probe(3, lambda _: next(draws)) == [None] * 6, "samples that change are not compared"
    assert probe(1, [][1:].__getitem__) == [None, None]
