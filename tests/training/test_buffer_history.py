"""Buffers that the passes of an aborted step have changed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from training.process.reform.buffer_history import STEPS, BufferHistory


class Model(nn.Module):
    """BatchNorm, a constant, a buffer that each pass replaces, and one that cannot be written."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("constant", torch.arange(4.0))
        self.register_buffer("seen", torch.zeros(0))
        self.register_buffer("mask", torch.ones(1, 3).expand(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = torch.cat([self.seen, x[:1, 0].detach()])
        return self.norm(x)  # type: ignore[no-any-return]


def contents(model: Model) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


def test_restores_the_buffers_of_the_last_complete_step() -> None:
    model = Model()
    history = BufferHistory(model)
    before = {}
    for step in range(STEPS + 2):
        history.keep(step)
        before[step] = contents(model)
        model(torch.randn(5, 3))
        model(torch.randn(5, 3))  # a second micro-batch
    history.restore(STEPS)  # the step after it was aborted, and yet another one had begun
    assert_same(contents(model), before[STEPS])


def test_a_complete_step_is_not_undone() -> None:
    model = Model()
    history = BufferHistory(model)
    history.keep(0)
    model(torch.randn(5, 3))
    after = contents(model)
    history.restore(1)
    assert_same(contents(model), after)
