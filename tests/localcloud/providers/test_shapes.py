"""Template values become API inputs: names in the API's case, scalars of its types, unknown settings refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from localcloud.cloudformation.provider import ResourceFailure
from localcloud.cloudformation.providers import registry
from localcloud.cloudformation.providers.shapes import dig, fitted
from localcloud.cloudformation.providers.tagging import form_of, tag_map
from localcloud.cloudformation.providers.waiting import wait_for


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
def test_values_fit(service: str, operation: str, given: Any, expected: Any, cloud: None) -> None:
    assert fitted(boto3.client(service), operation, given) == expected


def test_all_misfits_are_named_at_once_with_their_paths(cloud: None) -> None:
    wrong = {
        "MinCount": "many",
        "Nonsense": 1,
        "Monitoring": {"Enabled": "perhaps"},
        "NetworkInterfaces": [{"Groups": "sg-1"}, {"Device": 0}],
        "SubnetId": "subnet-1",
    }
    with pytest.raises(ResourceFailure) as failure:
        fitted(boto3.client("ec2"), "run_instances", wrong)
    assert str(failure.value) == (
        "RunInstances does not take: MinCount: 'many' where an integer is wanted; Nonsense: no such setting; "
        "Monitoring.Enabled: 'perhaps' where a boolean is wanted; "
        "NetworkInterfaces[0].Groups: 'sg-1' where a list is wanted; NetworkInterfaces[1].Device: no such setting"
    )


def test_a_whole_number_is_not_cut_from_a_fraction(cloud: None) -> None:
    with pytest.raises(ResourceFailure, match="Size: 8.5 where an integer is wanted"):
        fitted(boto3.client("ec2"), "create_volume", {"Size": 8.5})


@pytest.mark.parametrize(
    ("path", "expected"), [("a.0.b", 1), ("a.1.b", None), ("a.0.c", None), ("a.0.b.c", None), ("x", None)]
)
def test_dig(path: str, expected: Any) -> None:
    assert dig({"a": [{"b": 1}]}, path) == expected


@pytest.mark.parametrize("value", [{"a": 1}, [{"Key": "a", "Value": 1}]])
def test_tags_have_two_forms(value: Any) -> None:
    assert tag_map(value) == {"a": "1"}


def test_a_tag_has_nothing_else() -> None:
    with pytest.raises(ResourceFailure, match="Tags: unknown Color"):
        tag_map([{"Key": "a", "Value": "1", "Color": "red"}])


@pytest.mark.parametrize(
    ("service", "operation", "parameter", "expected"),
    [
        ("kms", "create_key", "Tags", [{"TagKey": "a", "TagValue": "1"}]),
        ("logs", "create_log_group", "Tags", {"a": "1"}),
        ("iam", "create_role", "Tags", [{"Key": "a", "Value": "1"}]),
    ],
)
def test_tags_take_the_form_of_the_call(
    service: str, operation: str, parameter: str, expected: Any, cloud: None
) -> None:
    assert form_of(boto3.client(service), operation, parameter, {"a": "1"}) == expected


def test_a_wait_ends_in_words() -> None:
    answers = iter([None, False, 3])
    assert wait_for(lambda: next(answers), "three", poll_seconds=0) == 3
    with pytest.raises(ResourceFailure, match="the thing: not within 0 seconds"):
        wait_for(lambda: None, "the thing", timeout_seconds=0)


def test_registry_is_of_types_by_name() -> None:
    found = registry()
    assert all(name == provider.type_name for name, provider in found.items())
    assert {"AWS::EC2::VPC", "AWS::IAM::Role", "AWS::S3::Bucket", "AWS::AutoScaling::AutoScalingGroup"} <= set(found)


@pytest.fixture
def refusing(scripted: Any, boto: Any, context: Callable[..., Any]) -> Callable[..., Any]:
    """Return a context whose role can be made but not finished, and, if so told, not removed."""

    def refuse(**_: Any) -> Any:
        raise ClientError({"Error": {"Code": "AccessDenied", "Message": "you may not"}}, "AttachRolePolicy")

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


def test_what_fails_half_way_is_removed_and_the_cause_passes_through(refusing: Callable[..., Any]) -> None:
    where, client = refusing(removable=True)
    with pytest.raises(ClientError, match="you may not"):
        registry()["AWS::IAM::Role"].create(where, ROLE)
    assert client.names()[-1] == "delete_role"


def test_what_cannot_be_removed_is_said_with_the_cause(refusing: Callable[..., Any]) -> None:
    where, _ = refusing(removable=False)
    with pytest.raises(ResourceFailure, match=r"you may not; and removing the half-made Demo-Thing-\w+ failed"):
        registry()["AWS::IAM::Role"].create(where, ROLE)


def test_a_refused_delete_is_not_taken_for_gone(refusing: Callable[..., Any]) -> None:
    where, _ = refusing(removable=False)
    with pytest.raises(ClientError, match="AccessDenied"):
        registry()["AWS::IAM::Role"].delete(where, "r", ROLE)
