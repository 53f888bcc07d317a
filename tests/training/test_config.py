from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from training.config import PRESETS, RENAMED_KEYS, TrainingConfig, describe_problems, read_config
from training.errors import ConfigurationError


def test_json_round_trip_keeps_values_and_digest() -> None:
    config = TrainingConfig.model_validate(
        {"steps": 5, "model": {"preset": "gpt2"}, "optimizer": {"max_grad_norm": None}}
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
        "global_batch_size": 4,
        "micro_batch_size": 8,
        "schedule": {"warmup_steps": 10},
        "model": {"num_hidden_layers": 2, "size": 1},
        "checkpoint": {"keep_last": 1},
        "optimizer": {"learning_rate": float("nan")},
    }
    with pytest.raises(ValidationError) as caught:
        TrainingConfig.model_validate(document)
    problems = "\n".join(describe_problems(caught.value, "training"))
    assert "training.colour: unknown key; remove it or correct its spelling; known keys: seed" in problems
    assert "training.micro_batch_size: 8: greater than global_batch_size 4; lower it" in problems
    assert "training.schedule: warmup_steps 10 must be less than steps 10" in problems
    assert "training.model.size: unknown key" in problems
    assert "training.checkpoint.keep_last: 1:" in problems
    assert "training.optimizer.learning_rate:" in problems


@pytest.mark.parametrize(("old", "new"), RENAMED_KEYS.items())
def test_renamed_keys_are_answered_with_the_new_name(old: str, new: str) -> None:
    *sections, key = old.split(".")
    document: Any = {key: 1}
    owner: type[BaseModel] = TrainingConfig
    for section in sections:
        owner = type(owner.model_fields[section].default)
    for section in reversed(sections):
        document = {section: document}
    assert new in owner.model_fields and key not in owner.model_fields
    with pytest.raises(ValidationError) as caught:
        TrainingConfig.model_validate(document)
    assert f"{old}: renamed to {new}" in describe_problems(caught.value)


SHAPE = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 32, "sequence_length": 8}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"preset": "demo", "num_hidden_layers": 2}, "remove one"),
        ({"num_hidden_layers": 2, "num_attention_heads": 2}, "without hidden_size, sequence_length"),
        ({**SHAPE, "num_attention_heads": 3}, "not a multiple of num_attention_heads 3"),
    ],
)
def test_contradictory_shapes_are_rejected(model: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainingConfig.model_validate({"model": model})


def test_more_processes_than_sequences_is_a_problem() -> None:
    config = TrainingConfig(global_batch_size=8, micro_batch_size=1)
    assert config.problems_at(8) == []
    assert "less than the 9 processes" in config.problems_at(9)[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [('{"steps": 1, "steps": 2}', "steps: duplicate key"), ("{", "not JSON"), ('{"steps": "many"}', "steps")],
)
def test_unusable_files_are_reported(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=message):
        read_config(path)


def test_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot read"):
        read_config(tmp_path / "none.json")


def test_defaults_serialize_to_json() -> None:
    assert json.loads(TrainingConfig().model_dump_json())["precision"] == "auto"
