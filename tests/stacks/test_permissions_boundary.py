"""Permissions boundary: every role has it, it allows their grants, and it prevents privilege escalation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from localcloud.iam.policy import Access, verdict
from stacks.constructs.cdk_bootstrap_roles import QUALIFIER_KEY
from stacks.constructs.permissions_boundary import WITHOUT_RESOURCE_LEVEL

from .conftest import CLUSTERS, CONFIGS, ROOT, Assembly, Synthesis

ACCOUNT, REGION = "123456789012", "us-east-1"
PSEUDO = {"AWS::Partition": "aws", "AWS::AccountId": ACCOUNT, "AWS::Region": REGION, "AWS::StackName": "stack"}
CONTEXT = {"aws:resourceaccount": [ACCOUNT], "iam:passedtoservice": ["ec2.amazonaws.com"]}


def stacks_of(assembly: Assembly) -> list[str]:
    return sorted(path.name.removesuffix(".template.json") for path in assembly.directory.glob("*.template.json"))


def plain(value: Any, arns: dict[str, str]) -> Any:
    """Return a template's value with resolved functions, and placeholder names for deployed resources."""
    if isinstance(value, list):
        return [plain(item, arns) for item in value]
    if not isinstance(value, dict):
        return value
    if "Ref" in value:
        return PSEUDO.get(value["Ref"], f"made-{value['Ref'].lower()}")
    if "Fn::GetAtt" in value:
        return arns.get(value["Fn::GetAtt"][0], f"made-{value['Fn::GetAtt'][0].lower()}")
    if "Fn::ImportValue" in value:
        text = json.dumps(value["Fn::ImportValue"])
        return next((arn for name, arn in arns.items() if name in text and "Arn" in text), "imported")
    if "Fn::Join" in value:
        return value["Fn::Join"][0].join(str(plain(item, arns)) for item in value["Fn::Join"][1])
    if "Fn::Sub" in value:
        text = str(value["Fn::Sub"])
        for name, known in PSEUDO.items():
            text = text.replace("${" + name + "}", known)
        return text
    return {key: plain(item, arns) for key, item in value.items()}


KINDS = {
    "AWS::S3::Bucket": "arn:aws:s3:::made-{name}",
    "AWS::KMS::Key": f"arn:aws:kms:{REGION}:{ACCOUNT}:key/made-{{name}}",
    "AWS::Logs::LogGroup": f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:{{stack}}-{{name}}:*",
    "AWS::EC2::Volume": f"arn:aws:ec2:{REGION}:{ACCOUNT}:volume/made-{{name}}",
    "AWS::IAM::Role": f"arn:aws:iam::{ACCOUNT}:role/{{stack}}-{{name}}",
    "AWS::SQS::Queue": f"arn:aws:sqs:{REGION}:{ACCOUNT}:{{stack}}-{{name}}",
}


def arns_of(assembly: Assembly) -> dict[str, str]:
    manifest = json.loads((assembly.directory / "manifest.json").read_text())["artifacts"]
    return {
        name: KINDS[item["Type"]].format(stack=manifest[stack]["properties"]["stackName"], name=name)
        for stack in stacks_of(assembly)
        for name, item in assembly.resources(stack).items()
        if item["Type"] in KINDS
    }


UNBOUNDED = "EksStack/ClusterRole"
"""With EKS's own policies, Karpenter creates instance profiles, which the boundary denies."""


def boundary(assembly: Assembly, stack: str = "StorageStack") -> dict[str, Any]:
    """Return the boundary of a stack's roles: NetworkStack has its own, the others share StorageStack's."""
    owner = stack if stack == "NetworkStack" else "StorageStack"
    document = assembly.one(owner, "AWS::IAM::ManagedPolicy")["Properties"]["PolicyDocument"]
    result: dict[str, Any] = plain(document, {})
    return result


def grants(assembly: Assembly) -> Iterator[tuple[str, str, str]]:
    """Yield each allowed action and resource of a role's policies, with the place of the statement."""
    arns = arns_of(assembly)
    for stack in stacks_of(assembly):
        for name, item in assembly.resources(stack).items():
            if item["Type"] != "AWS::IAM::Policy":
                continue
            for statement in plain(item["Properties"]["PolicyDocument"]["Statement"], arns):
                actions, resources = (
                    [found] if isinstance(found := statement[key], str) else found for key in ("Action", "Resource")
                )
                for action in actions:
                    for resource in resources:
                        yield f"{stack}/{name}/{statement.get('Sid')}", action, resource


@pytest.mark.parametrize("name", (*CONFIGS, *CLUSTERS))
def test_each_role_has_the_boundary(synthesis: Synthesis, name: str) -> None:
    assembly = synthesis.of(name)
    free = [
        f"{stack}/{role}"
        for stack in stacks_of(assembly)
        for role, item in assembly.of_type(stack, "AWS::IAM::Role").items()
        if "boundary" not in json.dumps(item["Properties"].get("PermissionsBoundary", "")).lower()
    ]
    assert [each for each in free if not each.startswith(UNBOUNDED)] == []


@pytest.mark.parametrize("name", (*CONFIGS, *CLUSTERS))
def test_boundary_allows_each_grant(synthesis: Synthesis, name: str) -> None:
    """A grant outside the boundary is denied at run time: extend stacks/constructs/permissions_boundary.py too."""
    assembly = synthesis.of(name)
    above = [
        (where, action, resource)
        for where, action, resource in grants(assembly)
        if not where.startswith(UNBOUNDED)
        and verdict([boundary(assembly, where.split("/")[0])], Access(action, resource, {}), CONTEXT, None) != "allow"
    ]
    assert above == []


def test_boundary_allows_the_launches_of_spot_fleets_role(demo: Assembly) -> None:
    """RunInstances authorizes each resource that a launch uses, and images and snapshots have no account.

    Source (2026-11): https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2.html
    """
    here = f"arn:aws:ec2:{REGION}:{ACCOUNT}"
    used = [f"{here}:{kind}/x" for kind in ("instance", "network-interface", "security-group", "subnet", "volume")]
    used += [f"arn:aws:ec2:{REGION}::{kind}/x" for kind in ("image", "snapshot")]
    denied = [
        one for one in used if verdict([boundary(demo)], Access("ec2:RunInstances", one, {}), CONTEXT, None) != "allow"
    ]
    assert denied == []


@pytest.mark.parametrize(
    ("action", "resource"),
    [
        ("iam:CreateRole", f"arn:aws:iam::{ACCOUNT}:role/demo-x"),
        ("iam:PutRolePolicy", f"arn:aws:iam::{ACCOUNT}:role/demo-x"),
        ("iam:DeleteRolePermissionsBoundary", f"arn:aws:iam::{ACCOUNT}:role/demo-x"),
        ("iam:PassRole", f"arn:aws:iam::{ACCOUNT}:role/Administrator"),
        ("sts:AssumeRole", f"arn:aws:iam::{ACCOUNT}:role/Administrator"),
        ("s3:PutBucketPolicy", "arn:aws:s3:::made-bucket"),
        ("s3:DeleteBucket", "arn:aws:s3:::made-bucket"),
        ("ssm:GetParameter", f"arn:aws:ssm:{REGION}:{ACCOUNT}:parameter/trainstack/other/run"),
        ("ssm:GetParameter", f"arn:aws:ssm:{REGION}:{ACCOUNT}:parameter/password"),
        ("kms:ScheduleKeyDeletion", f"arn:aws:kms:{REGION}:{ACCOUNT}:key/made"),
        ("kms:Decrypt", f"arn:aws:kms:eu-west-1:{ACCOUNT}:key/made"),
        ("ec2:RunInstances", f"arn:aws:ec2:eu-west-1:{ACCOUNT}:instance/*"),
        (
            "autoscaling:UpdateAutoScalingGroup",
            f"arn:aws:autoscaling:{REGION}:{ACCOUNT}:autoScalingGroup:x:autoScalingGroupName/trainstack-other",
        ),
    ],
)
def test_boundary_limits_an_administrator_policy(demo: Assembly, action: str, resource: str) -> None:
    assert verdict([boundary(demo)], Access(action, resource, {}), CONTEXT, None) != "allow"


def test_boundary_denies_buckets_of_other_accounts(demo: Assembly) -> None:
    access = Access("s3:GetObject", "arn:aws:s3:::made-bucket/x", {})
    assert verdict([boundary(demo)], access, CONTEXT, None) == "allow"
    assert verdict([boundary(demo)], access, {**CONTEXT, "aws:resourceaccount": ["210987654321"]}, None) != "allow"


def test_star_resources_only_for_calls_without_resource_level(demo: Assembly) -> None:
    everywhere = [s for s in boundary(demo)["Statement"] if s["Effect"] == "Allow" and "*" in s["Resource"]]
    assert [set(statement["Action"]) for statement in everywhere if statement["Resource"] == "*"] == [
        set(WITHOUT_RESOURCE_LEVEL)
    ]


def test_boundary_fits_into_a_managed_policy(demo: Assembly) -> None:
    assert len(json.dumps(boundary(demo), separators=(",", ":"))) <= 6144


def test_configured_boundary_replaces_the_default(synthesis: Synthesis) -> None:
    arn = f"arn:aws:iam::{ACCOUNT}:policy/company-boundary"
    assembly = synthesis.variant("own-boundary", {"node.permissions_boundary": arn})
    roles = [role for stack in stacks_of(assembly) for role in assembly.of_type(stack, "AWS::IAM::Role").values()]
    assert {role["Properties"]["PermissionsBoundary"] for role in roles} == {arn}
    created = [stack for stack in stacks_of(assembly) if assembly.of_type(stack, "AWS::IAM::ManagedPolicy")]
    assert not created, "accounts that require a boundary often deny iam:CreatePolicy"


def test_session_manager_and_extra_policies_are_optional(synthesis: Synthesis, demo: Assembly) -> None:
    extra = "arn:aws:iam::aws:policy/AmazonS3ReadOnlyAccess"
    assembly = synthesis.variant("no-shell", {"node.session_manager": False, "node.extra_policies": [extra]})
    role = next(name for name in demo.of_type("TrainingStack", "AWS::IAM::Role") if name.startswith("NodeRole"))
    before, after = demo.statements("TrainingStack", role), assembly.statements("TrainingStack", role)
    assert set(before) - set(after) == {"SessionManager"}
    assert assembly.resources("TrainingStack")[role]["Properties"]["ManagedPolicyArns"] == [extra]


def test_own_bootstrap_qualifier_reaches_every_name(synthesis: Synthesis) -> None:
    """A node that reads its bundle from the default qualifier's bucket cannot boot: aws/aws-cdk issue 18453."""
    own = {QUALIFIER_KEY: "mine"}
    deployment = synthesis.variant("own-qualifier", {}, **own)
    delivery = synthesis.run(ROOT / "config" / "delivery" / "production.yaml", "own-qualifier-delivery", **own)
    for assembly in (deployment, delivery):
        assert [path.name for path in assembly.directory.rglob("*.json") if "hnb659fds" in path.read_text()] == []
    (fetch,) = [
        resource
        for where, action, resource in grants(deployment)
        if action == "s3:GetObject" and where.endswith("/FetchBundles")
    ]
    assert fetch == f"arn:aws:s3:::cdk-mine-assets-{ACCOUNT}-{REGION}/*.zip"
    assert f"role/cdk-mine-lookup-role-{ACCOUNT}" in json.dumps(plain(delivery.resources("PipelineStack"), {}))
