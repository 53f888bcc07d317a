"""Auto-tuning: the micro-batch size search, with a simulated memory limit, and the learning-rate range test."""

from __future__ import annotations

import io
import json
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.training.test_recovery import loop_of, signals_kept
from training.bench import find_learning_rate
from training.bench.find_learning_rate import run_find_learning_rate
from training.errors import ConfigurationError, OutOfMemoryError
from training.loop.build import StopBeforeStepsError
from training.loop.run import Run
from training.loop.step import take_step
from training.loop.step_result import StepResult
from training.process.distributed import ControlFlags
from training.tuning.lr_range_test import Point, suggest
from training.tuning.micro_batch_size import Trial, find_micro_batch


class Unanimous:
    """A gang of one rank."""

    device = torch.device("cpu")

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def agree(self, flags: ControlFlags) -> ControlFlags:
        return flags


class Pair:
    """A gang of two ranks in two threads."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(2)
        self._values: list[Any] = [None, None]

    def rank(self, number: int) -> Any:
        pair = self

        class Rank:
            device = torch.device("cpu")

            def gather(self, value: Any) -> list[Any]:
                pair._values[number] = value
                pair._barrier.wait()
                both = list(pair._values)
                pair._barrier.wait()
                return both

            def agree(self, flags: ControlFlags) -> ControlFlags:
                return ControlFlags(failed=sum(each.failed for each in self.gather(flags)))

        return Rank()


def trial(room: int, most: int, tried: list[int]) -> Trial:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))

    def passes(sequences: int) -> None:
        tried.append(sequences)
        model(torch.rand(2 * sequences, 2)).sum().backward()
        if sequences > room:
            raise torch.OutOfMemoryError("CUDA out of memory")

    return Trial(model, passes, most)


@pytest.mark.parametrize(
    ("rooms", "found"), [((5, 11), 5), ((100, 7), 7), ((100, 100), 24), ((1, 9), 1), ((16, 23), 16)]
)
def test_largest_micro_batch_is_that_of_the_smallest_rank(rooms: tuple[int, int], found: int) -> None:
    """https://github.com/Lightning-AI/pytorch-lightning/issues/20231: every rank uses the same size, which fits."""
    pair, tried = Pair(), ([], [])
    trials = [trial(room, most, list_) for room, most, list_ in zip(rooms, (24, 23), tried, strict=True)]
    results: list[int | None] = [None, None]

    def find(number: int) -> None:
        results[number] = find_micro_batch(trials[number], pair.rank(number))

    threads = [threading.Thread(target=find, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [found, found]
    assert tried[0] == tried[1] and len(tried[0]) <= 10


def test_search_leaves_weights_buffers_gradients_and_random_numbers_alone() -> None:
    attempt = trial(3, 8, [])
    before = {name: tensor.clone() for name, tensor in attempt.model.state_dict().items()}
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    assert find_micro_batch(attempt, Unanimous()) == 3
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(tensor, before[name]) for name, tensor in attempt.model.state_dict().items())
    assert all(parameter.grad is None for parameter in attempt.model.parameters())
    with pytest.raises(OutOfMemoryError, match="micro-batch of one sequence"):
        find_micro_batch(trial(0, 8, []), Unanimous())


def test_other_errors_are_not_treated_as_out_of_memory() -> None:
    def passes(sequences: int) -> None:
        raise RuntimeError("shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        find_micro_batch(Trial(nn.Linear(1, 1), passes, 4), Unanimous())


def test_suggested_rate_is_where_the_loss_falls_fastest() -> None:
    losses = {1e-5: 4.0, 1e-4: 3.9, 1e-3: 3.0, 1e-2: 2.8, 1e-1: 9.0}
    assert suggest([Point(rate, loss) for rate, loss in losses.items()]) == 1e-4
    assert suggest([Point(1e-5, 1.0), Point(1e-4, 2.0)]) is None


def test_automatic_micro_batch_size_requires_a_gpu(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigurationError, match="auto requires a GPU, but none was found"),
        loop_of(tmp_path, micro_batch_size="auto"),
    ):
        pass


def test_range_test_suggests_a_rate_and_saves_nothing(
    tmp_path: Path, tiny_dataset: Path, tiny_config: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(tiny_config))
    options = SimpleNamespace(config=config, dataset=tiny_dataset, steps=12, lowest=1e-4, highest=1.0)
    output = io.StringIO()
    with signals_kept():
        assert run_find_learning_rate(options, output) == 0
    report = json.loads(output.getvalue())
    rates = [point["learning_rate"] for point in report["points"]]
    assert rates == sorted(rates) and rates[0] == 1e-4
    assert report["suggested_learning_rate"] in rates and report["complete"]
    assert list(tmp_path.iterdir()) == [config]
    for wrong in ({"lowest": 2.0}, {"steps": 1}):
        with pytest.raises(ConfigurationError, match="--(lowest|steps)"):
            run_find_learning_rate(SimpleNamespace(**(vars(options) | wrong)), output)


def test_stopped_range_test_prints_its_points(
    tmp_path: Path, tiny_dataset: Path, tiny_config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(tiny_config))
    options = SimpleNamespace(config=config, dataset=tiny_dataset, steps=12, lowest=1e-4, highest=1.0)
    steps = 0

    def step_then_stop(run: Run, rate: float) -> StepResult:
        nonlocal steps
        steps += 1
        if steps == 3:
            signal.raise_signal(signal.SIGINT)
        return take_step(run, rate)

    monkeypatch.setattr(find_learning_rate, "take_step", step_then_stop)
    output = io.StringIO()
    with signals_kept():
        assert run_find_learning_rate(options, output) == 1
    report = json.loads(output.getvalue())
    assert not report["complete"]
    assert len(report["points"]) == 2


def test_micro_batch_search_ends_on_a_stop_request() -> None:
    tried: list[int] = []

    def stop_after_two() -> None:
        if len(tried) == 2:
            raise StopBeforeStepsError("stop requested")

    attempt = trial(8, 8, [])
    counted = Trial(attempt.model, lambda size: (tried.append(size), attempt.passes(size))[1], 8, stop_after_two)
    with pytest.raises(StopBeforeStepsError):
        find_micro_batch(counted, Unanimous())
    assert tried == [1, 2]
