"""The steps that the next execution of a pipeline repeats after its file has changed."""

from __future__ import annotations

from typing import Any

import pytest

from stacks.changes.effects.pipeline import repeated_steps
from stacks.changes.formats import to_json
from stacks.changes.report import sections
from stacks.changes.review import Review, review
from stacks.changes.templates.template_set import read_cloud_assembly
from tests.stacks.conftest import Synthesis

BASE = "pipelines/sweep"
STEPS = "pipeline.steps"
ALL = [("prepare", 1, "changed"), ("train", 4, "changed"), ("evaluate", 1, "changed"), ("export", 1, "changed")]


def change(synthesis: Synthesis, label: str, changes: dict[str, Any]) -> Review:
    after = synthesis.variant(label, changes, base=BASE).directory
    return review(read_cloud_assembly(synthesis.of(BASE).directory), read_cloud_assembly(after))


@pytest.mark.parametrize(
    ("label", "changes", "expected"),
    [
        # These keys belong to the state machine, not to the inputs of a member.
        ("no-input", {f"{STEPS}.train.retry": 2, f"{STEPS}.export.when": "bits_per_byte < 1.1"}, []),
        (
            "more-members",
            {f"{STEPS}.train.sweep": {"optimizer.learning_rate": [6.0e-4, 3.0e-4, 1.0e-4]}},
            [("train", 3, "changed"), ("evaluate", 1, "after"), ("export", 1, "after")],
        ),
        (
            "reports",
            {f"{STEPS}.evaluate.reports": ["bits_per_byte"]},
            [("evaluate", 1, "changed"), ("export", 1, "after")],
        ),
        ("dataset", {"training.dataset": "other-text"}, ALL),
        (
            "new-step",
            {f"{STEPS}.again": {"after": "export", "function": "training.inference.steps:evaluate"}},
            [("again", 1, "new")],
        ),
    ],
)
def test_an_edit_repeats_the_steps_whose_inputs_it_changes_and_those_after_them(
    synthesis: Synthesis, label: str, changes: dict[str, Any], expected: list[tuple[str, int, str]]
) -> None:
    found = change(synthesis, f"steps-{label}", changes)
    assert [(one.step, one.members, one.reason) for one in found.repeated_steps] == expected
    assert [tuple(one.values()) for one in to_json(found)["repeated_steps"]] == expected


def test_the_review_lists_the_steps_with_the_number_of_members(synthesis: Synthesis) -> None:
    found = change(synthesis, "steps-listed", {f"{STEPS}.train.sweep": {"optimizer.weight_decay": [0.1, 0.01]}})
    lines = {one.title: [line.text for line in one.lines] for one in sections(found)}
    assert lines["Next execution of the pipeline"] == [
        "train: 2 members; runs those whose inputs have changed",
        "evaluate: 1 member; runs again if the step before it produces other weights",
        "export: 1 member; runs again if the step before it produces other weights",
    ]


def test_a_removed_step_is_listed(synthesis: Synthesis) -> None:
    before = synthesis.of(BASE).directory
    steps = {
        "prepare": {"run": "prepare"},
        "train": {
            "after": "prepare",
            "sweep": {"optimizer.learning_rate": [6.0e-4, 3.0e-4], "optimizer.weight_decay": [0.1, 0.01]},
            "parallel": 2,
        },
    }
    after = synthesis.variant("steps-removed", {STEPS: steps}, base=BASE).directory
    found = repeated_steps(read_cloud_assembly(before), read_cloud_assembly(after))
    removed = [one.step for one in found if one.reason == "removed"]
    assert removed == ["evaluate", "export"]


def test_a_new_pipeline_and_other_deployments_repeat_nothing(synthesis: Synthesis) -> None:
    pipeline, other = (read_cloud_assembly(synthesis.of(name).directory) for name in (BASE, "minimal"))
    assert not repeated_steps(other, pipeline)
    assert not repeated_steps(pipeline, other)
    assert not repeated_steps(pipeline, pipeline)
