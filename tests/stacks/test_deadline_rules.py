"""The rules for deadlines, and the estimate of the training time on which they depend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from stacks.capacity.training_time import training_time
from stacks.config import DeploymentConfig
from stacks.errors import Problem
from stacks.loading import load
from stacks.validators.deadline import RULES

GPT2 = {"steps": 20000, "model": {"preset": "gpt2"}, "global_batch_size": 256}


def config(tmp_path: Path, limits: dict[str, Any], **sections: Any) -> DeploymentConfig:
    """Return a valid configuration with a set of limits that no rule has checked."""
    document = {
        "name": "x",
        "capacity": {"instance_types": ["g6.xlarge"]},
        "training": {"dataset": "text", "config": GPT2},
        **sections,
    }
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump(document))
    loaded = load(path)
    checked = type(loaded.limits).model_validate(limits)
    return loaded.model_copy(update={"limits": checked})


def found(checked: DeploymentConfig) -> list[Problem]:
    return [problem for rule in RULES for problem in rule(checked)]


def test_estimate_counts_the_operations_of_the_model(tmp_path: Path) -> None:
    # 5.24e9 tokens, 6 x 123.6e6 parameters + 113e6 for attention, 121e12 FLOP/s at 35 %.
    needed = training_time(config(tmp_path, {"deadline_hours": 100.0}))
    assert needed is not None and not needed.is_stated
    tokens = 20000 * 256 * 1024
    flops = 6 * (12 * 12 * 768**2 + 50304 * 768) + 12 * 12 * 768 * 1024
    assert needed.hours == pytest.approx(tokens * flops / (121e12 * 0.35) / 3600)
    assert needed.least_hours == pytest.approx(tokens * 6 * 12 * 12 * 768**2 / 121e12 / 3600)


@pytest.mark.parametrize(
    ("training", "types"),
    [
        ({"steps": 10, "model": {"function": "m:f"}}, ["g6.xlarge"]),  # the model's size is unknown
        (GPT2, ["c7i.2xlarge"]),  # the speed of CPUs is unknown
    ],
)
def test_unknown_training_time_must_be_stated(tmp_path: Path, training: dict[str, Any], types: list[str]) -> None:
    sections = {"capacity": {"instance_types": types}, "training": {"dataset": "text", "config": training}}
    (problem,) = found(config(tmp_path, {"deadline_hours": 10.0}, **sections))
    assert (problem.path, problem.severity) == ("limits.training_hours", "error")
    assert "cannot assess limits.deadline_hours (10)" in problem.rule
    assert found(config(tmp_path, {"deadline_hours": 10.0, "training_hours": 5.0}, **sections)) == []


def test_impossible_deadline_is_refused_with_the_best_that_can_be_done(tmp_path: Path) -> None:
    capacity = {"instance_types": ["g6.xlarge"], "nodes": 4}
    limits = {"deadline_hours": 40.0, "training_hours": 60.0}
    (problem,) = found(config(tmp_path, limits, capacity=capacity))
    assert (problem.path, problem.value, problem.severity) == ("limits.deadline_hours", 40.0, "error")
    assert problem.rule == (
        "60.0 h of training on 4 nodes (limits.training_hours) and a boot of 0.2 h take longer, even "
        "without interruptions"
    )
    # 60 h / (40 h - 0.2 h) = 1.5075; 1.5075 x 4 nodes = 6.03, so 7 nodes; 20,000 / 1.5075 = 13,266 steps.
    assert problem.remedy == (
        "set at least 60.2, or use 1.6 times as many nodes (7), if the speed grows with their number, or "
        "train at most 13,266 of 20,000 steps"
    )


def test_stated_time_below_the_peak_rate_does_not_hide_an_impossible_deadline(tmp_path: Path) -> None:
    # The bound is 6.1 h: 5.24e9 tokens x 6 x 84.9e6 / 121e12.
    (problem,) = found(config(tmp_path, {"deadline_hours": 3.0, "training_hours": 1.0}))
    assert problem.severity == "error"
    assert "6.1 h of training on 1 node (at the GPUs' peak rate)" in problem.rule


def test_estimate_is_no_proof(tmp_path: Path) -> None:
    (problem,) = found(config(tmp_path, {"deadline_hours": 20.0}))
    assert (problem.path, problem.severity) == ("limits.deadline_hours", "warning")
    assert "set limits.training_hours" in problem.remedy


def test_deadline_without_slack_starts_on_demand(tmp_path: Path) -> None:
    (problem,) = found(config(tmp_path, {"deadline_hours": 60.3, "training_hours": 60.0}))
    assert problem.severity == "warning"
    assert "the run starts on On-Demand Instances" in problem.rule
    assert found(config(tmp_path, {"deadline_hours": 60.3, "training_hours": 60.0, "on_deadline_miss": "stop"})) == []


def test_keys_without_a_deadline_are_refused(tmp_path: Path) -> None:
    problems = found(config(tmp_path, {"on_deadline_miss": "stop", "training_hours": 5.0}))
    assert [problem.path for problem in problems] == ["limits.on_deadline_miss", "limits.training_hours"]


def test_purchase_in_place_of_spot_needs_spot(tmp_path: Path) -> None:
    capacity = {"instance_types": ["g6.xlarge"], "market": "on_demand"}
    limits = {"deadline_hours": 60.0, "training_hours": 10.0}
    (problem,) = found(config(tmp_path, limits, capacity=capacity))
    assert problem.path == "limits.on_deadline_miss"
    assert found(config(tmp_path, {**limits, "on_deadline_miss": "continue"}, capacity=capacity)) == []


def test_other_limits_that_end_the_run_early_are_reported(tmp_path: Path) -> None:
    limits = {"deadline_hours": 60.0, "training_hours": 30.0, "run_hours": 20.0, "usd": 0.5}
    problems = found(config(tmp_path, limits))
    assert [(problem.path, problem.severity) for problem in problems] == [
        ("limits.run_hours", "warning"),
        ("limits.usd", "warning"),
    ]
