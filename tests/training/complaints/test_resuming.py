"""Bug reports about runs that do not resume exactly from the point where they stopped."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.fake_run import SHAPE, fake_run
from training.checkpoint import Checkpointer
from training.checkpoint.manifest import Manifest
from training.checkpoint.state.training_state import TrainingState
from training.config import TrainingConfig
from training.data.batches import TrainBatches
from training.data.dataset import open_dataset
from training.data.samples import Windows
from training.loop.lr_schedule import learning_rate
from training.loop.optimizer import build_optimizer
from training.loop.step import take_step
from training.models.gpt import GPT
from training.process.distributed import Gang

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


def state_of(device: str = "cpu", scaler: torch.amp.GradScaler | None = None) -> TrainingState:
    torch.manual_seed(0)
    model = GPT(SHAPE, 300).to(device)
    optimizer = build_optimizer(model, TrainingConfig().optimizer)
    return TrainingState(model, optimizer, scaler or torch.amp.GradScaler("cpu", enabled=False))


def test_manifest_restores_the_gradient_scaler() -> None:
    """https://github.com/pytorch/torchtitan/issues/146. The manifest holds the scaler's state."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=7)
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for gradient in (float("inf"), 1.0, 1.0):
        weight.grad = None
        scaler.scale(weight.sum() * gradient).backward()
        scaler.step(optimizer)
        scaler.update()
    empty = {name: {} for name in ("subject", "config")}
    manifest = Manifest.model_construct(scaler=scaler.state_dict(), **empty)
    restored = torch.amp.GradScaler("cpu")
    restored.load_state_dict(json.loads(manifest.model_dump_json(include={"scaler"}))["scaler"])
    assert restored.state_dict() == scaler.state_dict()
    assert restored.get_scale() == 512.0
    assert restored.state_dict()["_growth_tracker"] == 2


def test_checkpointer_restores_the_gradient_scaler(alone: Gang, tmp_path: Path) -> None:
    """https://github.com/huggingface/accelerate/issues/4289, with a store and a new process."""
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0, growth_interval=9)
    state = state_of(scaler=scaler)
    first = Checkpointer(str(tmp_path), state.model, state.optimizer, scaler)
    first.resume()
    scaler.scale(state.model.final_norm.weight.sum()).backward()
    scaler.step(state.optimizer)
    scaler.update()
    first.save(1, wait=True)
    first.close()
    again = state_of(scaler=torch.amp.GradScaler("cpu", init_scale=2.0))
    second = Checkpointer(str(tmp_path), again.model, again.optimizer, again.scaler, generation=1)
    second.resume()
    second.close()
    assert again.scaler.state_dict() == scaler.state_dict()
    assert again.scaler.state_dict()["_growth_tracker"] == 1


def test_skipped_step_advances_schedule_and_data_but_no_weight(alone: Gang, tiny_dataset: Path) -> None:
    """https://github.com/Lightning-AI/pytorch-lightning/issues/18828.

    Here the schedule is a function of the data consumed. A skipped step consumes its batch, as on every other rank and
    in every repetition, and changes neither the weights nor the optimizer's step count.
    """
    state = state_of(scaler=torch.amp.GradScaler("cpu", init_scale=4.0))
    run = fake_run(alone, tiny_dataset, state)
    take_step(run, 1e-3)
    before = {name: tensor.clone() for name, tensor in state.tensors().items()}
    overflow = state.model.final_norm.weight.register_hook(lambda gradient: gradient * float("inf"))
    take_step(run, 1e-3)
    overflow.remove()
    assert (state.step, state.position) == (2, 16)
    assert all(torch.equal(tensor, before[name]) for name, tensor in state.tensors().items())
    assert state.scaler.get_scale() == 2.0
    take_step(run, learning_rate(state.step, run.config))
    assert not torch.equal(state.tensors()["model/final_norm.weight"], before["model/final_norm.weight"])


def test_records_after_a_resume_equal_those_of_an_uninterrupted_run(gangs: Any, tiny_config: dict[str, Any]) -> None:
    """Learning rate, gradient norm and loss, with dropout; at every point of warm-up and decay.

    https://github.com/Lightning-AI/pytorch-lightning/issues/1772, https://github.com/huggingface/transformers/issues/17032
    """
    config = {**tiny_config, "steps": 12, "checkpoint": {"interval_steps": 3}, "schedule": {"warmup_steps": 5}}
    uninterrupted = gangs.finish("uninterrupted", config, checkpoints=str(gangs._root / "uninterrupted-checkpoints"))
    seen: dict[int, tuple[float, ...]] = {}
    for generation, stop_after in enumerate((2, 3, 12), start=1):
        run = gangs.start(f"run-{generation}", config, generation=generation)
        run.wait_for(lambda run=run, stop_after=stop_after: len(run.losses()) >= stop_after or run.records("end"))
        (run.directory / "stop").touch()
        run.wait()
        seen |= values(run)
    gangs.finish("last", config, generation=9)
    assert seen.items() <= values(uninterrupted).items()


def values(run: Any) -> dict[int, tuple[float, ...]]:
    names = ("loss", "learning_rate", "gradient_norm")
    return {record["step"]: tuple(record[name] for name in names) for record in run.records("step")}


def test_resume_continues_with_unseen_batches(alone: Gang, tiny_dataset: Path) -> None:
    """A resume works in the first epoch and in later ones: https://github.com/paiml/entrenar/issues/294."""

    def batches() -> TrainBatches:
        return TrainBatches(Windows(open_dataset(tiny_dataset).split("train"), 32), 1, alone.device, 8)

    once, again = batches(), batches()
    epoch = once.samples
    uninterrupted = [once.samples_at(position, range(8)).tolist() for position in range(0, 2 * epoch, 8)]
    for step in (3, epoch // 8, epoch // 8 + 1, len(uninterrupted) - 1):
        assert again.samples_at(step * 8, range(8)).tolist() == uninterrupted[step]
    first_epoch = [sample for batch in uninterrupted for sample in batch][:epoch]
    assert sorted(first_epoch) == list(range(epoch)), "each sample once"


def test_loads_no_pickle_from_a_store() -> None:
    """https://github.com/huggingface/transformers/issues/40500: there is no pickle that a loader could reject or
    execute."""
    root = Path(__file__).resolve().parents[3] / "training"
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                called = f"{node.value.id}.{node.attr}"
                assert called not in {"torch.load", "torch.save", "pickle.load", "pickle.loads", "numpy.load"}, path


@pytest.mark.parametrize("device", DEVICES)
def test_optimizer_state_is_restored_to_the_device_of_the_parameter(device: str) -> None:
    """The step count is also restored, and the next step works: https://github.com/pytorch/pytorch/issues/104767."""

    def step(state: TrainingState) -> None:
        tokens = torch.ones(1, 4, dtype=torch.long, device=device)
        state.model(tokens, tokens).backward()
        state.optimizer.step()
        state.optimizer.zero_grad()

    state = state_of(device)
    step(state)
    saved = {name: tensor.detach().cpu().clone() for name, tensor in state.tensors().items()}
    restored = state_of(device)
    restored.load(saved)
    for parameter, kept in restored.optimizer.state.items():
        assert {value.device for value in kept.values()} == {parameter.device}
    step(state)
    step(restored)
    expected = state.tensors()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in restored.tensors().items())
