"""One optimizer step: accumulation, state by name, schedule, precision, timing."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.fake_run import SHAPE, fake_run
from training.checkpoint.state.generators import seed_random_state
from training.checkpoint.state.training_state import TrainingState
from training.config import ModelShape, TrainingConfig
from training.errors import ConfigurationError
from training.loop.interruption import Interruption
from training.loop.lr_schedule import learning_rate
from training.loop.optimizer import build_optimizer
from training.loop.step import take_step
from training.models.flops import multiplying_parameters, peak_flops_per_second, training_flops_per_token
from training.models.gpt import GPT
from training.observe.metrics import MetricsFile
from training.process.distributed import Gang, join_gang
from training.process.precision import Precision, choose_precision
from training.process.stopwatch import PHASES, Laps

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def alone() -> Iterator[Gang]:
    gang = join_gang()
    yield gang
    gang.leave()


def run_of(gang: Gang, dataset: Path, micro_batch_size: int) -> Any:
    torch.manual_seed(0)
    model = GPT(SHAPE, 300)
    optimizer = build_optimizer(model, TrainingConfig().optimizer)
    return fake_run(gang, dataset, TrainingState(model, optimizer, Precision("fp32", "cpu").scaler()), micro_batch_size)


def test_accumulation_changes_only_the_order_of_additions(alone: Gang, tiny_dataset: Path) -> None:
    runs = [run_of(alone, tiny_dataset, size) for size in (8, 1, 3)]
    for _ in range(5):
        first, *others = [take_step(run, 1e-3) for run in runs]
        for other in others:
            assert other.loss.item() == pytest.approx(first.loss.item(), abs=1e-6)
            assert other.gradient_norm.item() == pytest.approx(first.gradient_norm.item(), rel=1e-5)
    assert [(run.state.step, run.state.position) for run in runs] == [(5, 40)] * 3


@pytest.mark.parametrize(("ranks", "moves"), [(1, True), (0, False)])
def test_a_step_changes_nothing_unless_all_ranks_have_passed_its_gate(
    ranks: int, moves: bool, alone: Gang, tiny_dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(alone, tiny_dataset, 8)
    take_step(run, 1e-3)
    run.is_gated = True
    monkeypatch.setattr(Gang, "pass_gate", lambda gang, numbers: numbers[0].fill_(ranks))
    before = {name: tensor.clone() for name, tensor in run.state.tensors().items()}
    result = take_step(run, 1e-3)
    after = run.state.tensors()
    assert all(not torch.equal(before[name], after[name]) for name in before) is moves
    assert all(torch.equal(before[name], after[name]) for name in before) is not moves
    assert result.passed is not None and result.passed.item() == ranks


def test_untrained_model_has_the_loss_of_a_uniform_guess(alone: Gang, tiny_dataset: Path) -> None:
    result = take_step(run_of(alone, tiny_dataset, 8), 1e-3)
    assert result.loss.item() == pytest.approx(math.log(300), abs=0.2)


def test_attention_is_causal() -> None:
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
    holder = torch.nn.DataParallel(torch.compile(model)) if wrapped else model
    return TrainingState(holder, optimizer, torch.amp.GradScaler("cpu", enabled=False))


@pytest.mark.parametrize("wrapped", [False, True])
def test_state_loads_by_bare_names_into_wrapped_and_bare_models(wrapped: bool) -> None:
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


def test_load_rejects_other_names_and_shapes() -> None:
    state = trained_state()
    saved = dict(state.tensors())
    saved["model/extra"] = saved.pop("model/final_norm.bias")
    saved["model/final_norm.weight"] = torch.zeros(3)
    with pytest.raises(ConfigurationError) as caught:
        state.load(saved)
    message = str(caught.value)
    assert (
        "does not have the model's tensor final_norm.bias" in message
        and "has extra" in message
        and "has shape [3]" in message
    )


def test_schedule() -> None:
    config = TrainingConfig.model_validate({"steps": 100, "schedule": {"warmup_steps": 10, "min_lr_ratio": 0.1}})
    rates = [learning_rate(step, config) for step in range(101)]
    assert rates[0] == pytest.approx(1e-4)
    assert rates[9] == max(rates) == 1e-3
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[100] == pytest.approx(1e-4)
    constant = TrainingConfig.model_validate({"steps": 100, "schedule": {"kind": "constant", "warmup_steps": 0}})
    assert {learning_rate(step, constant) for step in range(100)} == {1e-3}


def test_only_matrices_decay() -> None:
    model = GPT(SHAPE, 300)
    decayed, others = build_optimizer(model, TrainingConfig().optimizer).param_groups
    assert {parameter.dim() for parameter in decayed["params"]} == {2}
    assert {parameter.dim() for parameter in others["params"]} == {1}
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    assert len(decayed["params"]) + len(others["params"]) == len(list(model.parameters()))


def test_precision_of_a_cpu() -> None:
    assert choose_precision("auto", CPU).format == "fp32"
    assert choose_precision("bf16", CPU).format == "bf16"
    for wanted in ("fp16", "tf32"):
        with pytest.raises(ConfigurationError, match=f"{wanted} requires a GPU"):
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
        remaining_seconds = interruption.seconds_to_deadline()
        assert interruption.reason() == "reclaimed" and remaining_seconds is not None and remaining_seconds < 0
        (tmp_path / "stop").unlink()
        signal.raise_signal(signal.SIGTERM)
        assert interruption.wants_stop and interruption.reason() == "received SIGTERM"
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def test_non_finite_metrics_become_null(tmp_path: Path) -> None:
    path = tmp_path / "run" / "metrics.jsonl"
    MetricsFile(path).write("step", loss=float("nan"), step=1)
    assert '"loss": null' in path.read_text()
    assert path.read_text().endswith("\n")
    MetricsFile(None).write("step", loss=1.0)


def test_non_finite_gradient_updates_neither_weights_nor_moments(alone: Gang, tiny_dataset: Path) -> None:
    run = run_of(alone, tiny_dataset, 8)
    take_step(run, 1e-3)
    before = {name: tensor.clone() for name, tensor in run.state.tensors().items()}
    hook = run.model.final_norm.weight.register_hook(lambda gradient: gradient * math.nan)
    result = take_step(run, 1e-3)
    hook.remove()
    assert math.isnan(result.gradient_norm.item())
    assert all(torch.equal(tensor, before[name]) for name, tensor in run.state.tensors().items())
    take_step(run, 1e-3)
    assert not torch.equal(run.state.tensors()["model/final_norm.weight"], before["model/final_norm.weight"])


def test_phase_times_sum_to_at_most_the_step_time(alone: Gang, tiny_dataset: Path) -> None:
    run = run_of(alone, tiny_dataset, 2)
    started = time.perf_counter()
    seconds = take_step(run, 1e-3).laps.seconds()
    elapsed = time.perf_counter() - started
    assert set(seconds) == set(PHASES) and seconds["communication"] == 0.0
    assert all(value > 0.0 for phase, value in seconds.items() if phase != "communication")
    assert sum(seconds.values()) <= elapsed


def test_waiting_for_other_ranks_counts_as_communication(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 3.0, 6.0, 10.0])
    monkeypatch.setattr("training.process.stopwatch.time.perf_counter", lambda: next(clock))
    laps = Laps(CPU)
    laps.mark("forward")
    laps.bucket_is_ready()
    laps.bucket_is_ready()
    laps.mark("backward")
    expected = {"forward": 1.0, "backward": 5.0, "communication": 4.0}
    assert laps.seconds() == {phase: expected.get(phase, 0.0) for phase in PHASES}


def test_flops_and_peaks_of_known_hardware() -> None:
    model = GPT(ModelShape(num_hidden_layers=2, num_attention_heads=2, hidden_size=32, sequence_length=32), 300)
    matrices = 300 * 32 + 2 * (4 * 32 * 32 + 8 * 32 * 32)
    vectors = 2 * (3 * 32 + 32 + 4 * 32 + 32 + 4 * 32) + 2 * 32
    assert multiplying_parameters(model) == matrices + vectors == model.parameter_count() - 32 * 32
    assert training_flops_per_token(10, SHAPE) == 60 + 12 * 2 * 32 * 32
    assert peak_flops_per_second("NVIDIA A100-SXM4-80GB", "bf16") == 312e12
    assert peak_flops_per_second("NVIDIA H100 PCIe", "bf16") == 756e12
    assert peak_flops_per_second("NVIDIA H100 80GB HBM3", "tf32") == 494.7e12
    assert peak_flops_per_second("Tesla T4", "bf16") is None
    assert peak_flops_per_second("Something new", "bf16") is None
