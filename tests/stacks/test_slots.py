"""Slots: complete stacks with distinct names, no common object, and no common permission."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml

from stacks.changes.effects.costs import costs, quotas
from stacks.changes.templates.template_set import read_cloud_assembly
from stacks.config.slots import slot, slots_of
from stacks.loading import load

from .conftest import ROOT, Assembly, Synthesis

FILE = ROOT / "config" / "slots.yaml"
SLOTS = {"TrainingStack": "slots", "TrainingStack-2": "slots-2"}
HERE = "us-east-1:123456789012"
PSEUDO = {"AWS::Partition": "aws", "AWS::AccountId": "123456789012", "AWS::Region": "us-east-1"}
MAX_POLICY_CHARACTERS = 6144
"""White space does not count. Source (2026-11):
https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html"""
MAX_RESOURCES = 500
"""Source (2026-11): https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/cloudformation-limits.html"""
NAMES = ("LogGroupName", "AutoScalingGroupName", "Name", "MetricNamespace", "FunctionName", "LaunchTemplateName")
UNCONTROLLED = re.compile(r"[a-z0-9-]+:(Describe|Get|List)\w+|ssm:UpdateInstanceInformation|ssmmessages:\w+")
"""Actions that do not support resource-level permissions and change nothing of another fleet."""


@pytest.fixture(scope="module")
def two(synthesis: Synthesis) -> Assembly:
    return synthesis.of("slots")


@pytest.fixture(scope="module")
def ten(synthesis: Synthesis, tmp_path_factory: pytest.TempPathFactory) -> Assembly:
    """Ten slots of a deployment with all optional alarms, a budget, and GPUs."""
    content = yaml.safe_load(FILE.read_text())
    content |= {"name": "a-name-of-20-letters-", "limits": {"usd": 100.0}, "budget": {"monthly_usd": 100.0}}
    content["capacity"]["slots"] = 10
    content["observability"] = {"alarms": {"usd_per_hour": 5.0, "gpu_utilization_below_percent": 30}}
    path = tmp_path_factory.mktemp("ten") / "ten.yaml"
    path.write_text(yaml.safe_dump(content))
    return synthesis.run(path, "ten-slots")


def resolved(value: Any, stack: str) -> Any:
    """Return a template's value with resolved functions. Generated names start with the stack's name."""
    if isinstance(value, list):
        return [resolved(item, stack) for item in value]
    if not isinstance(value, dict):
        return value
    if "Ref" in value:
        return PSEUDO.get(value["Ref"], f"{stack}.{value['Ref']}")
    if "Fn::GetAtt" in value:
        return ".".join((stack, *value["Fn::GetAtt"]))
    if "Fn::ImportValue" in value:
        return f"arn:aws:s3:::{value['Fn::ImportValue']}"
    if "Fn::Join" in value:
        return value["Fn::Join"][0].join(str(resolved(item, stack)) for item in value["Fn::Join"][1])
    return {key: resolved(item, stack) for key, item in value.items()}


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def statements(assembly: Assembly, stack: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the statements that allow something, with their place."""
    for name, item in assembly.of_type(stack, "AWS::IAM::Policy").items():
        for statement in resolved(item["Properties"]["PolicyDocument"]["Statement"], stack):
            if statement["Effect"] == "Allow":
                yield f"{name}/{statement.get('Sid')}", statement


def objects(assembly: Assembly, stack: str, fleet: str) -> list[str]:
    """Return ARNs, or their ends, of what belongs to one fleet: objects, parameters, log streams, groups and roles."""
    (role,) = [name for name in assembly.of_type(stack, "AWS::IAM::Role") if name.startswith("NodeRole")]
    user = f"{stack}.{role}.RoleId:i-0123456789abcdef0"
    keys = [
        f"runs/{fleet}/run-1/checkpoints/log/00000001.json",
        f"runs/{fleet}/run-1/checkpoints/chunks/00000001/ab",
        f"runs/{fleet}/run-1/results/gen-1/node-0/metrics.jsonl",
        f"runs/{fleet}/run-1/control/outcome.json",
        f"runs/{fleet}/run-1/control/status.json",
        f"runs/{fleet}/run-1/control/generations/00000001.json",
        f"runs/{fleet}/run-1/control/heartbeats/{user}.json",
        f"controller/{fleet}/run-1.json",
        f"controller/{fleet}/ledger/state.json",
        f"nodes/{user}/boot-failure.json",
    ]
    buckets = sorted({arn.partition("/")[0] for arn in _bucket_arns(assembly, stack)})
    parameters = [f"arn:aws:ssm:{HERE}:parameter/trainstack/{fleet}/{name}" for name in ("run", "desired")]
    groups = [f"arn:aws:autoscaling:{HERE}:autoScalingGroup:1:autoScalingGroupName/trainstack-{fleet}"]
    logs = [f"arn:aws:logs:{HERE}:log-group:/trainstack/{fleet}:log-stream:i-1"]
    generated = [f"{stack}.{name}.Arn" for name in assembly.resources(stack)]
    return [*(f"{bucket}/{key}" for bucket in buckets for key in keys), *parameters, *groups, *logs, *generated]


def _bucket_arns(assembly: Assembly, stack: str) -> Iterator[str]:
    for _, statement in statements(assembly, stack):
        for resource in listed(statement["Resource"]):
            if resource.startswith("arn:aws:s3:::") and "Export" in resource:
                yield resource


def allowed(assembly: Assembly, stack: str, owned: list[str]) -> list[str]:
    """Return which of these objects a stack's roles may access, with the statement."""
    return [
        f"{place}: {arn}"
        for place, statement in statements(assembly, stack)
        for resource in listed(statement["Resource"])
        if resource != "*" and not resource.endswith("instance/*")
        for arn in owned
        if fnmatchcase(arn, resource)
    ]


@pytest.mark.parametrize(("stack", "other"), [list(SLOTS), list(reversed(SLOTS))])
def test_no_role_of_a_slot_may_access_anything_of_another_slot(two: Assembly, stack: str, other: str) -> None:
    assert allowed(two, stack, objects(two, other, SLOTS[other])) == []
    own = {line.rpartition(": ")[2] for line in allowed(two, stack, objects(two, stack, SLOTS[stack]))}
    for part in ("/log/0", "outcome.json", "heartbeats/", "ledger/state.json", "/run", "log-stream:", "trainstack-"):
        assert any(part in arn for arn in own), f"{part}: the slot's roles may not access their own objects"


@pytest.mark.parametrize(("stack", "fleet"), SLOTS.items())
def test_permissions_on_all_resources_change_nothing_of_another_slot(two: Assembly, stack: str, fleet: str) -> None:
    for place, statement in statements(two, stack):
        resources = listed(statement["Resource"])
        if "*" in resources:
            assert all(UNCONTROLLED.fullmatch(action) for action in listed(statement["Action"])), place
        if any(resource.endswith("instance/*") for resource in resources):
            assert {"aws:ResourceTag/trainstack:deployment": fleet} in statement["Condition"].values(), place


def test_no_fixed_name_occurs_in_two_slots(two: Assembly) -> None:
    def names(stack: str) -> set[str]:
        found = (item.get("Properties", {}).get(key) for item in two.resources(stack).values() for key in NAMES)
        return {value for value in found if isinstance(value, str)}

    first, second = names("TrainingStack"), names("TrainingStack-2")
    assert "/trainstack/slots" in first and "/trainstack/slots-2" in second
    assert first & second == set()


def test_only_the_first_slot_has_a_run_document(two: Assembly) -> None:
    assert [len(two.of_type(stack, "AWS::SSM::Parameter")) for stack in SLOTS] == [1, 0]
    run = json.loads(two.text("TrainingStack-2"))["Outputs"]["RunParameter"]["Value"]
    function = two.one("TrainingStack-2", "AWS::Lambda::Function")
    variables = function["Properties"]["Environment"]["Variables"]
    assert run == variables["RUN_PARAMETER"] == "/trainstack/slots-2/run"
    assert variables["DEPLOYMENT"] == "slots-2"


def test_the_first_slot_does_not_depend_on_the_number_of_slots(two: Assembly, synthesis: Synthesis) -> None:
    content = yaml.safe_load(FILE.read_text())
    content["capacity"]["slots"] = 1
    path = Path(synthesis.of("slots").directory).parent / "one-slot.yaml"
    path.write_text(yaml.safe_dump(content))
    assert synthesis.run(path, "one-slot").text("TrainingStack") == two.text("TrainingStack")


def test_each_slot_has_alarms_and_a_part_of_the_dashboard(two: Assembly) -> None:
    alarms = two.of_type("ObservabilityStack", "AWS::CloudWatch::Alarm").values()
    spaces = [item["Properties"].get("Namespace") for item in alarms]
    assert spaces.count("Trainstack/slots") == spaces.count("Trainstack/slots-2") > 5
    second = [item["Properties"] for item in alarms if item["Properties"].get("Namespace") == "Trainstack/slots-2"]
    assert all("slots-2: " in each["AlarmDescription"] for each in second)
    board = json.dumps(two.one("ObservabilityStack", "AWS::CloudWatch::Dashboard")["Properties"]["DashboardBody"])
    assert "## slots" in board and "## slots-2" in board and "/trainstack/slots-2/run-controller" in board


def test_ten_slots_stay_within_the_limits(ten: Assembly) -> None:
    stacks = sorted(path.name.removesuffix(".template.json") for path in ten.directory.glob("*.template.json"))
    assert len(stacks) == 13
    assert max(len(ten.resources(stack)) for stack in stacks) <= MAX_RESOURCES
    policy = ten.one("StorageStack", "AWS::IAM::ManagedPolicy")["Properties"]["PolicyDocument"]
    assert len(re.sub(r"\s", "", json.dumps(resolved(policy, "StorageStack")))) <= MAX_POLICY_CHARACTERS
    budget = ten.one("ObservabilityStack", "AWS::Budgets::Budget")["Properties"]["Budget"]
    assert len(budget["CostFilters"]["TagKeyValue"]) == 10


def test_costs_and_quotas_count_each_slot(two: Assembly) -> None:
    every = read_cloud_assembly(two.directory)
    first = {name: stack for name, stack in every.items() if name != "TrainingStack-2"}
    both, one = costs(every), costs(first)
    assert both is not None and one is not None and both.fleet == f"2 slots of {one.fleet}"
    assert both.training_per_hour is not None and one.training_per_hour is not None
    assert both.training_per_hour == one.training_per_hour.times(2)
    assert [each.vcpus for each in quotas(every)] == [2 * each.vcpus for each in quotas(first)] != []


def test_slots_of_a_deployment() -> None:
    config = load(FILE)
    assert config.stacks == ("NetworkStack", "StorageStack", "TrainingStack", "TrainingStack-2", "ObservabilityStack")
    first, second = slots_of(config)
    assert (first.stack, first.config.name, first.owns_run_parameter) == ("TrainingStack", "slots", True)
    assert (second.stack, second.config.name, second.owns_run_parameter) == ("TrainingStack-2", "slots-2", False)
    assert second.config.desired_parameter == "/trainstack/slots-2/desired"
    assert second.config.training == config.training


def test_a_slot_can_have_other_capacity() -> None:
    made = slot(load(FILE), "evaluate-1", {"instance_types": ["g6.xlarge"], "nodes": 2})
    assert (made.stack, made.config.name) == ("TrainingStack-evaluate-1", "slots-evaluate-1")
    assert (made.config.capacity.instance_types, made.config.capacity.nodes) == (["g6.xlarge"], 2)
    assert made.config.capacity.slots == 1
