"""Losses are averaged over the targets that count, for every micro-batch size and world size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.conftest import Gangs
from training.data.mapped import MappedTrainBatches, MappedValidationBatches
from training.data.samples import NO_TARGET
from training.errors import ConfigurationError, TrainingError

CPU = torch.device("cpu")
LENGTHS = (2, 40, 5, 60, 0, 0, 0, 0, 3, 7, 30, 1)
"""Targets per sample. The reference is torch's cross_entropy over one batch, which averages over all targets except
ignore_index: https://docs.pytorch.org/docs/2.13/generated/torch.nn.CrossEntropyLoss.html (2026-11)."""

CODE = '''
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

LENGTHS = {lengths}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.head = nn.Linear(8, 11)

    def forward(self, tokens, targets):
        """Return torch's mean over all targets that are not ignored. NaN if there are none."""
        logits = self.head(self.embedding(tokens))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Masked(Model):
    """A hand-written mean, whose gradient is NaN if there are no targets."""

    def forward(self, tokens, targets):
        logits = self.head(self.embedding(tokens))
        losses = functional.cross_entropy(logits.flatten(0, 1), targets.flatten().clamp(min=0), reduction="none")
        mask = (targets.flatten() >= 0).float()
        return (losses * mask).sum() / mask.sum()


class Statistics(nn.Module):
    """Its validation loss is the mean of BatchNorm's running mean."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8, momentum=0.5)
        self.last = nn.Linear(8, 1)

    def forward(self, tokens, targets):
        if self.training:
            return self.last(self.norm(torch.randn(4, 8) + torch.distributed.get_rank())).square().mean()
        return self.norm.running_mean.mean() + 0 * self.last.weight.sum()


class Data:
    def __init__(self, split="train"):
        self.split = split

    def __len__(self):
        return len(LENGTHS)

    def __getitem__(self, number):
        generator = torch.Generator().manual_seed(number + 100 * (self.split == "train"))
        tokens = torch.randint(11, (61,), generator=generator)
        targets = torch.randint(11, (61,), generator=generator)
        length = LENGTHS[number]
        targets[length:] = -100
        used = max(length, 1)
        return tokens[:used], targets[:used]

    def collate_fn(self, items):
        return tuple(pad_sequence([item[part] for item in items], True, -100 * part) for part in (0, 1))

    def targets_of(self, batch):
        return (batch[1] != -100).sum()


class TimeFirst(Data):
    def collate_fn(self, items):
        return tuple(each.transpose(0, 1) for each in super().collate_fn(items))


class Packed(Data):
    def collate_fn(self, items):
        return tuple(torch.cat([item[part] for item in items])[None] for part in (0, 1))


class Untold(Data):
    targets_of = None


class Plain(Data):
    """Samples of equal length, padded by the dataset."""

    collate_fn = targets_of = None

    def __getitem__(self, number):
        tokens, targets = super().__getitem__(number)
        missing = (0, 61 - len(tokens))
        return functional.pad(tokens, missing), functional.pad(targets, missing, value=-100)


class Void(Data):
    def targets_of(self, batch):
        return 0


class Negative(Data):
    def targets_of(self, batch):
        return torch.tensor([1, 2])


model, masked, statistics, data, time_first, packed = Model, Masked, Statistics, Data, TimeFirst, Packed
untold, plain, void, negative = Untold, Plain, Void, Negative
'''


@pytest.fixture
def own(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "own_terms.py").write_text(CODE.replace("{lengths}", repr(LENGTHS)))
    return {"PYTHONPATH": str(tmp_path)}


def config(dataset: str, micro_batch_size: int, model: str = "model", **changes: Any) -> dict[str, Any]:
    return {
        "steps": 6,
        "global_batch_size": 6,
        "micro_batch_size": micro_batch_size,
        "model": {"function": f"own_terms:{model}"},
        "data": {"function": f"own_terms:{dataset}", "workers": 0},
        "optimizer": {"learning_rate": 0.05},
        "validation": {"interval_steps": 3, "batches": 2},
        "threads": 1,
        **changes,
    }


def figures(gangs: Gangs, own: dict[str, str], name: str, config: dict[str, Any], world_size: int = 1) -> list[float]:
    """Train; return each step's loss and gradient norm, and the validation losses."""
    run = gangs.finish(name, config, world_size, checkpoints=str(gangs._root / f"{name}-store"), environment=own)
    steps = [(record["loss"], record["gradient_norm"]) for record in run.records("step")]
    assert len(steps) == config["steps"]
    return [number for step in steps for number in step] + [each["loss"] for each in run.records("validation")]


def test_results_do_not_depend_on_the_layout_or_on_micro_batch_and_world_size(
    gangs: Gangs, own: dict[str, str]
) -> None:
    """A third of the samples have no target, so some micro-batches, and some ranks' last ones, have none either."""
    expected = figures(gangs, own, "reference", config("data", 6))
    for name, changed, world_size in (
        ("single", config("data", 1), 1),
        ("masked", config("data", 1, "masked"), 1),
        ("ranks", config("data", 1, "masked"), 3),
        ("uneven", config("packed", 4), 2),
        ("time_first", config("time_first", 2), 1),
    ):
        assert figures(gangs, own, name, changed, world_size) == pytest.approx(expected, rel=2e-5), name


def test_loss_is_the_mean_over_all_targets_of_the_global_batch(
    own: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(own["PYTHONPATH"])
    import own_terms

    batches = MappedTrainBatches(own_terms.Data(), 1, CPU, 12, 0, None)
    assert batches.example(12).targets == sum(LENGTHS)
    parts = list(batches.micro_batches(0, range(12), 5))
    assert sum(batch.targets for batch in parts) == sum(LENGTHS)
    estimate = batches.loss_terms(0)
    assert not estimate.is_exact and estimate.count == 128 == 2 ** round(torch.tensor(sum(LENGTHS)).log2().item())


def test_datasets_that_cannot_count_targets_are_rejected(own: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(own["PYTHONPATH"])
    import own_terms

    with pytest.raises(ConfigurationError, match=r"Untold has collate_fn but no targets_of; add a method targets_of"):
        MappedTrainBatches(own_terms.Untold(), 1, CPU, 6, 0, None)
    with pytest.raises(ConfigurationError, match=r"Untold has collate_fn but no targets_of"):
        MappedValidationBatches(own_terms.Untold(), 6, CPU)
    plain = MappedTrainBatches(own_terms.Plain(), 1, CPU, 6, 0, None)
    with pytest.raises(ConfigurationError, match=rf"a batch contains {NO_TARGET}, which marks padding"):
        plain.example(6)
    with pytest.raises(TrainingError, match=r"targets_of returned Tensor .* must return a number of at least 0"):
        MappedValidationBatches(own_terms.Negative(), 6, CPU).rows(range(6))


def test_global_batch_without_targets_fails_the_run_by_name(gangs: Gangs, own: dict[str, str]) -> None:
    for world_size in (1, 2):
        run = gangs.start(f"void-{world_size}", config("void", 3), world_size, environment=own)
        run.wait()
        assert {outcome["outcome"] for outcome in run.outcomes()} == {"failed"}
        assert "no sample in the step's global batch has a target" in run.outcomes()[0]["message"]


def test_validation_uses_rank_zeros_buffers(gangs: Gangs, own: dict[str, str]) -> None:
    """BatchNorm's running statistics are different on each rank; a checkpoint holds rank 0's."""
    run = gangs.finish("buffers", config("data", 1, "statistics"), 3, environment=own)
    for record in run.records("validation"):
        assert abs(record["loss"]) < 0.6, "the mean of rank 0's input is 0, that of all ranks 1"
