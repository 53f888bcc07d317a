"""Writes a commented deployment file from given values, answers and defaults. `check` accepts the result."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import yaml

from stacks.config import DeploymentConfig
from stacks.config.capacity import CapacityConfig
from stacks.config.run import RunConfig
from stacks.config.storage import StorageConfig
from stacks.errors import ConfigError
from stacks.loading import load

QUESTIONS: Mapping[str, tuple[str, object]] = {
    "region": ("AWS region", "us-east-1"),
    "instance_types": ("Instance types, separated by commas", ["g6.xlarge"]),
    "nodes": ("Number of instances", 1),
    "market": ("Market (spot or on_demand)", "spot"),
    "dataset": ("Name of the dataset", "my-text"),
    "preset": ("Model preset", "gpt2"),
    "steps": ("Optimizer steps", 20000),
    "global_batch_size": ("Sequences per step, across all GPUs", 256),
}
"""The question and the default for each value."""
SCHEMA = Path(__file__).resolve().parents[2] / "docs" / "deployment.schema.json"
WIDTH = 118


class NotWritten(Exception):
    """The file exists, or the values do not make a valid file."""


def name_of(file: Path) -> str:
    """Return a deployment name derived from a file's name."""
    name = re.sub(r"[^a-z0-9-]+", "-", file.stem.lower()).strip("-")[:24]
    return name if name[:1].isalpha() else f"run-{name}"[:24].rstrip("-")


def write(file: Path, given: Mapping[str, object], ask: Callable[[str], str] | None) -> DeploymentConfig:
    """Write a deployment file and return the configuration that it defines.

    Args:
        file: The file, which must not exist.
        given: Option values, keyed by `name` and the keys of QUESTIONS. None: not given.
        ask: Asks a question and returns the answer; None to use the defaults.

    Raises:
        NotWritten: The file exists, or the values do not make a valid file. Nothing is written.
    """
    if file.exists():
        raise NotWritten(f"{file}: already exists; choose another name, or remove it")
    values = {"name": given["name"]}
    for key, (question, default) in QUESTIONS.items():
        values[key] = given[key] if given.get(key) is not None else _answer(question, default, ask)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text(values, os.path.relpath(SCHEMA, file.parent)), encoding="utf-8")
    try:
        return load(file)
    except ConfigError as error:
        file.unlink()
        raise NotWritten(f"{error}\n{file}: not written") from error


def text(values: Mapping[str, object], schema: str) -> str:
    """Return the file's text, with the descriptions of keys as comments. `schema` is the schema's relative path."""
    top, capacity, run, storage = DeploymentConfig, CapacityConfig, RunConfig, StorageConfig
    return "\n".join(
        [
            f"# yaml-language-server: $schema={schema}",
            "# docs/configuration.md lists all keys. Validate the file with `trainstack config check FILE`.",
            *_key(top, "name", values, 0),
            *_key(top, "region", values, 0),
            "",
            "capacity:",
            *_key(capacity, "instance_types", values, 2),
            *_key(capacity, "nodes", values, 2),
            *_key(capacity, "market", values, 2),
            "",
            "storage:",
            *_key(storage, "deletion", {"deletion": "retain"}, 2),
            "",
            "training:",
            *_key(run, "run", {"run": "run-1"}, 2),
            *_key(run, "dataset", values, 2),
            "  config:",
            *(f"    {line}" for line in _training(values)),
            "",
        ]
    )


def _training(values: Mapping[str, object]) -> list[str]:
    return [
        "# Number of optimizer steps of the run.",
        f"steps: {_scalar(values['steps'])}",
        "# Sequences in each step, across all GPUs; the trainer divides them into micro-batches.",
        f"global_batch_size: {_scalar(values['global_batch_size'])}",
        f"model: {{preset: {_scalar(values['preset'])}}}",
    ]


def _key(section: type, key: str, values: Mapping[str, object], indent: int) -> list[str]:
    margin = " " * indent
    description = section.model_fields[key].description or ""  # type: ignore[attr-defined]
    prefix = f"{margin}# "
    comment = textwrap.wrap(description, WIDTH, initial_indent=prefix, subsequent_indent=prefix, break_on_hyphens=False)
    return [*comment, f"{margin}{key}: {_scalar(values[key])}"]


def _scalar(value: object) -> str:
    """Return a value as one line of YAML, so that a value cannot add a key."""
    return yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("\n").removesuffix("\n...")


def _answer(question: str, default: object, ask: Callable[[str], str] | None) -> object:
    shown = ", ".join(default) if isinstance(default, list) else str(default)
    answer = ask(f"{question} [{shown}]: ").strip() if ask is not None else ""
    if not answer:
        return default
    if isinstance(default, list):
        return [each.strip() for each in answer.split(",") if each.strip()]
    return int(answer) if isinstance(default, int) and answer.isdecimal() else answer
