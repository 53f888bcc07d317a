"""Snapshots against accidental changes of stateful resources and permissions.

To accept a change, run `UPDATE_SNAPSHOTS=1 python -m pytest tests/stacks/test_snapshots.py`, and explain it in the
commit.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from .conftest import STACKS, Assembly

HERE = Path(__file__).parent
STATEFUL = {"AWS::S3::Bucket", "AWS::KMS::Key", "AWS::EC2::VPC", "AWS::EC2::Subnet", "AWS::SSM::Parameter"}


def compare(name: str, found: Any, update: bool, meaning: str) -> None:
    path = HERE / name
    text = json.dumps(found, indent=1, sort_keys=True) + "\n"
    if update:
        path.write_text(text)
    assert json.loads(path.read_text()) == found, meaning


@pytest.fixture
def update() -> bool:
    return os.environ.get("UPDATE_SNAPSHOTS") == "1"


def test_stateful_resources_keep_their_logical_ids(demo: Assembly, update: bool) -> None:
    found = {
        stack: {name: item["Type"] for name, item in demo.resources(stack).items() if item["Type"] in STATEFUL}
        for stack in STACKS
    }
    compare(
        "logical_ids.json",
        found,
        update,
        "CloudFormation replaces a resource with another logical id, without its data",
    )


def test_permissions_match_the_reviewed_ones(demo: Assembly, update: bool) -> None:
    found: dict[str, Any] = {}
    for stack in STACKS:
        for role in demo.of_type(stack, "AWS::IAM::Role"):
            statements = demo.statements(stack, role)
            found[f"{stack}/{role}"] = {
                sid: {key: value for key, value in statement.items() if key != "Sid"}
                for sid, statement in statements.items()
            }
    compare("iam.json", found, update, "permissions changed: explain broader ones in the commit")
