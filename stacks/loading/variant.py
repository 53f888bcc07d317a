"""A variant of a deployment's run: another name, and other values for some keys of the trainer configuration."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from stacks.artifacts.documents import check_parameter_size
from stacks.config import DeploymentConfig
from stacks.config.run import RunConfig, training_document
from stacks.config.sweep import SweepError, members
from stacks.errors import ConfigError, Problem
from stacks.loading.yaml_source import read_value
from stacks.validators import problems as rules
from training.config import TrainingConfig

_REMEDY = "docs/configuration.md lists the keys and values of training.config"


def variant(
    config: DeploymentConfig, source: str, deployed: Mapping[str, Any], name: str, settings: Sequence[str]
) -> dict[str, Any]:
    """Return the run document of a variant as JSON values, for the fleet of the deployed one.

    Args:
        config: The deployment file, whose rules also apply to the variant.
        source: The file's name, for messages.
        deployed: The deployed run document as JSON values.
        name: Name of the variant's run.
        settings: Keys of `training.config` with their values, as `key=value`.

    Raises:
        ConfigError: The name or settings are invalid. The exception contains all problems.
    """
    values, found = _values(settings)
    training = TrainingConfig.model_validate(deployed["training"])
    try:
        ((_, training),) = members(training, {key: [value] for key, value in values.items()})
    except SweepError as error:
        found += [_setting_problem(values, key, rule) for key, rule in error.problems]
    section = config.training.model_copy(update={"run": name, "config": training})
    found += _name_problems(section)
    if not found:
        changed = config.model_copy(update={"training": section})
        found += [problem for problem in rules(changed) if problem.severity == "error"]
    document = {**deployed, "run": name, "training": training_document(training)}
    try:
        check_parameter_size(json.dumps(document), source)
    except ConfigError as error:
        found += error.problems
    if found:
        raise ConfigError(source, found)
    return document


def differs(config: DeploymentConfig, deployed: Mapping[str, Any]) -> bool:
    """Return True if the file's trainer configuration differs from that of the deployed run document."""
    return bool(training_document(config.training.config) != deployed["training"])


def _setting_problem(values: Mapping[str, Any], key: str, rule: str) -> Problem:
    """Return the problem of a key, or of all settings together if `key` is empty: the rule then starts with them."""
    if key:
        return Problem(f"--set {key}", values.get(key), rule, _REMEDY)
    given, _, rule = rule.partition(": ")
    return Problem("--set", given, rule, _REMEDY)


def _name_problems(section: RunConfig) -> Iterator[Problem]:
    try:
        RunConfig.model_validate(section.model_dump(exclude={"config"}))
    except ValidationError as error:
        for item in error.errors(include_url=False):
            remedy = "use 1 to 40 lower-case letters, digits and dashes"
            yield Problem("--name", section.run, item["msg"][:1].lower() + item["msg"][1:], remedy)


def _values(settings: Sequence[str]) -> tuple[dict[str, Any], list[Problem]]:
    """Return the values by key, and the problems of settings that are not `key=value`, or that repeat a key."""
    values: dict[str, Any] = {}
    problems = []
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not key or not equals:
            problems.append(Problem("--set", setting, "must be KEY=VALUE", "such as optimizer.learning_rate=3e-4"))
        elif key in values:
            problems.append(Problem("--set", setting, f"sets {key} again", "keep one of the two"))
        else:
            try:
                values[key] = read_value(text, f"--set {key}")
            except ConfigError as error:
                problems += error.problems
    return values, problems
