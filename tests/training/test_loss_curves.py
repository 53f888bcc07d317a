"""Loss curves agree within rounding across micro-batch sizes, execution settings, precisions and world sizes.

A different order of additions changes sums by the relative rounding error of float32, 6e-8. Over 40 steps of AdamW this
grows to a few units of the last digit, 1e-6 of the loss. bf16 products keep 8 bits of the mantissa (4e-3); their errors
average out over hundreds of tokens to 2e-4 nats, and the bound is 1e-3.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.training.test_recovery import loop_of
from training.process.precision import Precision

STEPS = 40
REORDERED: dict[str, float] = {"rel": 1e-6}
ROUNDED_TO_16_BITS: dict[str, float] = {"abs": 1e-3}


def losses_of(folder: Path, **changes: Any) -> list[float]:
    with loop_of(folder, global_batch_size=8, **changes) as loop:
        return [record for _ in range(STEPS) for record in _advance(loop)]


def _advance(loop: Any) -> list[float]:
    loop.advance()
    loop.run.flags.drain()
    return [report.loss for report in loop.run.flags.take_reports()]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    losses = losses_of(tmp_path_factory.mktemp("reference"), micro_batch_size=8)
    assert len(losses) == STEPS and losses[-1] < losses[0] - 0.05, "the loss decreases"
    return losses


@pytest.mark.parametrize(
    ("changes", "tolerance"),
    [
        ({"micro_batch_size": 1}, REORDERED),
        ({"micro_batch_size": 3}, REORDERED),
        ({"micro_batch_size": 8, "execution": {"activation_checkpointing": True}}, REORDERED),
        ({"micro_batch_size": 8, "precision": "bf16"}, ROUNDED_TO_16_BITS),
    ],
    ids=["8x1", "3+3+2", "recomputed", "bf16"],
)
def test_curves_agree(
    reference: list[float], tmp_path: Path, changes: dict[str, Any], tolerance: dict[str, float]
) -> None:
    """Gradient accumulation divides by tokens: https://github.com/pytorch/torchtune/pull/1875."""
    assert losses_of(tmp_path, **changes) == pytest.approx(reference, **tolerance)


def test_fp16_recovers_from_an_overflow(
    reference: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.loop.build.choose_precision", lambda wanted, device: Precision("fp16", "cpu"))
    with loop_of(tmp_path, global_batch_size=8, micro_batch_size=8, precision="auto") as loop:
        run = loop.run
        losses = [loss for _ in range(10) for loss in _advance(loop)]
        scale = run.state.scaler.get_scale()
        weight = run.model.final_norm.weight
        overflow, before = weight.register_hook(lambda gradient: gradient * math.inf), weight.clone()
        losses += _advance(loop)
        overflow.remove()
        assert run.state.scaler.get_scale() == scale / 2
        assert (weight == before).all()
        losses += [loss for _ in range(STEPS - 11) for loss in _advance(loop)]
    assert losses[:11] == pytest.approx(reference[:11], **ROUNDED_TO_16_BITS)
    assert losses[-1] == pytest.approx(reference[-1], abs=0.05), "one of forty updates was skipped"


EXCHANGES: dict[str, tuple[dict[str, Any], dict[str, float]]] = {
    "plain": ({}, REORDERED),
    "static graph, small buckets": ({"static_graph": True, "bucket_mib": 0.01}, REORDERED),
    "find unused": ({"find_unused_parameters": True}, REORDERED),
    "bf16": ({"gradient_compression": "bf16"}, ROUNDED_TO_16_BITS),
    "fp16": ({"gradient_compression": "fp16"}, ROUNDED_TO_16_BITS),
}


def test_two_processes_have_the_loss_curve_of_one(gangs: Any, tiny_config: dict[str, Any]) -> None:
    """With gradient accumulation: gradients are exchanged only after the last micro-batch.

    https://github.com/huggingface/accelerate/issues/3679, https://github.com/pytorch/pytorch/issues/79171
    """
    config = {**tiny_config, "steps": 12, "model": {**tiny_config["model"], "dropout": 0.0}}
    one = gangs.finish("one", config, 1, checkpoints=str(gangs._root / "one-checkpoints"))
    losses, validations = list(one.losses().values()), [record["loss"] for record in one.records("validation")]
    assert len(losses) == 12 and validations
    for name, (parallel, tolerance) in EXCHANGES.items():
        checkpoints = str(gangs._root / f"{name} checkpoints")
        two = gangs.finish(name, {**config, "parallel": parallel}, 2, checkpoints=checkpoints)
        assert list(two.losses().values()) == pytest.approx(losses, **tolerance), name
        theirs = [record["loss"] for record in two.records("validation")]
        assert theirs == pytest.approx(validations, **tolerance), f"{name}: each rank validates its share"
        assert sum(record["communication_seconds"] for record in two.records("step")) > 0.0


BRANCHED = """
import torch
from torch import nn
from torch.nn import functional

class Branched(nn.Module):
    def __init__(self, vocabulary_size):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, 8)
        self.head = nn.Linear(8, vocabulary_size)
        self.branch = nn.Linear(8, 8)

    def forward(self, tokens, targets):
        logits = self.head(self.embedding(tokens))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
"""


def test_unused_parameters_are_named_or_supported(gangs: Any, tiny_config: dict[str, Any]) -> None:
    """https://github.com/pytorch/pytorch/issues/97030: neither a hang nor an error in the second pass."""
    (gangs._root / "branched.py").write_text(BRANCHED)
    model = {"function": "branched:Branched", "sequence_length": 32}
    config = {**tiny_config, "steps": 3, "model": model}
    options = {"environment": {"PYTHONPATH": str(gangs._root)}}
    refused = gangs.start("refused", config, 2, **options)
    assert refused.wait() == [78, 78], refused.errors()
    assert "does not depend on branch.weight, branch.bias" in refused.outcomes()[0]["message"]
    for name in ("find_unused_parameters", "static_graph"):
        checkpoints = str(gangs._root / f"{name}-checkpoints")
        run = gangs.finish(name, {**config, "parallel": {name: True}}, 2, checkpoints=checkpoints, **options)
        assert sorted(run.losses()) == [1, 2, 3]
