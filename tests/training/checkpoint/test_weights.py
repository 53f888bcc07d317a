"""Loading only the weights of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.training.checkpoint.runs import save, start
from training.__main__ import main
from training.checkpoint import load_weights
from training.checkpoint.retention import Retention
from training.checkpoint.storage.urls import open_backend
from training.checkpoint.store import checkpoint_entries, list_checkpoints, read_manifest
from training.checkpoint.tags import put_tag
from training.errors import ConfigurationError, CorruptCheckpointError, NotFoundError

STEPS = 6


def build(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(300, 300), nn.BatchNorm1d(300), nn.Linear(300, 2, bias=False))


def state_of(model: nn.Module) -> dict[str, torch.Tensor]:
    tensors = {f"model/{name}": tensor for name, tensor in model.state_dict().items()}
    moments = {f"optimizer/{name}/exp_avg": torch.rand_like(each) for name, each in model.named_parameters()}
    return tensors | moments


@pytest.fixture
def store(tmp_path: Path) -> str:
    """Checkpoints of steps 1 to 3, of models with these seeds; the first one is tagged."""
    backend = open_backend(str(tmp_path))
    writer = start(backend, retention=Retention(4))
    for step in (1, 2, 3):
        save(writer, step, state_of(build(step)))
    put_tag(backend, "paper", list(checkpoint_entries(backend))[-1])
    return str(tmp_path)


@pytest.mark.parametrize(("selector", "seed"), [("", 3), ("#2", 2), ("#paper", 1)])
def test_loads_the_weights_of_any_checkpoint(store: str, selector: str, seed: int) -> None:
    before = {path: path.stat().st_mtime_ns for path in Path(store).rglob("*")}
    model, wanted = build(9), build(seed)
    assert load_weights(store + selector, nn.DataParallel(model)).entry.step == seed
    assert all(torch.equal(one, wanted.state_dict()[name]) for name, one in model.state_dict().items())
    assert {path: path.stat().st_mtime_ns for path in Path(store).rglob("*")} == before, "the store was written to"


def test_converts_to_the_type_of_the_model(store: str) -> None:
    model = build(9).half()
    load_weights(store, model)
    for name, tensor in build(3).half().state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor)


def test_chunks_of_the_optimizer_are_not_read(store: str) -> None:
    newest = next(list_checkpoints(open_backend(store)))
    assert newest.manifest is not None
    (part,) = newest.manifest.parts
    begin, damaged = 0, 0
    weights = [record for name, record in part.tensors.items() if name.startswith("model/")]
    for chunk in part.chunks:
        end = begin + chunk.bytes
        if not any(each.offset_bytes < end and begin < each.offset_bytes + each.bytes for each in weights):
            (Path(store) / chunk.key).write_bytes(b"?")
            damaged += 1
        begin = end
    assert damaged
    load_weights(store, build(9))


def test_reports_mismatches_and_changes_nothing(store: str) -> None:
    other = nn.Sequential(nn.Linear(300, 300), nn.BatchNorm1d(300), nn.Linear(300, 3))
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    with pytest.raises(ConfigurationError) as caught:
        load_weights(store, other)
    assert "does not have the model's tensor 2.bias" in str(caught.value)
    assert "2.weight has shape [2, 300], but the model's has [3, 300]" in str(caught.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in other.state_dict().items())
    with pytest.raises(NotFoundError, match="no such checkpoint"):
        load_weights(f"{store}#7", build(9))
    backend = open_backend(store)
    for chunk in read_manifest(backend, next(checkpoint_entries(backend))).chunks:
        (Path(store) / chunk.key).write_bytes(b"?")
    with pytest.raises(CorruptCheckpointError, match="is damaged"):
        load_weights(store, build(9))


def test_initial_weights_apply_only_to_a_new_run(gangs: Any, tiny_config: dict[str, Any]) -> None:
    plain = {**tiny_config, "model": {**tiny_config["model"], "dropout": 0.0}}
    first = gangs.finish("first", {**plain, "steps": STEPS})
    config = {**plain, "steps": 3, "seed": 7, "initial_weights": f"{first.checkpoints}#{STEPS}"}
    checkpoints = str(gangs._root / "tuned")
    random = gangs.finish("random", {**config, "initial_weights": None}, checkpoints=str(gangs._root / "random-store"))
    alone = gangs.finish("alone", config, checkpoints=str(gangs._root / "alone-store"))
    tuned = gangs.finish("tuned", {**config, "steps": 2}, 2, checkpoints=checkpoints)
    assert tuned.records("start")[0]["resumed_from_step"] is None
    assert f"the run starts from the weights of {first.checkpoints}#" in tuned.errors()
    assert tuned.losses()[1] == pytest.approx(alone.losses()[1], rel=1e-4)
    assert tuned.losses()[1] < random.losses()[1] - 0.1
    again = gangs.finish("again", config, checkpoints=checkpoints, generation=2)
    assert again.records("start")[0]["resumed_from_step"] == 2
    assert "starts from the weights" not in again.errors()


def test_weights_of_another_tokenizer_are_refused(gangs: Any, tiny_config: dict[str, Any], tmp_path: Path) -> None:
    first = gangs.finish("first", {**tiny_config, "steps": 2})
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("other words train another tokenizer " * 2000)
    (tmp_path / "text" / "b.txt").write_text("and some more of them for validation " * 2000)
    arguments = ["--input", str(tmp_path / "text"), "--output", str(tmp_path), "--name", "other"]
    assert main(["tokenize", *arguments, "--vocabulary-size", "280", "--validation-share", "0.5"]) == 0
    config = {**tiny_config, "steps": 2, "initial_weights": first.checkpoints}
    run = gangs.start("other", config, dataset=tmp_path / "other", checkpoints=str(tmp_path / "other-store"))
    assert run.wait() == [78], run.errors()
    assert "trained with the tokenizer of dataset 'tiny'" in run.outcomes()[0]["message"]
