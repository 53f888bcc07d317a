"""Lambda and EventBridge resource types, created, updated and deleted in moto."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import boto3
import pytest

from localcloud.cloudformation.provider import ResourceFailure
from localcloud.cloudformation.providers import registry

Lifecycle = Callable[..., None]


def call(service: str, operation: str, **arguments: Any) -> Any:
    return getattr(boto3.client(service), operation)(**arguments)


def function(*names: str) -> Callable[[str], Any]:
    def look(name: str) -> Any:
        found = call("lambda", "get_function_configuration", FunctionName=name)
        return tuple(found.get(key) for key in names)

    return look


def test_function(lifecycle: Lifecycle, world: Any) -> None:
    def tags(name: str) -> dict[str, str]:
        found: dict[str, str] = call("lambda", "get_function", FunctionName=name)["Tags"]
        return found

    def concurrency(name: str) -> Any:
        return call("lambda", "get_function_concurrency", FunctionName=name).get("ReservedConcurrentExecutions")

    def digest(name: str) -> str:
        found: str = call("lambda", "get_function_configuration", FunctionName=name)["CodeSha256"]
        return found

    boto3.client("s3").put_object(Bucket=world.bucket(), Key="other.zip", Body=b"PK\x05\x06" + bytes(18))
    seen: dict[str, str] = {}
    lifecycle(
        "AWS::Lambda::Function",
        {
            "Code": {"S3Bucket": world.bucket(), "S3Key": "code.zip"},
            "Role": world.role_arn(),
            "Handler": "index.handler",
            "Runtime": "python3.13",
            "Timeout": "30",
            "Environment": {"Variables": {"RUN": "1"}},
            "ReservedConcurrentExecutions": "1",
            "LoggingConfig": {"LogGroup": world.log_group},
            "Tags": [{"Key": "Name", "Value": "mine"}],
        },
        ({}, concurrency, 1),
        ({}, lambda name: seen.setdefault("digest", digest(name)) is not None, True),
        ({"Code": {"S3Bucket": world.bucket(), "S3Key": "other.zip"}}, lambda n: digest(n) != seen["digest"], True),
        ({"ReservedConcurrentExecutions": None}, concurrency, None),
        ({"Timeout": 60, "MemorySize": "256", "Handler": "index.other"}, function("Timeout", "MemorySize"), (60, 256)),
        ({"Timeout": None, "MemorySize": None}, function("Timeout", "MemorySize"), (3, 128)),
        ({"Description": "d", "Runtime": "python3.12"}, function("Description", "Runtime"), ("d", "python3.12")),
        ({"Environment": {"Variables": {"RUN": "2"}}}, function("Environment"), ({"Variables": {"RUN": "2"}},)),
        ({"Role": world.role_arn(1)}, function("Role"), (world.role_arn(1),)),
        ({"Tags": None}, lambda name: set(tags(name)), {"team", "aws:cloudformation:stack-name"}),
        ref=r"Demo-Thing-\w+",
        tags=tags,
        unchanged=dict.fromkeys(
            ("Architectures", "DeadLetterConfig", "EphemeralStorage", "FileSystemConfigs", "ImageConfig", "KmsKeyArn")
            + ("Layers", "LoggingConfig", "SnapStart", "TracingConfig", "VpcConfig"),
            "moto does not store its change; a test below checks the call against scripted responses",
        ),
    )


def test_all_settings_of_a_function_reach_the_service(scripted: Any, boto: Any, context: Any) -> None:
    state = {"FunctionArn": "arn", "State": "Active", "LastUpdateStatus": "Successful"}
    client = scripted(
        "lambda",
        {
            "update_function_code": lambda **_: {},
            "update_function_configuration": lambda **_: {},
            "get_function_configuration": lambda **_: state,
            "tag_resource": lambda **_: {},
        },
    )
    old = {"Code": {"S3Bucket": "code", "S3Key": "k"}, "Role": "arn:aws:iam::123456789012:role/r"}
    settings = {
        "DeadLetterConfig": {"TargetArn": "arn:aws:sqs:us-east-1:123456789012:q"},
        "EphemeralStorage": {"Size": 1024},
        "FileSystemConfigs": [
            {
                "Arn": "arn:aws:elasticfilesystem:us-east-1:123456789012:access-point/fsap-0123456789abcdef0",
                "LocalMountPath": "/mnt/x",
            }
        ],  # noqa: E501
        "ImageConfig": {"Command": ["x"]},
        "Layers": ["arn:aws:lambda:us-east-1:123456789012:layer:l:1"],
        "LoggingConfig": {"LogFormat": "JSON"},
        "SnapStart": {"ApplyOn": "PublishedVersions"},
        "TracingConfig": {"Mode": "Active"},
        "VpcConfig": {"SubnetIds": ["subnet-1"], "SecurityGroupIds": ["sg-1"]},
    }
    new = {**old, **settings, "KmsKeyArn": "arn:aws:kms:us-east-1:123456789012:key/k", "Architectures": ["arm64"]}
    provider = registry()["AWS::Lambda::Function"]
    provider.update(context(clients=boto(**{"lambda": client})), "f", old, new)
    calls = dict(client.calls)
    assert calls["update_function_configuration"] == {"FunctionName": "f", "KMSKeyArn": new["KmsKeyArn"], **settings}
    assert calls["update_function_code"]["Architectures"] == ["arm64"]
    provider.update(context(clients=boto(**{"lambda": client})), "f", new, {**new, "Layers": []})
    assert client.names().count("update_function_code") == 1


def test_function_in_state_failed_raises_the_reason(scripted: Any, boto: Any, context: Any) -> None:
    failed = {"State": "Failed", "StateReason": "no network", "FunctionArn": "arn"}
    client = scripted(
        "lambda",
        {
            "create_function": lambda **_: {},
            "get_function_configuration": lambda **_: failed,
            "delete_function": lambda **_: {},
        },
    )
    properties = {"Code": {"ZipFile": "def handler(e, c): ...", "S3Bucket": None}, "Role": "r", "Runtime": "python3.13"}
    with pytest.raises(ResourceFailure, match="no network"):
        registry()["AWS::Lambda::Function"].create(
            context(clients=boto(**{"lambda": client})), {**properties, "Role": "arn:aws:iam::123456789012:role/r"}
        )
    assert client.names()[-1] == "delete_function"


def test_inline_code_is_packed_as_index(world: Any, context: Any) -> None:
    properties = {"Code": {"ZipFile": "x = 1\n"}, "Role": world.role_arn(), "Handler": "index.handler"}
    provider = registry()["AWS::Lambda::Function"]
    made = provider.create(context(), {**properties, "Runtime": "python3.13"})
    assert made.attributes["Arn"].endswith(f":function:{made.physical_id}")
    with pytest.raises(ResourceFailure, match="inline code requires a python or nodejs runtime, found java21"):
        provider.create(context("Other"), {**properties, "Runtime": "java21"})


def test_permission(lifecycle: Lifecycle, world: Any) -> None:
    rule = "arn:aws:events:us-east-1:123456789012:rule/r"
    lifecycle(
        "AWS::Lambda::Permission",
        {
            "FunctionName": world.function(),
            "Action": "lambda:InvokeFunction",
            "Principal": "events.amazonaws.com",
            "SourceArn": rule,
        },
        ref=r"Demo-Thing-\w+",
    )


def test_event_source_mapping(lifecycle: Lifecycle, world: Any) -> None:
    def mapping(identity: str) -> Any:
        return call("lambda", "get_event_source_mapping", UUID=identity)

    call("sqs", "create_queue", QueueName="q", Attributes={"VisibilityTimeout": "60"})
    lifecycle(
        "AWS::Lambda::EventSourceMapping",
        {
            "FunctionName": world.function(),
            "EventSourceArn": "arn:aws:sqs:us-east-1:123456789012:q",
            "BatchSize": "5",
        },
        ({"BatchSize": "3"}, lambda i: mapping(i)["BatchSize"], 3),
        ({"Enabled": False}, lambda i: mapping(i)["State"], "Disabled"),
        ref=r"[0-9a-f-]{36}",
        unchanged={
            "FunctionName": "moto keeps the first function",
            "MaximumBatchingWindowInSeconds": "moto does not store it",
            "Tags": "moto does not store tags of mappings",
        },
    )


@pytest.mark.parametrize("bus", [None, "mine"])
def test_rule(bus: str | None, lifecycle: Lifecycle, world: Any) -> None:
    where = {"EventBusName": bus} if bus else {}
    if bus:
        call("events", "create_event_bus", Name=bus)

    def rule(identity: str) -> Any:
        return call("events", "describe_rule", Name=identity.rsplit("|", 1)[-1], **where)

    def targets(identity: str) -> dict[str, Any]:
        found = call("events", "list_targets_by_rule", Rule=identity.rsplit("|", 1)[-1], **where)["Targets"]
        return {item["Id"]: item.get("RetryPolicy", {}).get("MaximumRetryAttempts") for item in found}

    def tags(identity: str) -> dict[str, str]:
        found = call("events", "list_tags_for_resource", ResourceARN=rule(identity)["Arn"])["Tags"]
        return {tag["Key"]: tag["Value"] for tag in found}

    first, second = ({"Id": f"Target{n}", "Arn": f"arn:aws:lambda:us-east-1:1:function:f{n}"} for n in (0, 1))
    retried = {**first, "RetryPolicy": {"MaximumRetryAttempts": "2"}}
    schedule = {} if bus else {"ScheduleExpression": "rate(1 minute)"}
    lifecycle(
        "AWS::Events::Rule",
        {"EventPattern": {"source": ["aws.ec2"]}, "Targets": [first], "Tags": [{"Key": "a", "Value": "1"}], **where},
        ({}, lambda i: json.loads(rule(i)["EventPattern"]), {"source": ["aws.ec2"]}),
        ({"EventPattern": {"source": ["x"]}}, lambda i: json.loads(rule(i)["EventPattern"]), {"source": ["x"]}),
        ({"Targets": [retried, second]}, targets, {"Target0": 2, "Target1": None}),
        ({"Targets": [second]}, targets, {"Target1": None}),
        (
            {"State": "DISABLED", "Description": "d"},
            lambda i: (rule(i)["State"], rule(i)["Description"]),
            ("DISABLED", "d"),
        ),
        ({"RoleArn": world.role_arn(), **schedule}, lambda i: rule(i).get("RoleArn"), world.role_arn()),
        ({"Tags": None}, lambda i: set(tags(i)), {"team", "aws:cloudformation:stack-name"}),
        ref=rf"{bus}\|Demo-Thing-\w+" if bus else r"Demo-Thing-\w+",
        tags=tags,
        unchanged={"ScheduleExpression": "only valid on the default bus"} if bus else {},
    )


def test_existing_rule_fails_the_creation(context: Any) -> None:
    call("events", "put_rule", Name="taken", ScheduleExpression="rate(1 minute)")
    with pytest.raises(ResourceFailure, match="identifier 'taken' already exists"):
        registry()["AWS::Events::Rule"].create(context(), {"Name": "taken", "ScheduleExpression": "rate(2 minutes)"})


def test_rejected_targets_fail_the_update(scripted: Any, boto: Any, context: Any) -> None:
    refused = {"FailedEntries": [{"TargetId": "T", "ErrorMessage": "no such function", "ErrorCode": "x"}]}
    client = scripted("events", {"put_targets": lambda **_: refused})
    old: dict[str, Any] = {"Name": "r"}
    new = {**old, "Targets": [{"Id": "T", "Arn": "arn:aws:lambda:us-east-1:1:function:f"}]}
    with pytest.raises(ResourceFailure, match="target T: no such function"):
        registry()["AWS::Events::Rule"].update(context(clients=boto(events=client)), "r", old, new)
