"""One step and what it is made of: accumulation, weights by name, schedule, precision."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from training.checkpoint.state import TrainingState, bare_name, seed_random_state
from training.config import ModelShape, TrainingConfig
from training.data.batches import TrainBatches
from training.data.dataset import open_dataset
from training.data.samples import Windows
from training.distributed import Gang, join_gang
from training.errors import ConfigurationError
from training.flops import multiplying_parameters, peak_flops_per_second, training_flops_per_token
from training.interruption import Interruption
from training.metrics import MetricsFile
from training.model import GPT
from training.optimization import build_optimizer, learning_rate
from training.precision import Precision, choose_precision
from training.replication import Replica
from training.step import take_step
from training.stopwatch import PHASES, Laps

SHAPE = ModelShape(layers=2, heads=2, embedding=32, context=32)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def alone() -> Iterator[Gang]:
    gang = join_gang()
    yield gang
    gang.leave()


def run_of(gang: Gang, dataset: Path, micro_batch_sequences: int) -> Any:
    torch.manual_seed(0)
    config = TrainingConfig.model_validate(
        {"global_batch_sequences": 8, "micro_batch_sequences": micro_batch_sequences, "model": SHAPE._asdict()}
    )
    model = GPT(SHAPE, 300)
    state = TrainingState(model, build_optimizer(model, config.optimizer), Precision("fp32", "cpu").scaler())
    return SimpleNamespace(
        config=config,
        gang=gang,
        state=state,
        model=model,
        replica=Replica(model, gang, config.parallel),
        micro_batch_sequences=micro_batch_sequences,
        precision=Precision("fp32", "cpu"),
        train_batches=TrainBatches(Windows(open_dataset(dataset).split("train"), 32), 1, CPU, 8),
    )


def test_accumulation_changes_nothing_but_the_order_of_additions(alone: Gang, tiny_dataset: Path) -> None:
    runs = [run_of(alone, tiny_dataset, size) for size in (8, 1, 3)]
    for _ in range(5):
        first, *others = [take_step(run, 1e-3) for run in runs]
        for other in others:
            assert other.loss.item() == pytest.approx(first.loss.item(), abs=1e-6)
            assert other.gradient_norm.item() == pytest.approx(first.gradient_norm.item(), rel=1e-5)
    assert [(run.state.step, run.state.position) for run in runs] == [(5, 40)] * 3


def test_loss_of_an_untrained_model_is_that_of_guessing(alone: Gang, tiny_dataset: Path) -> None:
    result = take_step(run_of(alone, tiny_dataset, 8), 1e-3)
    assert result.loss.item() == pytest.approx(math.log(300), abs=0.2)


def test_position_sees_only_the_past() -> None:
    torch.manual_seed(0)
    model = GPT(SHAPE, 300).eval()
    tokens = torch.randint(300, (1, 32))
    changed = tokens.clone()
    changed[0, 20:] = (changed[0, 20:] + 1) % 300
    hidden: list[torch.Tensor] = []
    model.final_norm.register_forward_hook(lambda module, inputs, output: hidden.append(output))
    model(tokens, tokens)
    model(changed, tokens)
    assert torch.allclose(hidden[0][0, :20], hidden[1][0, :20], atol=1e-6)
    assert not torch.allclose(hidden[0][0, 20:], hidden[1][0, 20:], atol=1e-3)


def trained_state(wrapped: bool = False) -> TrainingState:
    torch.manual_seed(1)
    model = GPT(SHAPE, 300)
    optimizer = build_optimizer(model, TrainingConfig().optimizer)
    model(torch.ones(1, 4, dtype=torch.long), torch.ones(1, 4, dtype=torch.long)).backward()
    optimizer.step()
    holder = torch.nn.ModuleDict({"module": torch.nn.ModuleDict({"_orig_mod": model})}) if wrapped else model
    return TrainingState(holder, optimizer, torch.amp.GradScaler("cpu", enabled=False))


@pytest.mark.parametrize("wrapped", [False, True])
def test_state_goes_by_bare_names_into_wrapped_and_bare_models(wrapped: bool) -> None:
    saved = {name: tensor.clone() for name, tensor in trained_state().tensors().items()}
    assert len([name for name in saved if name.startswith("model/")]) * 4 == len(saved), "tied weights once"
    fresh = trained_state(wrapped)
    with torch.no_grad():
        for parameter in fresh.model.parameters():
            parameter.zero_()
    fresh.optimizer.state.clear()
    fresh.load(saved)
    assert fresh.tensors().keys() == saved.keys()
    assert all(torch.equal(tensor, saved[name]) for name, tensor in fresh.tensors().items())


def test_names_and_shapes_are_strict() -> None:
    state = trained_state()
    saved = dict(state.tensors())
    saved["model/extra"] = saved.pop("model/final_norm.bias")
    saved["model/final_norm.weight"] = torch.zeros(3)
    with pytest.raises(ConfigurationError) as caught:
        state.load(saved)
    told = str(caught.value)
    assert "has no tensor final_norm.bias" in told and "has extra" in told and "has shape [3]" in told


@pytest.mark.parametrize("name", ["module._orig_mod.a.b", "_orig_mod.module.a.b", "a.module.b", "a.b"])
def test_bare_names(name: str) -> None:
    assert bare_name(name) == "a.b"


def test_schedule() -> None:
    config = TrainingConfig.model_validate({"steps": 100, "schedule": {"warmup_steps": 10, "minimum_ratio": 0.1}})
    rates = [learning_rate(step, config) for step in range(101)]
    assert rates[0] == pytest.approx(1e-4)
    assert rates[9] == max(rates) == 1e-3
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[100] == pytest.approx(1e-4)
    constant = TrainingConfig.model_validate({"steps": 100, "schedule": {"kind": "constant", "warmup_steps": 0}})
    assert {learning_rate(step, constant) for step in range(100)} == {1e-3}


def test_only_matrices_decay() -> None:
    model = GPT(SHAPE, 300)
    decayed, spared = build_optimizer(model, TrainingConfig().optimizer).param_groups
    assert {parameter.dim() for parameter in decayed["params"]} == {2}
    assert {parameter.dim() for parameter in spared["params"]} == {1}
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.1, 0.0)
    assert len(decayed["params"]) + len(spared["params"]) == len(list(model.parameters()))


def test_precision_of_a_cpu() -> None:
    assert choose_precision("auto", CPU).format == "fp32"
    assert choose_precision("bf16", CPU).format == "bf16"
    for wanted in ("fp16", "tf32"):
        with pytest.raises(ConfigurationError, match=f"{wanted} needs a GPU"):
            choose_precision(wanted, CPU)


def test_random_state_depends_on_seed_rank_and_step() -> None:
    draws = set()
    for seed, rank, step in [(1, 0, 0), (1, 1, 0), (1, 0, 1), (2, 0, 0), (1, 0, 0)]:
        seed_random_state(seed, rank, step)
        draws.add(torch.rand(()).item())
    assert len(draws) == 4


def test_requests_by_file_and_signal(tmp_path: Path) -> None:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        interruption = Interruption()
        interruption.watch(tmp_path)
        assert not interruption.wants_stop and not interruption.wants_save
        (tmp_path / "save").touch()
        assert interruption.wants_save
        interruption.save_taken()
        assert not interruption.wants_save
        (tmp_path / "stop").write_text("any content")
        assert interruption.wants_stop
        assert interruption.reason() == f"found the file {tmp_path / 'stop'}"
        assert interruption.seconds_to_deadline() is None
        (tmp_path / "stop").write_text('{"reason": "reclaimed", "deadline_unix_seconds": 12.5}')
        left_seconds = interruption.seconds_to_deadline()
        assert interruption.reason() == "reclaimed" and left_seconds is not None and left_seconds < 0
        (tmp_path / "stop").unlink()
        signal.raise_signal(signal.SIGTERM)
        assert interruption.wants_stop and interruption.reason() == "received SIGTERM"
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def test_metrics_have_no_numbers_that_json_does_not_know(tmp_path: Path) -> None:
    path = tmp_path / "run" / "metrics.jsonl"
    MetricsFile(path).write("step", loss=float("nan"), step=1)
    assert '"loss": null' in path.read_text()
    assert path.read_text().endswith("\n")
    MetricsFile(None).write("step", loss=1.0)


def test_gradient_that_is_not_finite_moves_no_weight_and_no_moment(alone: Gang, tiny_dataset: Path) -> None:
    run = run_of(alone, tiny_dataset, 8)
    take_step(run, 1e-3)
    before = {name: tensor.clone() for name, tensor in run.state.tensors().items()}
    poison = run.model.final_norm.weight.register_hook(lambda gradient: gradient * math.nan)
    result = take_step(run, 1e-3)
    poison.remove()
    assert math.isnan(result.gradient_norm.item())
    assert all(torch.equal(tensor, before[name]) for name, tensor in run.state.tensors().items())
    take_step(run, 1e-3)
    assert not torch.equal(run.state.tensors()["model/final_norm.weight"], before["model/final_norm.weight"])


def test_phases_of_a_step_add_up_to_the_step(alone: Gang, tiny_dataset: Path) -> None:
    run = run_of(alone, tiny_dataset, 2)
    began = time.perf_counter()
    seconds = take_step(run, 1e-3).laps.seconds()
    whole = time.perf_counter() - began
    assert set(seconds) == set(PHASES) and seconds["communication"] == 0.0
    assert all(value > 0.0 for phase, value in seconds.items() if phase != "communication")
    assert sum(seconds.values()) <= whole


def test_waiting_for_other_ranks_is_apart_from_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 3.0, 6.0, 10.0])
    monkeypatch.setattr("training.stopwatch.time.perf_counter", lambda: next(clock))
    laps = Laps(CPU)
    laps.mark("forward")
    laps.bucket_is_ready()
    laps.bucket_is_ready()
    laps.mark("backward")
    expected = {"forward": 1.0, "backward": 5.0, "communication": 4.0}
    assert laps.seconds() == {phase: expected.get(phase, 0.0) for phase in PHASES}


def test_utilisation_of_known_hardware() -> None:
    model = GPT(ModelShape(layers=2, heads=2, embedding=32, context=32), 300)
    matrices = 300 * 32 + 2 * (4 * 32 * 32 + 8 * 32 * 32)
    vectors = 2 * (3 * 32 + 32 + 4 * 32 + 32 + 4 * 32) + 2 * 32
    assert multiplying_parameters(model) == matrices + vectors == model.parameter_count() - 32 * 32
    assert training_flops_per_token(10, SHAPE) == 60 + 12 * 2 * 32 * 32
    assert peak_flops_per_second("NVIDIA A100-SXM4-80GB", "bf16") == 312e12
    assert peak_flops_per_second("NVIDIA H100 PCIe", "bf16") == 756e12
    assert peak_flops_per_second("NVIDIA H100 80GB HBM3", "tf32") == 494.7e12
    assert peak_flops_per_second("Tesla T4", "bf16") is None
    assert peak_flops_per_second("Something new", "bf16") is None
