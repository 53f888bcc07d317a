"""IAM resource types, created, updated and deleted in moto."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import boto3
import pytest

from localcloud.cloudformation.provider import ResourceFailure
from localcloud.cloudformation.providers import registry

Lifecycle = Callable[..., None]


def iam(operation: str, **arguments: Any) -> Any:
    return getattr(boto3.client("iam"), operation)(**arguments)


def document(action: str) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": action, "Resource": "*"}]}


def trust(service: str) -> dict[str, Any]:
    statement = {"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}
    return {"Version": "2012-10-17", "Statement": [statement]}


def test_update_detaches_a_policy_that_is_not_attached(context: Callable[..., Any]) -> None:
    provider, plain = registry()["AWS::IAM::Role"], {"AssumeRolePolicyDocument": trust("ec2.amazonaws.com")}
    made = provider.create(context(), plain)
    missing = plain | {"ManagedPolicyArns": ["arn:aws:iam::aws:policy/NoSuchPolicy"]}
    with pytest.raises(boto3.client("iam").exceptions.NoSuchEntityException):
        provider.update(context(), made.physical_id, plain, missing)
    provider.update(context(), made.physical_id, missing, plain)
    assert iam("list_attached_role_policies", RoleName=made.physical_id)["AttachedPolicies"] == []


def test_role(lifecycle: Lifecycle, world: Any) -> None:
    read, core = world.managed_policy(), world.managed_policy(1)

    def role(*names: str) -> Callable[[str], Any]:
        return lambda name: tuple(iam("get_role", RoleName=name)["Role"].get(key, "") for key in names)

    def attached(name: str) -> list[str]:
        return [p["PolicyArn"] for p in iam("list_attached_role_policies", RoleName=name)["AttachedPolicies"]]

    def inline(name: str) -> dict[str, str]:
        return {
            policy: iam("get_role_policy", RoleName=name, PolicyName=policy)["PolicyDocument"]["Statement"][0]["Action"]
            for policy in iam("list_role_policies", RoleName=name)["PolicyNames"]
        }

    def tags(name: str) -> dict[str, str]:
        return {tag["Key"]: tag["Value"] for tag in iam("list_role_tags", RoleName=name)["Tags"]}

    one, two = ({"PolicyName": name, "PolicyDocument": document(f"s3:{name}")} for name in ("One", "Two"))
    lifecycle(
        "AWS::IAM::Role",
        {
            "AssumeRolePolicyDocument": trust("ec2.amazonaws.com"),
            "ManagedPolicyArns": [read],
            "Policies": [one, two],
            "Description": "d",
            "PermissionsBoundary": read,
            "Tags": [{"Key": "Name", "Value": "mine"}],
        },
        ({}, inline, {"One": "s3:One", "Two": "s3:Two"}),
        ({}, attached, [read]),
        (
            {"AssumeRolePolicyDocument": trust("lambda.amazonaws.com")},
            lambda name: role("AssumeRolePolicyDocument")(name)[0]["Statement"][0]["Principal"]["Service"],
            "lambda.amazonaws.com",
        ),
        ({"ManagedPolicyArns": [core]}, attached, [core]),
        ({"Policies": [{**one, "PolicyDocument": document("s3:Get")}]}, inline, {"One": "s3:Get"}),
        ({"Description": "e", "MaxSessionDuration": "7200"}, role("Description", "MaxSessionDuration"), ("e", 7200)),
        ({"Description": None, "MaxSessionDuration": None}, role("MaxSessionDuration"), (3600,)),
        (
            {"PermissionsBoundary": core},
            lambda name: role("PermissionsBoundary")(name)[0]["PermissionsBoundaryArn"],
            core,
        ),
        ({"PermissionsBoundary": None}, role("PermissionsBoundary"), ("",)),
        ({"Tags": None}, lambda name: set(tags(name)), {"team"}),
        ref=r"Demo-Thing-[0-9a-f]{12}",
        tags=tags,
    )


def test_role_with_other_policies_is_not_deleted(context: Any) -> None:
    provider = registry()["AWS::IAM::Role"]
    properties = {"AssumeRolePolicyDocument": trust("ec2.amazonaws.com"), "RoleName": "kept"}
    provider.create(context(), properties)
    iam("put_role_policy", RoleName="kept", PolicyName="theirs", PolicyDocument=json.dumps(document("s3:*")))
    with pytest.raises(boto3.client("iam").exceptions.DeleteConflictException):
        provider.delete(context(), "kept", properties)


def test_partially_created_role_is_deleted(context: Any, world: Any) -> None:
    read = world.managed_policy()
    properties = {
        "AssumeRolePolicyDocument": trust("ec2.amazonaws.com"),
        "RoleName": "half",
        "ManagedPolicyArns": [read],
    }
    wrong = {**properties, "ManagedPolicyArns": [read, "arn:aws:iam::aws:policy/NoSuchPolicy"]}
    with pytest.raises(boto3.client("iam").exceptions.NoSuchEntityException):
        registry()["AWS::IAM::Role"].create(context(), wrong)
    with pytest.raises(boto3.client("iam").exceptions.NoSuchEntityException):
        iam("get_role", RoleName="half")


def test_inline_policy(lifecycle: Lifecycle, world: Any) -> None:
    boto3.client("iam").create_user(UserName="ann")
    boto3.client("iam").create_group(GroupName="all")

    def where(_: str) -> dict[str, list[str]]:
        return {
            "role0": iam("list_role_policies", RoleName=world.role())["PolicyNames"],
            "role1": iam("list_role_policies", RoleName=world.role(1))["PolicyNames"],
            "ann": iam("list_user_policies", UserName="ann")["PolicyNames"],
            "all": iam("list_group_policies", GroupName="all")["PolicyNames"],
        }

    lifecycle(
        "AWS::IAM::Policy",
        {"PolicyName": "p", "PolicyDocument": document("s3:Get"), "Roles": [world.role()]},
        ({"Roles": [world.role(1)]}, where, {"role0": [], "role1": ["p"], "ann": [], "all": []}),
        ({"Users": ["ann"], "Groups": ["all"]}, where, {"role0": [], "role1": ["p"], "ann": ["p"], "all": ["p"]}),
        ({"PolicyName": "q", "Roles": None}, where, {"role0": [], "role1": [], "ann": ["q"], "all": ["q"]}),
        (
            {"PolicyDocument": document("s3:Put")},
            lambda _: iam("get_user_policy", UserName="ann", PolicyName="q")["PolicyDocument"]["Statement"][0][
                "Action"
            ],
            "s3:Put",
        ),
        ref=r"Demo-Thing-\w+",
    )


def test_inline_policy_requires_a_principal(context: Any) -> None:
    with pytest.raises(ResourceFailure, match="at least one of Roles, Users, Groups"):
        registry()["AWS::IAM::Policy"].create(context(), {"PolicyName": "p", "PolicyDocument": document("s3:Get")})


def test_managed_policy(lifecycle: Lifecycle, world: Any) -> None:
    boto3.client("iam").create_user(UserName="ann")
    boto3.client("iam").create_group(GroupName="all")

    def action(arn: str) -> Any:
        version = iam("get_policy", PolicyArn=arn)["Policy"]["DefaultVersionId"]
        found = iam("get_policy_version", PolicyArn=arn, VersionId=version)["PolicyVersion"]["Document"]
        versions = iam("list_policy_versions", PolicyArn=arn)["Versions"]
        return found["Statement"][0]["Action"], len(versions)

    def holders(arn: str) -> Any:
        found = iam("list_entities_for_policy", PolicyArn=arn)
        return [
            [item[key] for item in found[name]]
            for name, key in (("PolicyRoles", "RoleName"), ("PolicyUsers", "UserName"), ("PolicyGroups", "GroupName"))
        ]

    lifecycle(
        "AWS::IAM::ManagedPolicy",
        {"PolicyDocument": document("s3:Get"), "Roles": [world.role()], "Path": "/", "Description": "d"},
        ({}, holders, [["role0"], [], []]),
        ({"PolicyDocument": document("s3:Put")}, action, ("s3:Put", 1)),
        (
            {"Roles": [world.role(1)], "Users": ["ann"], "Groups": ["all"]},
            holders,
            [["role1"], ["ann"], ["all"]],
        ),
        ref=r"arn:aws:iam::123456789012:policy/Demo-Thing-\w+",
    )


def test_instance_profile(lifecycle: Lifecycle, world: Any) -> None:
    def roles(name: str) -> list[str]:
        profile = iam("get_instance_profile", InstanceProfileName=name)["InstanceProfile"]
        return [role["RoleName"] for role in profile["Roles"]]

    lifecycle(
        "AWS::IAM::InstanceProfile",
        {"Roles": [world.role()]},
        ({}, roles, ["role0"]),
        ({"Roles": [world.role(1)]}, roles, ["role1"]),
        ref=r"Demo-Thing-\w+",
    )


def test_oidc_provider(lifecycle: Lifecycle) -> None:
    def provider(arn: str) -> Any:
        return iam("get_open_id_connect_provider", OpenIDConnectProviderArn=arn)

    def tags(arn: str) -> dict[str, str]:
        found = iam("list_open_id_connect_provider_tags", OpenIDConnectProviderArn=arn)["Tags"]
        return {tag["Key"]: tag["Value"] for tag in found}

    lifecycle(
        "AWS::IAM::OIDCProvider",
        {
            "Url": "https://token.actions.githubusercontent.com",
            "ClientIdList": ["sts.amazonaws.com"],
            "ThumbprintList": ["a" * 40],
            "Tags": [{"Key": "Name", "Value": "mine"}],
        },
        ({"ThumbprintList": ["b" * 40]}, lambda arn: provider(arn)["ThumbprintList"], ["b" * 40]),
        ({"Tags": None}, lambda arn: set(tags(arn)), {"team"}),
        ref=r"arn:aws:iam::123456789012:oidc-provider/token\.actions\.githubusercontent\.com",
        tags=tags,
        unchanged={"ClientIdList": "moto has no operations for it; a test below scripts their responses"},
    )


def test_service_linked_role(lifecycle: Lifecycle, context: Any) -> None:
    properties = {"AWSServiceName": "autoscaling.amazonaws.com", "Description": "d"}
    lifecycle(
        "AWS::IAM::ServiceLinkedRole",
        properties,
        ({"Description": "e"}, lambda name: iam("get_role", RoleName=name)["Role"]["Description"], "e"),
        ref="AWSServiceRoleForAutoScaling",
    )


def test_audiences_are_added_and_removed(scripted: Any, boto: Any, context: Any) -> None:
    arn = "arn:aws:iam::123456789012:oidc-provider/example.com"
    described = {"Url": "example.com", "ClientIDList": []}
    iam_client = scripted(
        "iam",
        {
            "add_client_id_to_open_id_connect_provider": lambda **_: {},
            "remove_client_id_from_open_id_connect_provider": lambda **_: {},
            "get_open_id_connect_provider": lambda **_: described,
            "tag_open_id_connect_provider": lambda **_: {},
        },
    )
    old = {"Url": "https://example.com", "ClientIdList": ["a", "b"]}
    provider = registry()["AWS::IAM::OIDCProvider"]
    provider.update(context(clients=boto(iam=iam_client)), arn, old, {**old, "ClientIdList": ["b", "c"]})
    changes = [(name, arguments["ClientID"]) for name, arguments in iam_client.calls if "ClientID" in arguments]
    assert changes == [
        ("add_client_id_to_open_id_connect_provider", "c"),
        ("remove_client_id_from_open_id_connect_provider", "a"),
    ]
