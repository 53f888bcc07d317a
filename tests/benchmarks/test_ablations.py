"""The bench command: real runs of the command line, and rejected configs."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import gpu
from training.bench.ablations import ablations, run_bench
from training.config import TrainingConfig
from training.errors import ConfigurationError

SMALL = {
    "global_batch_size": 4,
    "micro_batch_size": 2,
    "model": {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16, "sequence_length": 8},
    "threads": 1,
}


@pytest.mark.slow
def test_ablation_is_measured_against_the_baseline(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    output = io.StringIO()
    options = SimpleNamespace(config=tmp_path / "config.json", steps=6, processes=1, vocabulary_size=64, only="bf16")
    assert run_bench(options, output) == 0
    results = json.loads(output.getvalue())
    assert set(results) == {"config", "processes", "torch", "baseline", "precision bf16"}
    for name in ("baseline", "precision bf16"):
        assert results[name]["tokens_per_second"] > 0 and results[name]["micro_batch_size"] == 2
        assert sum(results[name]["phase_shares"].values()) <= 1.0
    assert results["baseline"]["last_loss"] == pytest.approx(results["precision bf16"]["last_loss"], abs=0.05)
    assert results["baseline"]["last_loss"] != results["precision bf16"]["last_loss"]


def test_each_change_is_one_and_is_valid() -> None:
    config = TrainingConfig.model_validate({**SMALL, "precision": "bf16", "compile": True})
    changes = dict(ablations(config, processes=2, on_gpu=True))
    assert {"compile off", "precision fp16", "attention cudnn", "static_graph True"} <= set(changes)
    assert "precision bf16" not in changes
    before = config.model_dump()
    for name, changed in changes.items():
        after = TrainingConfig.model_validate(changed).model_dump()
        assert sum(after[key] != before[key] for key in before) == 1, name


def test_user_supplied_code_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model": {"function": "a:b"}}')
    options = SimpleNamespace(config=tmp_path / "config.json", steps=6, processes=1, vocabulary_size=64, only=None)
    with pytest.raises(ConfigurationError, match="bench uses synthetic tokens"):
        run_bench(options)


def test_gpu_benchmark_without_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert gpu.main([]) == 0
    assert "no GPU found" in capsys.readouterr().out


def test_models_of_the_gpu_benchmark_have_the_named_shapes() -> None:
    shapes = {name: TrainingConfig.model_validate({"model": model}).model for name, model in gpu.MODELS.items()}
    assert [shape.shape.sequence_length for shape in shapes.values()] == [1024, 2048, 1024, 2048]
    assert shapes["llama-1b 1024"].shape[:3] == shapes["llama-1b 2048"].shape[:3]
    assert shapes["llama-1b 1024"].resolved_key_value_heads == shapes["llama-1b 2048"].resolved_key_value_heads
