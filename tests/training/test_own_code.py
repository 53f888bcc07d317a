"""People's own models, datasets and scripts: the examples, killed and resumed; and what is refused in words."""

from __future__ import annotations

import json
import pickle
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from tests.training.conftest import Gangs, Trained
from training.config import TrainingConfig, describe_problems
from training.data import mapped
from training.data.mapped import MappedTrainBatches, MappedValidationBatches
from training.data.padding import pad
from training.data.samples import NO_TARGET
from training.errors import ConfigurationError
from training.own_code import SummedLoss, build_dataset, build_model

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CPU = torch.device("cpu")


def environment_of(example: str) -> dict[str, str]:
    return {"PYTHONPATH": str(EXAMPLES / example)}


def config_of(example: str, **changes: Any) -> dict[str, Any]:
    return {**json.loads((EXAMPLES / example / "config.json").read_text()), **changes}


def kill_and_resume(gangs: Gangs, example: str, config: dict[str, Any], at_step: int, world_size: int = 1) -> Trained:
    """Run to the end; and again, killed after a checkpoint and resumed; the losses must have the same bits."""
    options: dict[str, Any] = {"environment": environment_of(example)}
    whole = gangs.finish("whole", config, world_size, checkpoints=str(gangs._root / "whole-store"), **options)
    broken = gangs.start("broken", config, world_size, generation=1, **options)
    broken.wait_for_step(at_step)
    broken.kill()  # at once, lest it gets to its end
    broken.committed_steps()
    resumed = gangs.finish("resumed", config, world_size, generation=2, **options)
    losses = resumed.losses()
    assert losses and min(losses) > 1, "it began anew"
    assert losses == {step: loss for step, loss in whole.losses().items() if step in losses}
    return resumed


def processes_in(directory: Path) -> list[int]:
    return [
        process.pid
        for process in psutil.process_iter(["cwd"])
        if process.info["cwd"] and Path(process.info["cwd"]).is_relative_to(directory)
    ]


def test_vision_example(gangs: Gangs) -> None:
    config = config_of(
        "vision",
        steps=24,
        data={"function": "shapes:dataset", "options": {"images": 70, "pixels": 12}, "workers": 1},
        global_batch_sequences=8,
        micro_batch_sequences=3,
        checkpoint={"interval_steps": 4},
        validation={"interval_steps": 8, "batches": 1},
    )
    resumed = kill_and_resume(gangs, "vision", config, at_step=6)
    deadline = time.monotonic() + 60
    while left := processes_in(gangs._root):
        assert time.monotonic() < deadline, f"workers of killed trainers live on: {left}"
        time.sleep(0.05)
    (start,) = resumed.records("start")
    assert start["bytes_per_token"] is None
    assert all(record["samples_per_second"] > 0 for record in resumed.records("step"))
    assert resumed.records("validation")[-1].keys().isdisjoint({"bits_per_byte", "unigram_loss"})


def test_language_model_example(gangs: Gangs) -> None:
    config = config_of(
        "language_model",
        steps=40,
        global_batch_sequences=8,
        micro_batch_sequences=3,
        model={"function": "recurrent:model", "context": 32, "options": {"channels": 16, "layers": 1}},
        checkpoint={"interval_steps": 4},
        validation={"interval_steps": 8, "batches": 1},
        threads=1,
    )
    resumed = kill_and_resume(gangs, "language_model", config, at_step=6)
    assert resumed.records("validation")[-1]["bits_per_byte"] > 0


def test_script_example(gangs: Gangs) -> None:
    config = config_of("script", arguments=["--steps", "80", "--save-every", "6"])
    kill_and_resume(gangs, "script", config, at_step=8, world_size=2)


def test_script_saves_and_ends_when_told_to_stop(gangs: Gangs) -> None:
    config = config_of("script", arguments=["--steps", "100000", "--save-every", "100000"])
    run = gangs.start("stopped", config, environment=environment_of("script"))
    run.wait_for_step(3)
    (run.directory / "stop").write_text(json.dumps({"reason": "the node leaves"}))
    assert run.wait() == [75]
    (outcome,) = run.outcomes()
    assert outcome["outcome"] == "stopped" and outcome["step"] == outcome["checkpoint_step"] >= 3
    assert outcome["message"] == f"the node leaves; stopped after step {outcome['step']}"
    assert run.committed_steps() == [outcome["step"]]


@pytest.mark.parametrize(
    ("entrypoint", "code", "outcome", "words"),
    [
        ("absent.py", None, "bad_configuration", "entrypoint: absent.py: there is no such file"),
        ("fails.py", "import sys; sys.exit(3)", "failed", "fails.py: ended with 3"),
        ("raises.py", "raise ValueError('no such luck')", "failed", "no such luck"),
        ("ends.py", "import sys; assert sys.argv[1:] == ['a b']", "finished", "ends.py is done"),
    ],
)
def test_ends_of_scripts(
    gangs: Gangs, tmp_path: Path, entrypoint: str, code: str | None, outcome: str, words: str
) -> None:
    if code is not None:
        (tmp_path / entrypoint).write_text(code)
    config = {"entrypoint": entrypoint, "arguments": ["a b"]}
    run = gangs.start("run", config, environment={"PYTHONPATH": str(tmp_path)})
    run.wait()
    (ended,) = run.outcomes()
    assert ended["outcome"] == outcome and words in ended["message"]


class Noisy:
    """Items that tell which sample they are, and what each of three random generators gave for it."""

    def __init__(self, length: int = 23) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {
            "number": number,
            "noise": torch.stack([torch.rand(()), torch.tensor(random.random() + np.random.rand())]),
        }


def seen(batches: MappedTrainBatches, positions: range, share: range = range(8)) -> list[list[Any]]:
    rows = []
    for position in positions:
        for (batch,) in batches.micro_batches(position, share, 3):
            rows += [[int(n), *noise] for n, noise in zip(batch["number"], batch["noise"].tolist(), strict=True)]
    return rows


def test_order_and_noise_are_those_of_the_position_at_any_workers_world_and_resumption() -> None:
    def batches(workers: int) -> MappedTrainBatches:
        return MappedTrainBatches(Noisy(), 1, CPU, 8, workers, None)

    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    whole = seen(batches(0), range(0, 64, 8))
    assert torch.equal(torch.rand(3), expected), "the process keeps its own random numbers"
    assert sorted(row[0] for row in whole[:23]) == list(range(23))
    assert whole[0][1:] != whole[1][1:]
    assert seen(batches(0), range(24, 64, 8)) == whole[24:], "resumed in the second epoch"
    with_workers = batches(1)
    assert seen(with_workers, range(0, 24, 8)) == whole[:24]
    assert seen(with_workers, range(40, 48, 8)) == whole[40:48], "moved to another place"
    ranks = [seen(batches(0), range(16, 24, 8), range(first, first + 2)) for first in range(0, 8, 2)]
    assert [row for rows in ranks for row in rows] == whole[16:24]
    assert with_workers._loader.pin_memory is False and with_workers._loader.persistent_workers


def test_validation_is_the_same_every_time() -> None:
    batches = MappedValidationBatches(Noisy(), 10, CPU)
    (first,), (again,) = batches.rows(range(10)), batches.rows(range(10))
    assert batches.loss_terms() == batches.sequences == len(set(first["number"].tolist())) == 10
    assert torch.equal(first["noise"], again["noise"])


class Ragged(Noisy):
    def __getitem__(self, number: int) -> Any:
        return torch.arange(number % 5 + 1)


class Padded(Ragged):
    def collate_fn(self, items: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        return pad(items, NO_TARGET, multiple_of=4)


def test_ragged_samples_are_refused_or_padded() -> None:
    with pytest.raises(ConfigurationError, match="samples cannot be put into one batch .* training.data.padding.pad"):
        MappedTrainBatches(Ragged(), 1, CPU, 8, 0, None).example(4)
    padded, mask = MappedTrainBatches(Padded(), 1, CPU, 8, 0, None).example(4)
    assert padded.shape == mask.shape == (4, 4)
    assert mask.sum(1).tolist() == [1, 2, 3, 4]
    assert padded[1].tolist() == [0, 1, NO_TARGET, NO_TARGET]


def test_dataset_that_workers_cannot_have() -> None:
    dataset = Noisy()
    dataset.length = lambda: 3  # type: ignore[assignment, return-value]
    with pytest.raises((AttributeError, pickle.PicklingError)):
        pickle.dumps(dataset)
    with pytest.raises(ConfigurationError, match="cannot be given to worker processes .* or set data.workers: 0"):
        mapped._require_picklable(dataset)


def test_batches_that_shared_memory_has_no_room_for() -> None:
    with pytest.raises(ConfigurationError, match=r"/dev/shm: \d+ MiB are free, and .* .docker run --shm-size"):
        mapped._require_shared_memory(1 << 50, 4)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"own_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(
        "import torch\n"
        "def number(): return 3\n"
        "def a_class(): return torch.nn.Linear\n"
        "def frozen(): return torch.nn.ReLU()\n"
        "def wants(size): return torch.nn.Linear(size, size)\n"
        "def stream(split): return iter([1])\n"
        "def empty(split, directory): return []\n"
        "thing = 5\n"
    )
    (tmp_path / f"{name}_broken.py").write_text("import module_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    return name


@pytest.mark.parametrize(
    ("function", "options", "words"),
    [
        ("number", {}, "returned int \\(3\\); it must return a torch.nn.Module"),
        ("a_class", {}, "returned type .*not its class"),
        ("frozen", {}, "a model without parameters that can be trained"),
        ("wants", {}, "wants 'size'; give it in options"),
        ("wants", {"size": 2, "sise": 3}, "has no parameter 'sise', which options give; it takes size"),
        ("thing", {}, "has no function thing"),
        ("nothing", {}, "has nothing called nothing"),
    ],
)
def test_models_that_are_none(module: str, function: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        build_model(f"{module}:{function}", options, vocabulary_size=300)


def test_modules_that_are_none(module: str) -> None:
    with pytest.raises(ConfigurationError, match="there is no module absent_module; put it into training.code"):
        build_model("absent_module.models:build", {})
    with pytest.raises(ModuleNotFoundError, match="module_that_is_not_there"):
        build_model(f"{module}_broken:build", {})


def test_datasets_that_are_none(module: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="it must return a map-style dataset"):
        build_dataset(f"{module}:stream", {}, "train", tmp_path)
    with pytest.raises(ConfigurationError, match="returned an empty dataset for 'train'"):
        build_dataset(f"{module}:empty", {}, "train", tmp_path)


class Returning(nn.Module):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def forward(self, *batch: Any, **named: Any) -> Any:
        return self.value


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.zeros(3), "returned a float32 tensor of shape \\[3\\]"),
        (torch.tensor(3), "returned a int64 tensor of shape \\[\\]"),
        (0.5, "returned float \\(0.5\\)"),
        ((torch.tensor(0.5), None), "returned tuple"),
    ],
)
def test_losses_that_are_none(value: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{words}.*must return the mean loss"):
        SummedLoss(Returning(value), counts_targets=False, path="m:f")(torch.zeros(2, 3))


def test_mean_becomes_the_sum_over_what_was_averaged() -> None:
    targets = torch.tensor([[1, 2, NO_TARGET], [1, NO_TARGET, NO_TARGET]])
    model = Returning(torch.tensor(0.5))
    assert SummedLoss(model, counts_targets=True, path="m:f")(targets, targets).item() == 1.5
    assert SummedLoss(model, counts_targets=False, path="m:f")({"image": torch.zeros(4, 2)}).item() == 2.0


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"data": {"workers": 2}}, "workers is for a dataset of your own"),
        ({"data": {"function": "m:f", "workers": 0, "prefetch_batches": 4}}, "prefetch_batches: 4: only workers fetch"),
        ({"data": {"function": "m:f", "documents": "apart"}}, "documents: apart is for tokens"),
        ({"data": {"function": "m.f"}}, "should match pattern"),
        ({"model": {"function": "m:f", "layers": 2, "preset": "demo"}}, "layers, preset: function 'm:f' decides that"),
        ({"model": {"options": {"size": 2}}}, "options are for a function of your own"),
        ({"entrypoint": "train.py", "steps": 5}, "steps: entrypoint 'train.py' decides that"),
        ({"arguments": ["--fast"]}, "arguments are for an entrypoint"),
    ],
)
def test_configs_that_contradict_themselves(document: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TrainingConfig.model_validate(document)
    assert words in "\n".join(describe_problems(caught.value))


def test_examples_configs_survive_the_run_document() -> None:
    for path in sorted(EXAMPLES.glob("*/config.json")):
        config = TrainingConfig.model_validate_json(path.read_text())
        assert TrainingConfig.model_validate(config.model_dump(mode="json")) == config


def test_own_data_without_a_model_for_it(gangs: Gangs) -> None:
    config = config_of("vision", model={})
    run = gangs.start("run", config, environment=environment_of("vision"))
    assert run.wait() == [78]
    assert "shapes:dataset gives no tokens for a GPT; name your model.function too" in run.outcomes()[0]["message"]
