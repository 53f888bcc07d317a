from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from training.config import PRESETS, TrainingConfig, describe_problems, read_config
from training.errors import ConfigurationError


def test_json_round_trip_keeps_value_and_digest() -> None:
    config = TrainingConfig.model_validate(
        {"steps": 5, "model": {"preset": "gpt2"}, "optimizer": {"gradient_clip": None}}
    )
    again = TrainingConfig.model_validate_json(config.model_dump_json())
    assert again == config
    assert again.digest() == config.digest() != TrainingConfig().digest()
    assert again.model.shape == PRESETS["gpt2"]


def test_every_field_is_described() -> None:
    sections: list[type[BaseModel]] = [TrainingConfig]
    described = 0
    while sections:
        section = sections.pop()
        for name, field in section.model_fields.items():
            if isinstance(field.default, BaseModel):
                sections.append(type(field.default))
            else:
                assert field.description, f"{section.__name__}.{name}"
                described += 1
    assert described > 20


def test_importing_the_config_imports_no_torch() -> None:
    check = "import sys, training.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_all_problems_at_once_with_path_value_rule_and_remedy() -> None:
    document = {
        "steps": 10,
        "colour": "red",
        "global_batch_sequences": 4,
        "micro_batch_sequences": 8,
        "schedule": {"warmup_steps": 10},
        "model": {"layers": 2, "size": 1},
        "checkpoint": {"keep_last": 1},
        "optimizer": {"learning_rate": float("nan")},
    }
    with pytest.raises(ValidationError) as caught:
        TrainingConfig.model_validate(document)
    told = "\n".join(describe_problems(caught.value, "training"))
    assert "training.colour: no such setting; remove it or correct its spelling; known here: seed" in told
    assert "training.micro_batch_sequences: 8: more than global_batch_sequences 4; lower it" in told
    assert "training.schedule: warmup_steps 10 must be less than steps 10" in told
    assert "training.model.size: no such setting" in told
    assert "training.checkpoint.keep_last: 1:" in told
    assert "training.optimizer.learning_rate:" in told


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"preset": "demo", "layers": 2}, "drop one"),
        ({"layers": 2, "heads": 2}, "without embedding, context"),
        ({"layers": 2, "heads": 3, "embedding": 32, "context": 8}, "not a multiple of heads 3"),
    ],
)
def test_contradictory_shapes(model: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        TrainingConfig.model_validate({"model": model})


def test_more_processes_than_sequences() -> None:
    config = TrainingConfig(global_batch_sequences=8, micro_batch_sequences=1)
    assert config.problems_at(8) == []
    assert "less than the 9 processes" in config.problems_at(9)[0]


@pytest.mark.parametrize(
    ("content", "words"),
    [('{"steps": 1, "steps": 2}', "steps: given twice"), ("{", "is not JSON"), ('{"steps": "many"}', "steps")],
)
def test_unusable_files(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=words):
        read_config(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_config(tmp_path / "none.json")


def test_defaults_are_valid_json() -> None:
    assert json.loads(TrainingConfig().model_dump_json())["precision"] == "auto"
