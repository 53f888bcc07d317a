"""The configuration reference is complete and up to date."""

from __future__ import annotations

from typing import get_args

import pytest

from stacks.config import DeploymentConfig, Edit
from stacks.config.reference import configuration_page, fields

from .conftest import ROOT, Assembly, Synthesis

FIELDS = list(fields(DeploymentConfig))


@pytest.mark.parametrize(("path", "field", "edit"), FIELDS, ids=[path for path, _, _ in FIELDS])
def test_each_key_has_a_description_and_an_edit_effect(path: str, field: object, edit: str) -> None:
    description = field.description  # type: ignore[attr-defined]
    assert description and description.endswith("."), path
    assert edit in get_args(Edit)


def test_committed_page_matches_the_models() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    assert page == configuration_page(), "stale: python -m stacks docs > docs/configuration.md"


def test_page_has_each_key() -> None:
    page = configuration_page()
    for path, _, _ in FIELDS:
        assert f"| `{path.rsplit('.', 1)[-1]}` |" in page


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("tags", {"team": "research"}),
        ("capacity.nodes", 3),
        ("capacity.min_nodes", 1),
        ("capacity.gang_timeout_seconds", 200),
        ("capacity.boot_failure_limit", 5),
        ("node.ami", "ami-0123456789abcdef0"),
        ("node.root_volume.gib", 200),
        ("node.python.packages", ["torch"]),
        ("node.supervise.heartbeat_seconds", 2.0),
        ("node.boot_timeout_seconds", 60),
        ("training.run", "other"),
        ("training.processes_per_node", 2),
        ("training.config.seed", 1),
        ("training.config.data.documents", "apart"),
        ("observability.log_retention_days", 14),
    ],
    ids=lambda value: value if isinstance(value, str) and "." in value else "",
)
def test_edit_has_the_declared_effect(synthesis: Synthesis, demo: Assembly, path: str, value: object) -> None:
    (declared,) = (edit for name, _, edit in FIELDS if name == path)
    edited = synthesis.variant(f"edit-{path}", {path: value})
    before, after = demo.resources("TrainingStack"), edited.resources("TrainingStack")
    changed = {item["Type"] for name, item in after.items() if before.get(name) != item}
    if "AWS::EC2::LaunchTemplate" in changed:
        assert declared == "replaces nodes"
    elif "AWS::SSM::Parameter" in changed:
        needs_new_run = path in ("training.config.seed", "training.config.data.documents")
        assert declared == ("requires a new run" if needs_new_run else "restarts the trainer")
    else:
        assert changed and declared == "in place"
