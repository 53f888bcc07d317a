"""Policy of CloudFormation's execution role: completeness, size, scope, and no privilege escalation."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from localcloud.iam.policy import Access, verdict
from stacks.__main__ import main
from stacks.changes.updates.schemas import schema
from stacks.config import DeploymentConfig
from stacks.constructs.cdk_bootstrap_roles import QUALIFIER_KEY, project_qualifier
from stacks.errors import ConfigError
from stacks.execution_policy.documents import MAX_CHARACTERS, MAX_DOCUMENTS, Deployments, documents
from stacks.execution_policy.kept import KEPT
from stacks.execution_policy.needed import TYPES, WITHOUT_HANDLERS, needed, trim_reason
from stacks.execution_policy.trimmed import TRIMMED
from stacks.loading import read

from .conftest import CONFIGS, ROOT, Synthesis
from .test_permissions_boundary import stacks_of

ACCOUNT = "123456789012"
POLICIES = sorted((ROOT / "policy").glob("execution-policy-*.json"))
BOUNDARY = ROOT / "policy" / "execution-boundary.json"


def load(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


def test_committed_documents_match_the_examples(tmp_path: Path) -> None:
    configs = sorted((ROOT / "config").rglob("*.yaml"))
    assert main(["execution-policy", *map(str, configs), "--output", str(tmp_path)]) == 0
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    committed = {path.name: path.read_text() for path in (*POLICIES, BOUNDARY)}
    assert written == committed, "stale: python -m stacks execution-policy --output policy"


def test_documents_fit_into_a_role() -> None:
    assert 0 < len(POLICIES) <= MAX_DOCUMENTS
    for path in (*POLICIES, BOUNDARY):
        assert len(json.dumps(load(path), separators=(",", ":"))) <= MAX_CHARACTERS


@pytest.mark.parametrize("name", CONFIGS)
def test_each_resource_type_of_an_example_is_known(synthesis: Synthesis, name: str) -> None:
    assembly = synthesis.of(name)
    held = {item["Type"] for stack in stacks_of(assembly) for item in assembly.resources(stack).values()}
    assert held <= set(TYPES), "add the type to stacks/execution_policy/needed.py, and write the policies again"


def test_each_resource_type_of_optional_parts_is_known(synthesis: Synthesis) -> None:
    variants = {
        "policy-nat": {"network.nat": True, "budget.monthly_usd": 100.0},
        "policy-reservation": {
            "capacity.market": "reserved",
            "capacity.reservation": {"create": {"instance_type": "g6.xlarge", "zone": "a", "count": 1}},
        },
    }
    made = [synthesis.variant(label, changes, base="minimal") for label, changes in variants.items()]
    made.append(synthesis.run(ROOT / "config" / "delivery" / "production.yaml", "policy-delivery"))
    for assembly in made:
        held = {item["Type"] for stack in stacks_of(assembly) for item in assembly.resources(stack).values()}
        assert held <= set(TYPES)


def test_each_permission_of_a_schema_is_allowed_or_trimmed() -> None:
    found = needed()
    for name in TYPES:
        handlers = schema(name).get("handlers", {})
        assert handlers or name in WITHOUT_HANDLERS, f"{name}: its schema has no permissions"
        for handler, described in handlers.items():
            for action in described.get("permissions", []) if handler != "list" else []:
                assert action in found or trim_reason(action), (name, action)


def test_trimmed_permissions_of_delete_handlers() -> None:
    """A trimmed permission must not leave a resource behind."""
    left = {
        action
        for name in TYPES
        for action in schema(name).get("handlers", {}).get("delete", {}).get("permissions", [])
        if trim_reason(action)
    }
    assert left <= {
        *("iam:DeleteGroupPolicy", "iam:DeleteUserPolicy", "iam:GetGroupPolicy", "iam:GetUserPolicy"),
        *("iam:DetachGroupPolicy", "iam:DetachUserPolicy", "iam:DeleteServiceLinkedRole"),
        *("iam:GetServiceLinkedRoleDeletionStatus", "iam:DeleteRolePermissionsBoundary", "ec2:CreateSnapshot"),
        *("managed-fleets:DeleteAutoScalingGroup", "managed-fleets:Get*", "s3:DeleteObject"),
        *("vpc-lattice:DescribeServiceNetworkVpcEndpointAssociation", "vpce:AllowMultiRegion", "ec2:DetachVpnGateway"),
        *("ec2:DescribeVpnGateways", "logs:DeleteLogDelivery"),
    }


def test_each_trimmed_pattern_matches_an_action() -> None:
    named = {
        action
        for name in TYPES
        for handler in schema(name).get("handlers", {}).values()
        for action in handler.get("permissions", [])
    }
    idle = [pattern for pattern, reason in TRIMMED if not any(fnmatchcase(action, pattern) for action in named)]
    assert idle == []


def test_each_unexercised_action_has_a_reason_and_each_reason_an_action() -> None:
    exercised = json.loads((ROOT / "policy" / "exercised.json").read_text())
    found = needed()
    beyond = [action for action in exercised if not any(fnmatchcase(action, pattern) for pattern in found)]
    assert beyond == []
    idle = [action for action in found if not any(fnmatchcase(used, action) for used in exercised)]
    reasons = {action: next((each for each, _ in KEPT if fnmatchcase(action, each)), None) for action in idle}
    assert [action for action, pattern in reasons.items() if pattern is None] == []
    assert {pattern for pattern, _ in KEPT} == set(reasons.values())


def allowed(action: str, resource: str, **context: str) -> bool:
    keys = {"aws:requestedregion": ["us-east-1"]} | {name.replace("_", ":"): [value] for name, value in context.items()}
    documents_ = [load(path) for path in POLICIES]
    access = Access(action, resource, {})
    return all(verdict(each, access, keys, None) == "allow" for each in (documents_, [load(BOUNDARY)]))


def iam(resource: str) -> str:
    return f"arn:aws:iam::{ACCOUNT}:{resource}"


DEPLOYMENT_BOUNDARY = iam("policy/trainstack-minimal-us-east-1-boundary")
FILE_SYSTEM_ROLE = iam(
    "role/aws-service-role/s3.data-source.lustre.fsx.amazonaws.com/AWSServiceRoleForFSxS3Access_fs-0123456789abcdef0"
)
ROLE = iam("role/minimal-TrainingStack-NodeRole-x")


@pytest.mark.parametrize(
    ("action", "resource", "context", "expected"),
    [
        ("iam:CreateRole", ROLE, {"iam_permissionsboundary": DEPLOYMENT_BOUNDARY}, True),
        ("iam:CreateRole", ROLE, {}, False),
        ("iam:CreateRole", ROLE, {"iam_permissionsboundary": iam("policy/AdministratorAccess")}, False),
        ("iam:CreateRole", iam("role/Administrator"), {"iam_permissionsboundary": DEPLOYMENT_BOUNDARY}, False),
        ("iam:PutRolePolicy", ROLE, {"iam_permissionsboundary": DEPLOYMENT_BOUNDARY}, True),
        ("iam:PutRolePolicy", ROLE, {}, False),
        ("iam:AttachRolePolicy", iam("role/Administrator"), {}, False),
        # The permissions in https://docs.aws.amazon.com/fsx/latest/LustreGuide/setting-up.html (2026-11)
        ("iam:AttachRolePolicy", FILE_SYSTEM_ROLE, {}, True),
        ("iam:PutRolePolicy", FILE_SYSTEM_ROLE, {}, True),
        (
            *("iam:CreateServiceLinkedRole", FILE_SYSTEM_ROLE),
            *({"iam_awsservicename": "s3.data-source.lustre.fsx.amazonaws.com"}, True),
        ),
        ("iam:CreateRole", FILE_SYSTEM_ROLE, {}, False),
        ("iam:PutRolePolicy", iam("role/aws-service-role/spot.amazonaws.com/AWSServiceRoleForEC2Spot"), {}, False),
        # A dependent action of ec2:CreateVpcEndpoint with private DNS names. Route 53's requests always have the region
        # us-east-1: https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2.html
        ("route53:AssociateVPCWithHostedZone", "arn:aws:route53:::hostedzone/Z1", {}, True),
        (
            *("route53:AssociateVPCWithHostedZone", "arn:aws:route53:::hostedzone/Z1"),
            *({"aws_requestedregion": "eu-central-1"}, True),
        ),
        ("ec2:GetSecurityGroupsForVpc", f"arn:aws:ec2:us-east-1:{ACCOUNT}:vpc/vpc-1", {}, True),
        ("iam:UpdateAssumeRolePolicy", iam("role/Administrator"), {}, False),
        ("iam:UpdateAssumeRolePolicy", iam("role/cdk-hnb659fds-deploy-role-x"), {}, False),
        ("iam:DeleteRolePermissionsBoundary", ROLE, {"iam_permissionsboundary": DEPLOYMENT_BOUNDARY}, False),
        ("iam:PassRole", ROLE, {"iam_passedtoservice": "ec2.amazonaws.com"}, True),
        ("iam:PassRole", ROLE, {"iam_passedtoservice": "glue.amazonaws.com"}, False),
        ("iam:PassRole", iam("role/Administrator"), {"iam_passedtoservice": "ec2.amazonaws.com"}, False),
        ("iam:CreatePolicyVersion", DEPLOYMENT_BOUNDARY, {}, True),
        ("iam:CreatePolicyVersion", iam("policy/trainstack-execution-policy-1"), {}, False),
        ("iam:CreatePolicyVersion", iam("policy/trainstack-execution-boundary"), {}, False),
        ("iam:CreateUser", iam("user/x"), {}, False),
        ("iam:CreateAccessKey", iam("user/x"), {}, False),
        (
            "iam:CreateServiceLinkedRole",
            iam("role/aws-service-role/x/y"),
            {"iam_awsservicename": "spot.amazonaws.com"},
            True,
        ),
        (
            "iam:CreateServiceLinkedRole",
            iam("role/aws-service-role/x/y"),
            {"iam_awsservicename": "support.amazonaws.com"},
            False,
        ),
        ("sts:AssumeRole", iam("role/Administrator"), {}, False),
        ("s3:DeleteBucket", "arn:aws:s3:::minimal-storagestack-checkpoints-x", {}, True),
        ("s3:DeleteBucket", "arn:aws:s3:::of-another-owner", {}, False),
        ("s3:GetObject", "arn:aws:s3:::minimal-storagestack-checkpoints-x/runs/1", {}, False),
        ("s3:GetObject", f"arn:aws:s3:::cdk-hnb659fds-assets-{ACCOUNT}-us-east-1/x.zip", {}, True),
        ("ssm:PutParameter", f"arn:aws:ssm:us-east-1:{ACCOUNT}:parameter/password", {}, False),
        ("lambda:UpdateFunctionCode", f"arn:aws:lambda:us-east-1:{ACCOUNT}:function:of-another-owner", {}, False),
        ("ec2:DeleteVpc", f"arn:aws:ec2:us-east-1:{ACCOUNT}:vpc/vpc-1", {}, True),
        ("ec2:DeleteVpc", f"arn:aws:ec2:eu-west-1:{ACCOUNT}:vpc/vpc-1", {"aws_requestedregion": "eu-west-1"}, False),
        ("organizations:LeaveOrganization", "*", {}, False),
    ],
)
def test_decision_for_a_call(action: str, resource: str, context: dict[str, str], expected: bool) -> None:
    assert allowed(action, resource, **context) is expected


def config(name: str) -> DeploymentConfig:
    return read(ROOT / "config" / "minimal.yaml").model_copy(update={"name": name})


def test_function_code_comes_from_the_bucket_of_the_qualifier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names follow `cdk bootstrap --qualifier`: aws/aws-cdk issue 18453."""
    project = json.loads((ROOT / "cdk.json").read_text())
    project["context"][QUALIFIER_KEY] = "mine"
    (tmp_path / "cdk.json").write_text(json.dumps(project))
    monkeypatch.chdir(tmp_path)
    assert main(["execution-policy", str(ROOT / "config" / "minimal.yaml"), "--output", "policy"]) == 0
    written = [json.loads(path.read_text()) for path in Path("policy").iterdir()]
    code = [s["Resource"] for one in written for s in one["Statement"] if s["Sid"] == "FunctionCode"]
    assert code == [["arn:aws:s3:::cdk-mine-assets-*/*"]]
    (tmp_path / "cdk.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"cdk\.json: 1 problem"):
        project_qualifier()


def test_rejects_too_many_deployments() -> None:
    few = documents(needed(), Deployments.of([config("one")]))
    assert len(few) <= 3
    with pytest.raises(ValueError, match="pass fewer deployment files"):
        documents(needed(), Deployments.of([config(f"deployment-number-{number:03}") for number in range(200)]))
