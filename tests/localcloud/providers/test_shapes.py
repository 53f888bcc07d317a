"""Conversion of template values to API inputs: names in the API's case, scalar types, unknown settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from localcloud.cloudformation.provider import ResourceFailure
from localcloud.cloudformation.providers import registry
from localcloud.cloudformation.providers.base.shapes import get_path, to_input
from localcloud.cloudformation.providers.base.tagging import tag_map, tags_for_call
from localcloud.cloudformation.providers.base.waiting import wait_for


@pytest.mark.parametrize(
    ("service", "operation", "given", "expected"),
    [
        ("logs", "create_log_group", {"LogGroupName": "g"}, {"logGroupName": "g"}),
        (
            "ec2",
            "create_vpc",
            {"CidrBlock": "10.0.0.0/16", "DryRun": "false"},
            {"CidrBlock": "10.0.0.0/16", "DryRun": False},
        ),
        ("ec2", "create_volume", {"Size": "8", "AvailabilityZone": None}, {"Size": 8}),
        ("ec2", "create_volume", {"Size": 8.0}, {"Size": 8}),
        ("iam", "put_role_policy", {"PolicyDocument": {"a": [1]}}, {"PolicyDocument": '{"a": [1]}'}),
        ("ssm", "put_parameter", {"Value": 5}, {"Value": "5"}),
        ("ssm", "put_parameter", {"Value": True}, {"Value": "true"}),
        ("cloudwatch", "put_metric_alarm", {"Threshold": "1.5"}, {"Threshold": 1.5}),
        ("lambda", "create_function", {"KmsKeyArn": "k"}, {"KMSKeyArn": "k"}),
        (
            "ecr",
            "create_repository",
            {"ImageScanningConfiguration": {"ScanOnPush": "true"}},
            {"imageScanningConfiguration": {"scanOnPush": True}},
        ),
    ],
)
def test_values_are_converted(service: str, operation: str, given: Any, expected: Any, cloud: None) -> None:
    assert to_input(boto3.client(service), operation, given) == expected


def test_reports_each_invalid_value_with_its_path(cloud: None) -> None:
    wrong = {
        "MinCount": "many",
        "Nonsense": 1,
        "Monitoring": {"Enabled": "perhaps"},
        "NetworkInterfaces": [{"Groups": "sg-1"}, {"Device": 0}],
        "SubnetId": "subnet-1",
    }
    with pytest.raises(ResourceFailure) as failure:
        to_input(boto3.client("ec2"), "run_instances", wrong)
    assert str(failure.value) == (
        "RunInstances: invalid input: MinCount: expected integer, found 'many'; Nonsense: unknown setting; "
        "Monitoring.Enabled: expected boolean, found 'perhaps'; "
        "NetworkInterfaces[0].Groups: expected list, found 'sg-1'; NetworkInterfaces[1].Device: unknown setting"
    )


def test_fraction_is_not_truncated_to_an_integer(cloud: None) -> None:
    with pytest.raises(ResourceFailure, match="Size: expected integer, found 8.5"):
        to_input(boto3.client("ec2"), "create_volume", {"Size": 8.5})


@pytest.mark.parametrize(
    ("path", "expected"), [("a.0.b", 1), ("a.1.b", None), ("a.0.c", None), ("a.0.b.c", None), ("x", None)]
)
def test_get_path(path: str, expected: Any) -> None:
    assert get_path({"a": [{"b": 1}]}, path) == expected


@pytest.mark.parametrize("value", [{"a": 1}, [{"Key": "a", "Value": 1}]])
def test_tag_map_reads_both_forms(value: Any) -> None:
    assert tag_map(value) == {"a": "1"}


def test_tag_with_another_field_fails() -> None:
    with pytest.raises(ResourceFailure, match="Tags: unknown fields: Color"):
        tag_map([{"Key": "a", "Value": "1", "Color": "red"}])


@pytest.mark.parametrize(
    ("service", "operation", "parameter", "expected"),
    [
        ("kms", "create_key", "Tags", [{"TagKey": "a", "TagValue": "1"}]),
        ("logs", "create_log_group", "Tags", {"a": "1"}),
        ("iam", "create_role", "Tags", [{"Key": "a", "Value": "1"}]),
    ],
)
def test_tags_have_the_form_of_the_call(
    service: str, operation: str, parameter: str, expected: Any, cloud: None
) -> None:
    assert tags_for_call(boto3.client(service), operation, parameter, {"a": "1"}) == expected


def test_wait_returns_the_value_or_names_the_awaited_state() -> None:
    answers = iter([None, False, 3])
    assert wait_for(lambda: next(answers), "three", poll_seconds=0) == 3
    with pytest.raises(ResourceFailure, match="timed out after 0 seconds waiting for the thing"):
        wait_for(lambda: None, "the thing", timeout_seconds=0)


def test_registry_maps_type_names_to_providers() -> None:
    found = registry()
    assert all(name == provider.type_name for name, provider in found.items())
    assert {"AWS::EC2::VPC", "AWS::IAM::Role", "AWS::S3::Bucket", "AWS::AutoScaling::AutoScalingGroup"} <= set(found)


@pytest.fixture
def refusing(scripted: Any, boto: Any, context: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that returns a context in which policies cannot be attached to roles."""

    def refuse(**_: Any) -> Any:
        raise ClientError({"Error": {"Code": "AccessDenied", "Message": "not allowed"}}, "AttachRolePolicy")

    def make(*, removable: bool) -> Any:
        answers = {
            "create_role": lambda **_: {},
            "attach_role_policy": refuse,
            "detach_role_policy": lambda **_: {},
            "delete_role": (lambda **_: {}) if removable else refuse,
        }
        client = scripted("iam", answers)
        return context(clients=boto(iam=client)), client

    return make


ROLE = {"AssumeRolePolicyDocument": {}, "ManagedPolicyArns": ["arn:aws:iam::123456789012:policy/p"]}


def test_partial_creation_is_deleted_and_raises_the_cause(refusing: Callable[..., Any]) -> None:
    where, client = refusing(removable=True)
    with pytest.raises(ClientError, match="not allowed"):
        registry()["AWS::IAM::Role"].create(where, ROLE)
    assert client.names()[-1] == "delete_role"


def test_failed_deletion_is_reported_with_the_cause(refusing: Callable[..., Any]) -> None:
    where, _ = refusing(removable=False)
    with pytest.raises(
        ResourceFailure, match=r"not allowed; deleting the partially created Demo-Thing-\w+ also failed"
    ):
        registry()["AWS::IAM::Role"].create(where, ROLE)


def test_access_denied_on_delete_is_raised(refusing: Callable[..., Any]) -> None:
    where, _ = refusing(removable=False)
    with pytest.raises(ClientError, match="AccessDenied"):
        registry()["AWS::IAM::Role"].delete(where, "r", ROLE)
