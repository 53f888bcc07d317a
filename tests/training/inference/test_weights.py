"""Weights in the layouts of this project and of transformers, out of a checkpoint and into a new run."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.training.inference.conftest import Store
from training.__main__ import main
from training.checkpoint.manifest import Subject
from training.checkpoint.selection import select
from training.config import ModelConfig
from training.errors import ConfigurationError
from training.models.hugging_face import config_document, model_config
from training.models.initial_weights import load_initial_weights, open_model_folder
from training.models.named import build_named_model


def export(url: str, folder: Path, *options: str) -> Path:
    assert main(["weights", url, "-o", str(folder), *options]) == 0
    return folder


def subject_of(url: str) -> Subject:
    subject = select(url).manifest.subject
    assert subject is not None
    return subject


def settings_of(url: str) -> ModelConfig:
    return ModelConfig.model_validate(select(url).manifest.config["model"])


@pytest.mark.parametrize("kind", ["gpt", "llama"])
def test_own_layout_loads_strictly(store: Store, tmp_path: Path, kind: str) -> None:
    url, model = store(kind)
    folder = export(f"{url}#3", tmp_path / "out", "--layout", "trainstack")
    state = load_file(folder / "model.safetensors")
    assert "head.weight" in state
    loaded = build_named_model(settings_of(url), subject_of(url).vocabulary_size)
    loaded.load_state_dict(state, strict=True)
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name


def test_weights_have_the_permissions_of_other_new_files(store: Store, tmp_path: Path) -> None:
    url, _ = store("gpt")
    folder = export(url, tmp_path / "out")
    (tmp_path / "new").touch()
    assert (folder / "model.safetensors").stat().st_mode == (tmp_path / "new").stat().st_mode


@pytest.mark.parametrize("kind", ["gpt", "llama"])
def test_the_layout_of_transformers_starts_a_run(
    store: Store, tmp_path: Path, tiny_dataset: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    url, model = store(kind)
    folder = export(url, tmp_path / "out", "--dataset", str(tiny_dataset))
    fresh = build_named_model(settings_of(url), subject_of(url).vocabulary_size)
    with caplog.at_level(logging.WARNING):
        assert load_initial_weights(str(folder), settings_of(url), fresh, subject_of(url)) == str(folder)
    assert not caplog.records
    for name, tensor in model.state_dict().items():
        assert torch.equal(fresh.state_dict()[name], tensor), name


@pytest.mark.parametrize("kind", ["gpt", "llama"])
def test_a_run_with_these_weights_has_the_loss_of_the_checkpoint(
    gangs: Any, store: Store, tmp_path: Path, tiny_dataset: Path, tiny_config: dict[str, Any], kind: str
) -> None:
    url, _ = store(kind)
    folder = export(url, tmp_path / "out", "--dataset", str(tiny_dataset))
    settings = select(url).manifest.config["model"]
    config = {**tiny_config, "steps": 1, "model": settings}
    losses = []
    for name, address in (("store", url), ("folder", str(folder))):
        run = gangs.finish(name, {**config, "initial_weights": address}, checkpoints=str(tmp_path / f"new-{name}"))
        assert f"the run starts from the weights of {address}" in run.errors()
        losses.append(run.losses()[1])
    assert losses[0] == losses[1]


def test_files_of_other_writers(store: Store, tmp_path: Path, tiny_dataset: Path) -> None:
    """A published GPT-2 has no prefix, no head, masks, several files, and more positions than the run needs."""
    url, model = store("gpt")
    folder = export(url, tmp_path / "out")
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    tensors["h.0.attn.bias"] = torch.ones(1, 1, 32, 32)
    tensors["wpe.weight"] = torch.cat([tensors["wpe.weight"], torch.ones(8, 32)])
    names = {name: f"model-0000{place % 2 + 1}-of-00002.safetensors" for place, name in enumerate(tensors)}
    for file in set(names.values()):
        save_file({name: tensors[name] for name in names if names[name] == file}, folder / file)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    document = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**document, "n_positions": 40}))
    fresh = build_named_model(settings_of(url), subject_of(url).vocabulary_size)
    load_initial_weights(str(folder), settings_of(url), fresh, subject_of(url))
    for name, tensor in model.state_dict().items():
        assert torch.equal(fresh.state_dict()[name], tensor), name
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../a.safetensors"}}))
    with pytest.raises(ConfigurationError, match="must name safetensors files"):
        load_initial_weights(str(folder), settings_of(url), fresh, subject_of(url))


def test_weights_of_another_model_are_refused_and_change_nothing(
    store: Store, tmp_path: Path, tiny_dataset: Path
) -> None:
    url, _ = store("gpt")
    other, _ = store("llama")
    folder = str(export(url, tmp_path / "out", "--dataset", str(tiny_dataset)))
    subject, config = subject_of(url), settings_of(url)
    fresh = build_named_model(config, subject.vocabulary_size)
    before = {name: tensor.clone() for name, tensor in fresh.state_dict().items()}
    llama = build_named_model(settings_of(other), subject.vocabulary_size)
    with pytest.raises(ConfigurationError, match="gpt2 with 4 attention heads, but the run's model is a llama"):
        load_initial_weights(folder, settings_of(other), llama, subject)
    heads = config.model_copy(update={"num_attention_heads": 2})
    with pytest.raises(ConfigurationError, match="but the run's model is a gpt with 2"):
        load_initial_weights(folder, heads, fresh, subject)
    with pytest.raises(ConfigurationError, match="differs from the tokenizer of dataset 'tiny'"):
        load_initial_weights(folder, config, fresh, subject.model_copy(update={"tokenizer_sha256": "0" * 64}))
    wide = build_named_model(config, subject.vocabulary_size + 1)
    with pytest.raises(ConfigurationError, match=r"token_embedding.weight has shape \[300, 32\]"):
        load_initial_weights(folder, config, wide, subject)
    path = Path(folder) / "model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "lm_head.weight": tensors["lm_head.weight"] + 1, "x": torch.ones(1)}, path)
    with pytest.raises(ConfigurationError, match="a tied head") as caught:
        load_initial_weights(folder, config, fresh, subject)
    assert "has the tensor x, but the model does not" in str(caught.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in fresh.state_dict().items())


@pytest.mark.parametrize(
    ("preset", "change", "message"),
    [
        ("gpt2", {"model_type": "opt"}, "must be 'gpt2' or 'llama'"),
        ("gpt2", {"activation_function": "relu"}, "activation_function: 'relu'"),
        ("gpt2", {"n_inner": 100}, "n_inner: 100: must be None or 3072"),
        ("gpt2", {"n_head": None}, "n_head: missing"),
        ("gpt2", {"n_head": 7}, "not a multiple"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "must be False"),
        ("llama-1b", {"rms_norm_eps": 1e-6}, "rms_norm_eps"),
        ("llama-1b", {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5}}, "rope_theta: 500000.0"),
        ("llama-1b", {"rope_scaling": {"factor": 2.0}}, "rope_scaling"),
        ("llama-1b", {"intermediate_size": 11008}, "must be 5632"),
        ("llama-1b", {"attention_bias": True}, "attention_bias"),
    ],
)
def test_a_config_of_another_architecture_is_refused(preset: str, change: dict[str, Any], message: str) -> None:
    config = ModelConfig.model_validate({"preset": preset})
    document = config_document(config, 300, 0)
    described = model_config(document, "config.json")
    assert (described.shape, described.is_llama) == (config.shape, config.is_llama)
    assert described.resolved_key_value_heads == config.resolved_key_value_heads
    with pytest.raises(ConfigurationError) as caught:
        model_config({**document, **change}, "config.json")
    assert message in str(caught.value)


def test_a_checkpoint_store_is_not_a_model_folder(store: Store, tmp_path: Path) -> None:
    url, _ = store("gpt")
    assert open_model_folder(url) is None
    assert open_model_folder(str(tmp_path / "absent")) is None


def test_mistakes_are_explained(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url, _ = store("gpt")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").touch()
    assert main(["weights", url, "-o", str(tmp_path / "full")]) == 2
    assert "not empty" in capsys.readouterr().err
    assert main(["weights", f"{url}#9", "-o", str(tmp_path / "new")]) == 2
    assert "no such checkpoint" in capsys.readouterr().err
