"""Models in the real transformers library, in a separate environment: `make build/parity-venv/.installed`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from tests.training.inference.conftest import MODELS, Store
from tests.training.inference.test_weights import subject_of
from training.__main__ import main
from training.config import ModelConfig
from training.inference.trained import open_trained
from training.models.gpt import GPT
from training.models.initial_weights import load_initial_weights
from training.models.llama import Llama
from training.models.named import build_named_model

ROOT = Path(__file__).parents[3]
PYTHON = os.environ.get("PARITY_PYTHON", str(ROOT / "build" / "parity-venv" / "bin" / "python"))
TOKENS = torch.arange(64).reshape(2, 32) * 7 % 290
TEXT = "no work is read in the same order"

pytestmark = pytest.mark.slow


def peer(*arguments: object) -> None:
    assert Path(PYTHON).exists(), f"{PYTHON} does not exist; run `make build/parity-venv/.installed`"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONPATH", None)
    command = [PYTHON, str(Path(__file__).with_name("peer.py")), *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def logits(model: GPT | Llama) -> torch.Tensor:
    with torch.no_grad():
        return model.eval().logits(TOKENS)


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_transformers_loads_the_weights(store: Store, tmp_path: Path, tiny_dataset: Path, kind: str) -> None:
    url, model = store(kind)
    folder = tmp_path / "out"
    assert main(["weights", url, "-o", str(folder), "--dataset", str(tiny_dataset)]) == 0
    peer("load", folder, TEXT)
    result = json.loads((folder / "result.json").read_text())
    assert result["problems"] == {}, "tensors are missing, unknown, or of another shape"
    assert result["dtype"] == "torch.float32"
    assert result["ids"] == Tokenizer.from_file(str(tiny_dataset / "tokenizer.json")).encode(TEXT).ids
    torch.testing.assert_close(torch.load(folder / "logits.pt"), logits(model), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("preset", ["gpt2", "llama-160m"])
def test_transformers_computes_the_presets(tmp_path: Path, preset: str) -> None:
    from safetensors.torch import save_file

    from training.models.hugging_face import config_document, to_hugging_face

    config = ModelConfig.model_validate({"preset": preset})
    torch.manual_seed(0)
    model = build_named_model(config, 300)
    folder = tmp_path / preset
    folder.mkdir()
    tensors = {name: each.clone() for name, each in to_hugging_face(config, model.state_dict()).items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config_document(config, 300, 0)))
    peer("load", folder, "")
    assert json.loads((folder / "result.json").read_text())["problems"] == {}
    torch.testing.assert_close(torch.load(folder / "logits.pt"), logits(model), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_a_run_starts_from_a_folder_of_transformers(store: Store, tmp_path: Path, kind: str) -> None:
    url, _ = store(kind)
    folder = tmp_path / "made"
    subject, config = subject_of(url), ModelConfig.model_validate(MODELS[kind])
    peer("make", folder, kind, subject.vocabulary_size)
    expected = torch.load(folder / "logits.pt")
    model = build_named_model(config, subject.vocabulary_size)
    load_initial_weights(str(folder), config, model, subject)
    torch.testing.assert_close(logits(model), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logits(open_trained(str(folder)).model.cpu()), expected, rtol=1e-5, atol=1e-5)
