"""The order of a pipeline's steps, the metrics that they report, and the fleets that they use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stacks.config import DeploymentConfig
from stacks.config.pipeline import PipelineConfig, StepConfig
from stacks.config.pipeline.conditions import Condition, parse_condition

TRAINER_METRICS = ("loss", "validation_loss", "bits_per_byte")
"""Metrics that the trainer reports to the control records."""


@dataclass(frozen=True)
class Step:
    """A step with its name and its successor.

    Attributes:
        metrics: Metrics that the step's runs must report: those in `keep`, `reports`, and the next step's `when`.
    """

    name: str
    config: StepConfig
    condition: Condition | None
    metrics: tuple[str, ...]


def ordered(pipeline: PipelineConfig) -> list[Step]:
    """Return the steps in the order in which they run. The pipeline must be valid."""
    followers = {step.after: name for name, step in pipeline.steps.items()}
    names = []
    name = followers.get(None)
    while name is not None and name not in names:
        names.append(name)
        name = followers.get(name)
    conditions = {each: pipeline.steps[each].when for each in names}
    parsed = {each: None if text is None else parse_condition(text) for each, text in conditions.items()}
    found = []
    for index, each in enumerate(names):
        config = pipeline.steps[each]
        follower = parsed[names[index + 1]] if index + 1 < len(names) else None
        needed = [config.kept_metric, *config.reports, None if follower is None else follower.metric]
        metrics = tuple(dict.fromkeys(metric for metric in needed if metric is not None))
        found.append(Step(each, config, parsed[each], metrics))
    return found


def reported(step: StepConfig, *, entrypoint: bool) -> tuple[str, ...]:
    """Return the metrics that a step's runs report. A user's script reports none."""
    if step.kind == "function":
        return tuple(step.reports)
    return TRAINER_METRICS if step.kind == "train" and not entrypoint else ()


def slots_by_step(config: DeploymentConfig) -> Mapping[str, list[str]]:
    """Return the suffixes of the slots that each step's runs use."""
    assert config.pipeline is not None
    shared = config.shared_suffixes
    return {name: step.suffixes(name) or shared for name, step in config.pipeline.steps.items()}
