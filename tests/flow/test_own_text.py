"""Own text, from files to a model in another library, and back: with the commands of a user on the embedded cloud."""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.flow.user_project import CDK, UserProject, user_project
from tests.localcloud.core.command_line import ROOT
from tests.training.conftest import write_text
from training.config import ModelConfig
from training.models.named import build_named_model

PYTHON = os.environ.get("PARITY_PYTHON", str(ROOT / "build" / "parity-venv" / "bin" / "python"))
PEER = ROOT / "tests" / "training" / "inference" / "peer.py"
TOKENS = torch.arange(64).reshape(2, 32) * 7 % 290  # as in the peer
VOCABULARY_SIZE = 300
STEPS = 60
PROMPT = "no work is read in the same order"
SIZES = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "sequence_length": 32}
MODELS: dict[str, dict[str, Any]] = {
    "gpt": SIZES,
    "llama": {**SIZES, "architecture": "llama", "num_key_value_heads": 2},
}
NO_CHANGE = 1e-30
"""Learning rate at which a step changes no weight."""
SECTIONS: dict[str, Any] = {
    "network": {"cidr": "127.95.0.0/16", "zones": ["a", "b"]},  # other loopback addresses than the demo's
    "storage": {"deletion": "destroy"},
    "observability": {"log_retention_days": 7},
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(5400),
    pytest.mark.xdist_group("own_text"),
    pytest.mark.skipif(not CDK.exists(), reason="node_modules is absent: npm ci"),
]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UserProject]:
    """Deploy a run that waits for its dataset, and upload the dataset."""
    with user_project(tmp_path_factory.mktemp("own-text"), "own") as project:
        project.good("init", str(project.file), "--instance-type", "c7i.2xlarge", "--nodes", "1", "--preset", "demo")
        set_run(project, "gpt-1", MODELS["gpt"])
        project.bootstrap()
        project.good("up", "config/own.yaml", "--approved", "30", "--no-follow")
        write_text(project.folder / "text")
        target = f"s3://{project.outputs()['DatasetBucket']}/datasets"
        tokenize = ["--input", "text", "--output", target, "--name", "own", "--workers", "1"]
        project.good(
            "training", "tokenize", *tokenize, "--vocabulary-size", str(VOCABULARY_SIZE), "--validation-share", "0.2"
        )
        yield project


def set_run(
    project: UserProject,
    run: str,
    model: dict[str, Any],
    *,
    steps: int = STEPS,
    learning_rate: float = 1e-2,
    initial_weights: str | None = None,
) -> None:
    config = {
        "steps": steps,
        "global_batch_size": 8,
        "micro_batch_size": 8,
        "threads": 1,
        "model": model,
        "initial_weights": initial_weights,
        "optimizer": {"learning_rate": learning_rate},
        "schedule": {"kind": "constant", "warmup_steps": 0},
        "checkpoint": {"interval_steps": STEPS},
        "validation": {"interval_steps": STEPS, "batches": 2},
    }
    training = {"run": run, "dataset": "own", "processes_per_node": 1, "config": config}
    project.edit({**SECTIONS, "training": training})


def wait_for_end(project: UserProject, run: str) -> None:
    def ended() -> bool:
        status = project.status()
        return status["run"] == run and status["phase"] == "ended"

    project.wait_for(f"the end of {run}", ended)
    assert json.loads(project.good("why", "own", "--json"))["cause"] == "finished"


def evaluation(project: UserProject, model: str = "own", *options: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(project.good("evaluate", model, *options, "--json"))
    return found


def peer_logits(folder: Path) -> torch.Tensor:
    """Load a folder with transformers; return the logits of TOKENS."""
    assert Path(PYTHON).exists(), f"{PYTHON} does not exist; run `make build/parity-venv/.installed`"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [PYTHON, str(PEER), "load", str(folder), PROMPT]
    done = subprocess.run(
        command, env={**environment, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "result.json").read_text())["problems"] == {}
    logits: torch.Tensor = torch.load(folder / "logits.pt")
    return logits


@pytest.mark.parametrize("kind", ["gpt", "llama"])
def test_own_text_out_and_in(project: UserProject, tmp_path: Path, kind: str) -> None:
    if project.status()["run"] != f"{kind}-1":
        set_run(project, f"{kind}-1", MODELS[kind])
        project.good("up", "config/own.yaml", "--approved", "40", "--no-follow")
    wait_for_end(project, f"{kind}-1")

    # Measure: the model has learned, and the three figures are one loss in three units.
    trained = evaluation(project)
    assert trained["loss"] < math.log(VOCABULARY_SIZE) - 1.0
    assert trained["perplexity"] == pytest.approx(math.exp(trained["loss"]))
    assert 0 < trained["bits_per_byte"] < 8

    # Sample: the same seed continues with the same text.
    options = ["--prompt", PROMPT, "--max-new-tokens", "20", "--seed", "3", "--top-k", "5"]
    text = project.good("sample", "own", *options)
    assert text.startswith(PROMPT) and len(text) > len(PROMPT) + 10
    assert project.good("sample", "own", *options) == text

    # Weights: transformers computes the logits that this project's model has with the same weights.
    out, own = tmp_path / "out", tmp_path / "own-layout"
    dataset = f"s3://{project.outputs()['DatasetBucket']}/datasets/own"
    project.good("weights", "own", "-o", str(out), "--dataset", dataset)
    project.good("weights", "own", "-o", str(own), "--layout", "trainstack")
    model = build_named_model(ModelConfig.model_validate(MODELS[kind]), VOCABULARY_SIZE)
    model.load_state_dict(load_file(own / "model.safetensors"), strict=True)
    with torch.no_grad():
        expected = model.eval().logits(TOKENS)
    torch.testing.assert_close(peer_logits(out), expected, rtol=1e-5, atol=1e-5)
    assert evaluation(project, str(out), "--dataset", dataset)["loss"] == pytest.approx(trained["loss"], abs=1e-5)

    # Back in: a run that starts from the folder, and whose only step changes nothing, has the same loss.
    bucket = project.outputs()["DatasetBucket"]
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        project.cloud.client("s3").upload_file(str(out / name), bucket, f"models/{kind}/{name}")
    address = f"s3://{bucket}/models/{kind}"
    set_run(project, f"{kind}-2", MODELS[kind], steps=1, learning_rate=NO_CHANGE, initial_weights=address)
    project.good("up", "config/own.yaml", "--approved", "40", "--no-follow")
    wait_for_end(project, f"{kind}-2")
    assert evaluation(project)["loss"] == pytest.approx(trained["loss"], abs=1e-5)
