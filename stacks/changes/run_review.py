"""Reviews a run that starts in a slot, whose run document is in no template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stacks.changes.causes import edits
from stacks.changes.review import Review, review
from stacks.changes.templates.template_set import StackTemplate

RUN = "Run"
"""Logical id of the run document in the first slot's template."""


def review_run(slot: StackTemplate, reviewed: Mapping[str, Any], run: Mapping[str, Any]) -> Review:
    """Review a run document as a deploy of the same document to the slot's stack would be reviewed.

    Args:
        slot: The slot's deployed stack, with the id of the first slot's.
        reviewed: The deployed run document of the first slot, which a deploy has reviewed.
        run: The run document to review.
    """
    before, after = (
        {slot.id: _with_run(slot, document)} for document in ({**reviewed, "deployment": run["deployment"]}, run)
    )
    return review(before, after, edits=list(edits(_keys(reviewed), _keys(run))))


def _with_run(stack: StackTemplate, document: Mapping[str, Any]) -> StackTemplate:
    parameter = {"Type": "AWS::SSM::Parameter", "Properties": {"Type": "String", "Value": json.dumps(document)}}
    resources = {**stack.resources, RUN: parameter}
    return replace(stack, template={**stack.template, "Resources": resources})


def _keys(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of the deployment file that determine what differs between two runs."""
    return {"training": {"run": document["run"], "config": document["training"]}}
