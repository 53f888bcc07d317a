"""Deployment, in-place changes and destruction of every example with the unmodified CDK CLI; a failed deployment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from stacks.loading import load
from tests.deploy.accounts import prepare
from tests.deploy.conftest import CDK, ROOT, Workplace
from tests.deploy.edits import IN_PLACE, edited, in_place_keys

EXAMPLES = sorted(path.stem for path in (ROOT / "config").glob("*.yaml"))
SAMPLE = "minimal"
REPLACED_BY_DESIGN = {"AWS::CloudWatch::Dashboard", "AWS::SNS::Subscription", "AWS::Budgets::Budget"}

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(not CDK.exists(), reason="node_modules is absent: npm ci"),
]


def example(name: str) -> dict[str, Any]:
    """Return an example that allows the deletion of its data."""
    config: dict[str, Any] = yaml.safe_load((ROOT / "config" / f"{name}.yaml").read_text())
    config.setdefault("storage", {})["deletion"] = "destroy"
    return config


def types_of(name: str) -> list[str]:
    return list(load(ROOT / "config" / f"{name}.yaml").capacity.instance_types)


def test_every_in_place_key_has_an_edit() -> None:
    assert set(IN_PLACE) == in_place_keys()


def test_every_edit_applies_to_an_example() -> None:
    applied = {path for name in EXAMPLES for path in edited(example(name), IN_PLACE)[1]}
    assert applied == {path for path, value in IN_PLACE.items() if value is not None}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == SAMPLE else pytest.mark.deploy) for name in EXAMPLES]
)
def test_example_is_deployed_changed_in_place_and_destroyed(name: str, workplace: Workplace) -> None:
    config = prepare(name, example(name), workplace)
    workplace.no_machines(types_of(name), config.get("region", "us-east-1"))
    created = workplace.deploy(config)
    assert created.exit_code == 0, created.output
    stacks = workplace.stacks()
    before = {stack: workplace.physical_ids(stack) for stack in stacks}
    versions = workplace.template_versions()
    changed, keys = edited(config, IN_PLACE)
    updated = workplace.deploy(changed)
    assert updated.exit_code == 0, updated.output
    assert keys
    for stack in stacks:
        after = workplace.physical_ids(stack)
        kept = {name for name, (kind, _) in before[stack].items() if kind not in REPLACED_BY_DESIGN and name in after}
        assert {name: after[name] for name in kept} == {name: before[stack][name] for name in kept}
    assert workplace.template_versions() == versions, "an in-place edit would replace nodes"
    destroyed = workplace.destroy()
    assert destroyed.exit_code == 0, destroyed.output
    assert workplace.stacks() == []
    assert workplace.denied() == []


@pytest.mark.deploy
def test_failed_deployment_leaves_existing_resources_unchanged(workplace: Workplace) -> None:
    """An existing parameter with the name of the run's parameter makes the training stack fail."""
    config = example(SAMPLE)
    workplace.no_machines(types_of(SAMPLE), config.get("region", "us-east-1"))
    ssm, ec2, iam = (workplace.cloud.client(name) for name in ("ssm", "ec2", "iam"))
    parameter = f"/trainstack/{config['name']}/run"
    ssm.put_parameter(Name=parameter, Value="mine", Type="String")
    failed = workplace.deploy(config)
    assert failed.exit_code != 0
    assert "already exists" in failed.output.lower()
    assert ssm.get_parameter(Name=parameter)["Parameter"]["Value"] == "mine"
    assert ec2.describe_launch_templates()["LaunchTemplates"] == []
    roles = [role["RoleName"] for role in iam.list_roles()["Roles"] if "TrainingStack" in role["RoleName"]]
    assert roles == []
    ssm.delete_parameter(Name=parameter)
    again = workplace.deploy(config)
    assert again.exit_code == 0, again.output


def test_edited_file_loads(tmp_path: Path) -> None:
    for name in EXAMPLES:
        config, _ = edited(example(name), IN_PLACE)
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(config))
        assert load(path).name == config["name"]
