"""Custom models, datasets and scripts: the examples, killed and resumed, and rejected code."""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from pydantic import ValidationError
from torch import nn
from torch.utils.data import IterableDataset

from tests.training.conftest import Gangs, Trained
from training.config import TrainingConfig, describe_problems
from training.config.parallel import ParallelConfig
from training.data import workers
from training.data.mapped import MappedTrainBatches, MappedValidationBatches, build_dataset
from training.data.padding import pad
from training.data.samples import NO_TARGET
from training.errors import ConfigurationError, TrainingError
from training.models.user_model import MeanLoss, build_model
from training.process.batch import Batch
from training.process.distributed import Gang
from training.process.precision import Precision
from training.process.replication import Replica

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CPU = torch.device("cpu")


def environment_of(example: str) -> dict[str, str]:
    return {"PYTHONPATH": str(EXAMPLES / example)}


def config_of(example: str, **changes: Any) -> dict[str, Any]:
    return {**json.loads((EXAMPLES / example / "config.json").read_text()), **changes}


def kill_and_resume(gangs: Gangs, example: str, config: dict[str, Any], at_step: int, world_size: int = 1) -> Trained:
    """Run to the end; then run again, kill it after a checkpoint, and resume it. The losses must have the same bits."""
    options: dict[str, Any] = {"environment": environment_of(example)}
    unbroken = gangs.finish("unbroken", config, world_size, checkpoints=str(gangs._root / "unbroken-store"), **options)
    broken = gangs.start("broken", config, world_size, generation=1, **options)
    broken.wait_for_step(at_step)
    broken.kill()  # before it finishes
    broken.committed_steps()
    resumed = gangs.finish("resumed", config, world_size, generation=2, **options)
    losses = resumed.losses()
    assert losses and min(losses) > 1, "it did not resume"
    assert losses == {step: loss for step, loss in unbroken.losses().items() if step in losses}
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
        global_batch_size=8,
        micro_batch_size=3,
        checkpoint={"interval_steps": 4},
        validation={"interval_steps": 8, "batches": 1},
    )
    resumed = kill_and_resume(gangs, "vision", config, at_step=6)
    deadline = time.monotonic() + 60
    while left := processes_in(gangs._root):
        assert time.monotonic() < deadline, f"workers of killed trainers are still alive: {left}"
        time.sleep(0.05)
    (start,) = resumed.records("start")
    assert start["bytes_per_token"] is None
    assert all(record["samples_per_second"] > 0 for record in resumed.records("step"))
    assert resumed.records("validation")[-1].keys().isdisjoint({"bits_per_byte", "unigram_loss"})


def test_language_model_example(gangs: Gangs) -> None:
    config = config_of(
        "language_model",
        steps=40,
        global_batch_size=8,
        micro_batch_size=3,
        model={"function": "recurrent:model", "sequence_length": 32, "options": {"channels": 16, "layers": 1}},
        checkpoint={"interval_steps": 4},
        validation={"interval_steps": 8, "batches": 1},
        threads=1,
    )
    resumed = kill_and_resume(gangs, "language_model", config, at_step=6)
    assert resumed.records("validation")[-1]["bits_per_byte"] > 0


def test_script_example(gangs: Gangs) -> None:
    config = config_of("script", arguments=["--steps", "80", "--save-every", "6"])
    kill_and_resume(gangs, "script", config, at_step=8, world_size=2)


def test_script_saves_and_exits_on_a_stop_request(gangs: Gangs) -> None:
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
    ("entrypoint", "code", "outcome", "message"),
    [
        ("absent.py", None, "bad_configuration", "entrypoint: absent.py: no such file"),
        ("fails.py", "import sys; sys.exit(3)", "failed", "fails.py: exited with 3"),
        ("raises.py", "raise ValueError('no such luck')", "failed", "no such luck"),
        ("ends.py", "import sys; assert sys.argv[1:] == ['a b']", "finished", "ends.py finished"),
    ],
)
def test_outcomes_of_scripts(
    gangs: Gangs, tmp_path: Path, entrypoint: str, code: str | None, outcome: str, message: str
) -> None:
    if code is not None:
        (tmp_path / entrypoint).write_text(code)
    config = {"entrypoint": entrypoint, "arguments": ["a b"]}
    run = gangs.start("run", config, environment={"PYTHONPATH": str(tmp_path)})
    run.wait()
    (ended,) = run.outcomes()
    assert ended["outcome"] == outcome and message in ended["message"]


class Noisy:
    """Items with their sample number, and one value from each of three random number generators."""

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
        for micro_batch in batches.micro_batches(position, share, 3):
            (batch,) = micro_batch.arguments
            rows += [[int(n), *noise] for n, noise in zip(batch["number"], batch["noise"].tolist(), strict=True)]
    return rows


def test_order_and_noise_depend_only_on_the_position() -> None:
    def batches(workers: int) -> MappedTrainBatches:
        return MappedTrainBatches(Noisy(), 1, CPU, 8, workers, None)

    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    whole = seen(batches(0), range(0, 64, 8))
    assert torch.equal(torch.rand(3), expected), "the random state of the process is unchanged"
    assert sorted(row[0] for row in whole[:23]) == list(range(23))
    assert whole[0][1:] != whole[1][1:]
    assert seen(batches(0), range(24, 64, 8)) == whole[24:], "resumed in the second epoch"
    with_workers = batches(1)
    assert seen(with_workers, range(0, 24, 8)) == whole[:24]
    assert seen(with_workers, range(40, 48, 8)) == whole[40:48], "moved to another position"
    ranks = [seen(batches(0), range(16, 24, 8), range(first, first + 2)) for first in range(0, 8, 2)]
    assert [row for rows in ranks for row in rows] == whole[16:24]
    assert with_workers._loader.pin_memory is False and with_workers._loader.persistent_workers


def test_validation_batches_do_not_change() -> None:
    batches = MappedValidationBatches(Noisy(), 10, CPU)
    (first,), (again,) = (batches.rows(range(10)).arguments for _ in range(2))
    assert batches.rows(range(10)).targets == batches.sequences == len(set(first["number"].tolist())) == 10
    assert torch.equal(first["noise"], again["noise"])


class Ragged(Noisy):
    def __getitem__(self, number: int) -> Any:
        return torch.arange(number % 5 + 1)


class Padded(Ragged):
    def collate_fn(self, items: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        return pad(items, NO_TARGET, multiple_of=4)

    def targets_of(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return batch[1].sum()


def test_ragged_samples_are_rejected_or_padded() -> None:
    with pytest.raises(ConfigurationError, match="cannot collate samples .* training.data.padding.pad"):
        MappedTrainBatches(Ragged(), 1, CPU, 8, 0, None).example(4)
    batch = MappedTrainBatches(Padded(), 1, CPU, 8, 0, None).example(4)
    assert batch.targets == 10
    padded, mask = batch.arguments
    assert padded.shape == mask.shape == (4, 4)
    assert mask.sum(1).tolist() == [1, 2, 3, 4]
    assert padded[1].tolist() == [0, 1, NO_TARGET, NO_TARGET]


def test_dataset_that_cannot_be_pickled_is_rejected() -> None:
    dataset = Noisy()
    dataset.length = lambda: 3  # type: ignore[assignment, return-value]
    with pytest.raises((AttributeError, pickle.PicklingError)):
        pickle.dumps(dataset)
    with pytest.raises(
        ConfigurationError, match="cannot pickle the dataset for worker processes .* or set data.workers: 0"
    ):
        workers.require_picklable(dataset)


def test_batches_larger_than_shared_memory_are_rejected() -> None:
    with pytest.raises(ConfigurationError, match=r"/dev/shm: \d+ MiB free, but .* .docker run --shm-size"):
        workers.require_shared_memory(1 << 50, 4)


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
    (tmp_path / f"{name}_broken.py").write_text("import absent_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    return name


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        ("number", {}, "returned int \\(3\\); it must return a torch.nn.Module"),
        ("a_class", {}, "returned type .*not its class"),
        ("frozen", {}, "a model without trainable parameters"),
        ("wants", {}, "requires 'size'; set it in options"),
        ("wants", {"size": 2, "sise": 3}, "has no parameter 'sise', which options sets; its parameters: size"),
        ("thing", {}, "has no function thing"),
        ("nothing", {}, "has no attribute nothing"),
    ],
)
def test_invalid_models_are_rejected(module: str, function: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build_model(f"{module}:{function}", options, vocabulary_size=300)


def test_modules_that_cannot_be_imported_are_rejected(module: str) -> None:
    with pytest.raises(ConfigurationError, match="no module named absent_module; put it in training.code"):
        build_model("absent_module.models:build", {})
    with pytest.raises(ModuleNotFoundError, match="absent_dependency"):
        build_model(f"{module}_broken:build", {})


def test_relative_imports_at_the_import_root_are_rejected(module: str, tmp_path: Path) -> None:
    (tmp_path / f"{module}_relative.py").write_text("from . import layers\n")
    with pytest.raises(ConfigurationError, match="top-level modules in training.code have no parent package"):
        build_model(f"{module}_relative:build", {})


def test_parameters_that_the_optimizer_does_not_support_are_rejected(module: str, tmp_path: Path) -> None:
    """They are rejected before the first step, in which torch 2.13's fused AdamW raises a RuntimeError for each."""
    (tmp_path / f"{module}_odd.py").write_text(
        "import torch\n"
        "def build():\n"
        "    kinds = torch.nn.Embedding, torch.nn.EmbeddingBag\n"
        "    model = torch.nn.Sequential(*[kind(5, 3, sparse=True) for kind in kinds])\n"
        "    model.phase = torch.nn.Parameter(torch.zeros(3, dtype=torch.complex64))\n"
        "    return model\n"
    )
    with pytest.raises(ConfigurationError) as caught:
        build_model(f"{module}_odd:build", {})
    phase, first, second = caught.value.problems
    assert "parameter phase has the type torch.complex64" in phase
    assert first.startswith(f"model.function: {module}_odd:build: 0 has sparse gradients") and ": 1 has" in second


class Detached(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).detach().mean()


def test_loss_without_gradients_is_rejected(alone: Gang) -> None:
    model = Detached(3, 1)
    replica = Replica(MeanLoss(model, path="m:f"), alone, ParallelConfig())
    with pytest.raises(ConfigurationError, match="the loss does not depend on any parameter; do not .* detach"):
        replica.prime(model, Batch((torch.zeros(2, 3),), 2), Precision("fp32", "cpu"), lambda: None)


def test_parameter_that_one_rank_does_not_use_is_named(gangs: Gangs, tmp_path: Path) -> None:
    """DDP would wait for its gradient until the collective's timeout."""
    (tmp_path / "own_branches.py").write_text(
        "import torch\n"
        "class Model(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.first, self.second, self.passes = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1), 0\n"
        "    def forward(self, x):\n"
        "        self.passes += 1\n"
        "        skips = self.passes > 4 and torch.distributed.get_rank() == 1\n"
        "        return (self.second(x) if skips else self.first(self.second(x))).mean()\n"
        "def data(): return torch.zeros(8, 1)\n"
    )
    config = {
        "steps": 10,
        "global_batch_size": 4,
        "micro_batch_size": 2,
        "model": {"function": "own_branches:Model"},
        "data": {"function": "own_branches:data", "workers": 0},
        "threads": 1,
    }
    run = gangs.start("run", config, 2, environment={"PYTHONPATH": str(tmp_path)})
    run.wait()
    message = run.outcomes()[1]["message"]
    assert message.startswith(
        "parallel.find_unused_parameters: false: the loss of this rank's batch does not depend on "
    )
    assert "first.weight, first.bias, so the other ranks wait" in message
    changed = {**config, "parallel": {"find_unused_parameters": True}}
    gangs.finish("fixed", changed, 2, environment={"PYTHONPATH": str(tmp_path)})


class Killer(Noisy):
    def __getitem__(self, number: int) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


def test_killed_worker_is_reported_with_its_likely_cause() -> None:
    batches = MappedTrainBatches(Killer(), 1, CPU, 8, 1, None)
    with pytest.raises(
        TrainingError, match=r"data.function: DataLoader worker .* out of memory .*: lower data.workers"
    ):
        list(batches.micro_batches(0, range(8), 8))


class Stream(IterableDataset[int]):
    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def test_invalid_datasets_are_rejected(module: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="it must return a map-style dataset"):
        build_dataset(f"{module}:stream", {}, "train", tmp_path)
    with pytest.raises(ConfigurationError, match="returned an IterableDataset for 'train'; its samples cannot be read"):
        build_dataset(f"{__name__}:Stream", {}, "train", tmp_path)
    with pytest.raises(ConfigurationError, match="returned an empty dataset for 'train'"):
        build_dataset(f"{module}:empty", {}, "train", tmp_path)


class Returning(nn.Module):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def forward(self, *batch: Any, **named: Any) -> Any:
        return self.value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.zeros(3), "returned a float32 tensor of shape \\[3\\]"),
        (torch.tensor(3), "returned a int64 tensor of shape \\[\\]"),
        (0.5, "returned float \\(0.5\\)"),
        ((torch.tensor(0.5), None), "returned tuple"),
    ],
)
def test_invalid_losses_are_rejected(value: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{message}.*must return the mean loss"):
        MeanLoss(Returning(value), path="m:f")(torch.zeros(2, 3))


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"data": {"workers": 2}}, "workers requires a custom dataset"),
        (
            {"data": {"function": "m:f", "workers": 0, "prefetch_batches": 4}},
            "prefetch_batches: 4: requires loader workers",
        ),
        ({"data": {"function": "m:f", "documents": "apart"}}, "documents: apart requires a token dataset"),
        ({"data": {"function": "m.f"}}, "should match pattern"),
        (
            {"model": {"function": "m:f", "num_hidden_layers": 2, "preset": "demo"}},
            "num_hidden_layers, preset: not used with function 'm:f'",
        ),
        ({"model": {"options": {"size": 2}}}, "options requires a custom model"),
        ({"entrypoint": "train.py", "steps": 5}, "steps: not used with entrypoint 'train.py'"),
        ({"arguments": ["--fast"]}, "arguments requires an entrypoint"),
    ],
)
def test_contradictory_configs_are_rejected(document: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TrainingConfig.model_validate(document)
    assert message in "\n".join(describe_problems(caught.value))


def test_example_configs_round_trip() -> None:
    paths = sorted(EXAMPLES.glob("*/config.json"))
    assert paths
    for path in paths:
        config = TrainingConfig.model_validate_json(path.read_text())
        assert TrainingConfig.model_validate(config.model_dump(mode="json")) == config


def test_custom_dataset_without_a_custom_model_is_rejected(gangs: Gangs) -> None:
    config = config_of("vision", model={})
    run = gangs.start("run", config, environment=environment_of("vision"))
    assert run.wait() == [78]
    assert (
        "shapes:dataset does not return tokens, which a GPT requires; set model.function too"
        in run.outcomes()[0]["message"]
    )
