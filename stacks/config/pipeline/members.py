"""The members of a step: the settings of each, and the trainer's configuration that results from them."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from stacks.config.pipeline import RandomConfig, RangeConfig, StepConfig
from stacks.config.sweep import SweepError, key_problems, members, replaced, size
from training.config import TrainingConfig, describe_problems

FUNCTIONS = {"prepare": None, "export": "training.inference.steps:export"}
"""The functions of the steps that do not train."""
SCRIPT = "training/integrations/pipeline_step.py"
"""The script that calls a step's function on a node."""


@dataclass(frozen=True)
class Member:
    """One run of a step."""

    settings: Mapping[str, Any]
    config: TrainingConfig


def count(step: StepConfig) -> int:
    """Return the number of members."""
    if step.random is not None:
        return step.random.members
    return len(step.members) or size(step.sweep)


def step_members(base: TrainingConfig, step: StepConfig) -> list[Member]:
    """Return a step's members, of which there must be at most MAX_MEMBERS.

    Args:
        base: The trainer's configuration in the deployment file.
        step: The step.

    Raises:
        SweepError: A key does not exist, a value is invalid, or a member is repeated.
    """
    if step.kind != "train":
        return [Member({}, function_config(step))]
    if step.random is not None:
        return _validated(base, list(_random_settings(step.random)), step.random.values)
    if step.members:
        return _validated(base, step.members, (key for each in step.members for key in each))
    return [Member(settings, config) for settings, config in members(base, step.sweep)]


def function_config(step: StepConfig) -> TrainingConfig:
    """Return the configuration of a run that calls a function."""
    function = FUNCTIONS.get(step.kind, step.function)
    arguments = [] if function is None else ["--function", function]
    arguments += [part for metric in step.reports for part in ("--reports", metric)]
    return TrainingConfig(entrypoint=SCRIPT, arguments=arguments)


def _validated(base: TrainingConfig, listed: list[dict[str, Any]], keys: Iterable[str]) -> list[Member]:
    problems = list(key_problems({key: [0] for key in keys}))
    texts = [repr(sorted(each.items(), key=lambda item: item[0])) for each in listed]
    problems += [("", f"repeats the member {text}") for text in sorted({t for t in texts if texts.count(t) > 1})]
    if problems:
        raise SweepError(problems)
    found = []
    for number, settings in enumerate(listed):
        try:
            found.append(Member(settings, TrainingConfig.model_validate(replaced(base, settings))))
        except ValidationError as error:
            problems += [(str(number), text) for text in describe_problems(error)]
    if problems:
        raise SweepError(problems)
    return found


def _random_settings(section: RandomConfig) -> Iterator[dict[str, Any]]:
    """Yield the settings of each member."""
    problems = [(f"values.{key}", rule) for key, each in section.values.items() for rule in _range_problems(each)]
    if problems:
        raise SweepError(problems)
    source = random.Random(section.seed)  # noqa: S311 (not used for secrets)
    for _ in range(section.members):
        yield {key: _drawn(each, source) for key, each in section.values.items()}


def _range_problems(values: RangeConfig) -> Iterator[str]:
    if values.low >= values.high:
        yield f"low ({values.low:g}) must be less than high ({values.high:g})"
    if values.log and values.low <= 0:
        yield f"low ({values.low:g}) must be greater than 0 with log: true"


def _drawn(values: RangeConfig, source: random.Random) -> float | int:
    if values.log:
        drawn = math.exp(source.uniform(math.log(values.low), math.log(values.high)))
    else:
        drawn = source.uniform(values.low, values.high)
    # Six digits are enough for a setting, and readable in tables.
    return round(drawn) if values.integer else float(f"{drawn:.6g}")
