"""Lambda, EventBridge and Scheduler types, made, changed and removed in moto."""

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

    other = boto3.client("s3").put_object(Bucket=world.bucket(), Key="other.zip", Body=b"PK\x05\x06" + bytes(18))
    assert other
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
            "moto does not keep its change; the call is checked against a written answer below",
        ),
    )


def test_every_setting_of_a_function_reaches_the_service(scripted: Any, boto: Any, context: Any) -> None:
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


def test_a_function_that_does_not_start_fails_with_its_reason(scripted: Any, boto: Any, context: Any) -> None:
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


def test_inline_source_is_packed_as_index(world: Any, context: Any) -> None:
    properties = {"Code": {"ZipFile": "x = 1\n"}, "Role": world.role_arn(), "Handler": "index.handler"}
    provider = registry()["AWS::Lambda::Function"]
    made = provider.create(context(), {**properties, "Runtime": "python3.13"})
    assert made.attributes["Arn"].endswith(f":function:{made.physical_id}")
    with pytest.raises(ResourceFailure, match="inline source is for python and nodejs, not java21"):
        provider.create(context("Other"), {**properties, "Runtime": "java21"})


def test_version(lifecycle: Lifecycle, world: Any) -> None:
    name = world.function()
    lifecycle("AWS::Lambda::Version", {"FunctionName": name}, ref=rf"arn:aws:lambda:us-east-1:\d+:function:{name}:1")


def test_alias(lifecycle: Lifecycle, world: Any) -> None:
    name = world.function()
    for text in ("one", "two"):
        call("lambda", "publish_version", FunctionName=name, Description=text)
        call("lambda", "update_function_code", FunctionName=name, S3Bucket=world.bucket(), S3Key="code.zip")

    def alias(*names: str) -> Callable[[str], Any]:
        def look(_: str) -> Any:
            found = call("lambda", "get_alias", FunctionName=name, Name="live")
            return tuple(found.get(key) for key in names)

        return look

    weights = {"AdditionalVersionWeights": [{"FunctionVersion": "1", "FunctionWeight": "0.1"}]}
    lifecycle(
        "AWS::Lambda::Alias",
        {"FunctionName": name, "Name": "live", "FunctionVersion": "1"},
        ({"FunctionVersion": "$LATEST", "Description": "d"}, alias("FunctionVersion", "Description"), ("$LATEST", "d")),
        ({"RoutingConfig": weights}, alias("RoutingConfig"), ({"AdditionalVersionWeights": {"1": 0.1}},)),
        ref=rf"arn:aws:lambda:us-east-1:\d+:function:{name}:live",
    )


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


def test_event_invoke_config(lifecycle: Lifecycle, world: Any) -> None:
    def config(*names: str) -> Callable[[str], Any]:
        def look(_: str) -> Any:
            found = call("lambda", "get_function_event_invoke_config", FunctionName="fn")
            return tuple(found.get(key) for key in names)

        return look

    target = {"OnFailure": {"Destination": "arn:aws:sqs:us-east-1:123456789012:dead"}}
    lifecycle(
        "AWS::Lambda::EventInvokeConfig",
        {"FunctionName": world.function(), "Qualifier": "$LATEST", "MaximumRetryAttempts": "0"},
        ({}, config("MaximumRetryAttempts"), (0,)),
        ({"MaximumEventAgeInSeconds": 60, "MaximumRetryAttempts": 1}, config("MaximumRetryAttempts"), (1,)),
        ({"DestinationConfig": target}, lambda i: config("DestinationConfig")(i)[0]["OnFailure"], target["OnFailure"]),
        ref=r"fn\|\$LATEST",
    )


def test_layer_version(lifecycle: Lifecycle, world: Any) -> None:
    lifecycle(
        "AWS::Lambda::LayerVersion",
        {"Content": {"S3Bucket": world.bucket(), "S3Key": "code.zip"}, "CompatibleRuntimes": ["python3.13"]},
        ref=r"arn:aws:lambda:us-east-1:\d+:layer:Demo-Thing-\w+:1",
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
        unchanged={"ScheduleExpression": "of the default bus only"} if bus else {},
    )


def test_a_rule_of_that_name_is_refused(context: Any) -> None:
    call("events", "put_rule", Name="taken", ScheduleExpression="rate(1 minute)")
    with pytest.raises(ResourceFailure, match="identifier 'taken' already exists"):
        registry()["AWS::Events::Rule"].create(context(), {"Name": "taken", "ScheduleExpression": "rate(2 minutes)"})


def test_targets_that_the_service_refuses_fail_the_rule(scripted: Any, boto: Any, context: Any) -> None:
    refused = {"FailedEntries": [{"TargetId": "T", "ErrorMessage": "no such function", "ErrorCode": "x"}]}
    client = scripted("events", {"put_targets": lambda **_: refused})
    old: dict[str, Any] = {"Name": "r"}
    new = {**old, "Targets": [{"Id": "T", "Arn": "arn:aws:lambda:us-east-1:1:function:f"}]}
    with pytest.raises(ResourceFailure, match="target T: no such function"):
        registry()["AWS::Events::Rule"].update(context(clients=boto(events=client)), "r", old, new)


def test_schedule(lifecycle: Lifecycle, world: Any) -> None:
    def schedule(*names: str) -> Callable[[str], Any]:
        def look(name: str) -> Any:
            found = call("scheduler", "get_schedule", Name=name)
            return tuple(found.get(key) for key in names)

        return look

    target = {"Arn": "arn:aws:lambda:us-east-1:123456789012:function:f", "RoleArn": world.role_arn(), "Input": "{}"}
    dates = {"StartDate": "2027-01-01T00:00:00Z", "EndDate": "2027-02-01T00:00:00Z"}
    lifecycle(
        "AWS::Scheduler::Schedule",
        {"ScheduleExpression": "rate(1 minute)", "FlexibleTimeWindow": {"Mode": "OFF"}, "Target": target},
        ({"ScheduleExpression": "rate(2 minutes)"}, schedule("ScheduleExpression"), ("rate(2 minutes)",)),
        ({"State": "DISABLED", "Description": "d"}, schedule("State", "Description"), ("DISABLED", "d")),
        ({"ScheduleExpressionTimezone": "UTC"}, schedule("ScheduleExpressionTimezone"), ("UTC",)),
        (
            {"FlexibleTimeWindow": {"Mode": "FLEXIBLE", "MaximumWindowInMinutes": "5"}},
            lambda n: schedule("FlexibleTimeWindow")(n)[0]["MaximumWindowInMinutes"],
            5,
        ),
        ({"Target": {**target, "Input": '{"a": 1}'}}, lambda n: schedule("Target")(n)[0]["Input"], '{"a": 1}'),
        (dates, lambda n: schedule("StartDate")(n)[0].year, 2027),
        ({"KmsKeyArn": "arn:aws:kms:us-east-1:1:key/k"}, schedule("KmsKeyArn"), ("arn:aws:kms:us-east-1:1:key/k",)),
        ref=r"Demo-Thing-\w+",
        unchanged={"GroupName": "refused, see below"},
    )


def test_a_schedule_stays_in_its_group(context: Any) -> None:
    old = {"ScheduleExpression": "rate(1 minute)", "GroupName": "a"}
    with pytest.raises(ResourceFailure, match="GroupName cannot change"):
        registry()["AWS::Scheduler::Schedule"].update(context(), "s", old, {**old, "GroupName": "b"})
