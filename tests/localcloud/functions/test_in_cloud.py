"""Functions and rules in a complete embedded cloud, through the gateway and with IAM enforced."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from moto.moto_api._internal.models import moto_api_backend

from localcloud.cloud import LocalCloud

ACCOUNT, REGION = "123456789012", "us-east-1"
TRUST = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": {"Service": "lambda.amazonaws.com"}, "Action": "sts:AssumeRole"}],
}
LOGS = {
    "Effect": "Allow",
    "Action": ["logs:CreateLogGroup", "logs:CreateLogStream", "logs:PutLogEvents"],
    "Resource": "*",
}
READER = """
import boto3
def handler(event, context):
    print("reads", event["key"])
    body = boto3.client("s3").get_object(Bucket="data", Key=event["key"])["Body"].read().decode()
    return {"body": body, "who": boto3.client("sts").get_caller_identity()["Arn"]}
"""


class Setting:
    def __init__(self, state: Path) -> None:
        self.cloud = LocalCloud(state, region=REGION)
        self.cloud.start()
        self.state = state

    def client(self, service: str) -> Any:
        return self.cloud.clients.client(service)

    def role(self, name: str, *statements: dict[str, Any], trust: Any = None) -> str:
        iam = self.client("iam")
        arn = iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(trust or TRUST))["Role"]["Arn"]
        if statements:
            policy = {"Version": "2012-10-17", "Statement": list(statements)}
            iam.put_role_policy(RoleName=name, PolicyName="p", PolicyDocument=json.dumps(policy))
        return str(arn)

    def function(self, name: str, code: bytes, role: str) -> str:
        made = self.client("lambda").create_function(
            FunctionName=name,
            Runtime="python3.11",
            Handler="main.handler",
            Role=role,
            Code={"ZipFile": code},
            Timeout=20,
        )
        return str(made["FunctionArn"])


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    moto_api_backend.reset()  # moto's records outlive a cloud in the same process
    made = Setting(tmp_path_factory.mktemp("cloud"))
    s3 = made.client("s3")
    s3.create_bucket(Bucket="data")
    for key in ("open/a", "closed/b"):
        s3.put_object(Bucket="data", Key=key, Body=key.encode())
    yield made
    made.cloud.close()


@pytest.fixture(scope="module")
def reader(setting: Setting, package: Any) -> str:
    allowed = {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::data/open/*"}
    return setting.function("reader", package(READER), setting.role("reader-role", allowed, LOGS))


def test_function_can_make_calls_allowed_by_its_role(setting: Setting, reader: str) -> None:
    answer = setting.client("lambda").invoke(FunctionName=reader, Payload=b'{"key": "open/a"}', LogType="Tail")
    assert answer["StatusCode"] == 200 and "FunctionError" not in answer
    result = json.loads(answer["Payload"].read())
    assert result == {"body": "open/a", "who": f"arn:aws:sts::{ACCOUNT}:assumed-role/reader-role/reader"}
    assert "reads open/a" in base64.b64decode(answer["LogResult"]).decode()


def test_call_not_allowed_by_the_role_is_denied(setting: Setting, reader: str) -> None:
    answer = setting.client("lambda").invoke(FunctionName="reader", Payload=b'{"key": "closed/b"}')
    error = json.loads(answer["Payload"].read())
    assert answer["FunctionError"] == "Unhandled"
    assert "AccessDenied" in error["errorMessage"] and "s3:GetObject" in error["errorMessage"]


def test_output_is_in_cloudwatch_logs_only_if_the_role_allows_it(
    setting: Setting, package: Any, eventually: Any
) -> None:
    source = "def handler(event, context):\n    print('printed')\n"
    for name, statements in (("loud", [LOGS]), ("silent", [])):
        setting.function(name, package(source), setting.role(f"{name}-role", *statements))
        answer = setting.client("lambda").invoke(FunctionName=name)
        assert "FunctionError" not in answer
        assert "printed" in (setting.state / "functions" / f"{name}.log").read_text()
    logs = setting.client("logs")

    def lines(group: str) -> list[str]:
        groups = logs.describe_log_groups(logGroupNamePrefix=group)["logGroups"]
        return [e["message"] for e in logs.filter_log_events(logGroupName=group)["events"]] if groups else []

    eventually(lambda: "printed" in lines("/aws/lambda/loud"), "the loud function's output")
    denied = setting.state / "calls.jsonl"
    eventually(lambda: denied.exists() and "silent-role" in denied.read_text(), "the silent function's denial")
    assert lines("/aws/lambda/silent") == []


def test_role_that_trusts_another_service_is_refused_at_creation(setting: Setting, package: Any) -> None:
    trust = json.loads(json.dumps(TRUST).replace("lambda.amazonaws.com", "ec2.amazonaws.com"))
    role = setting.role("machine-role", trust=trust)
    with pytest.raises(setting.client("lambda").exceptions.InvalidParameterValueException, match="cannot be assumed"):
        setting.function("never", package("def handler(e, c): ..."), role)


def test_calls_of_parameter_store_and_s3_invoke_a_function(setting: Setting, package: Any, eventually: Any) -> None:
    out = setting.state / "woken"
    source = (
        "import json\ndef handler(event, context):\n"
        f"    with open({str(out)!r}, 'a') as file:\n        file.write(json.dumps(event) + '\\n')\n"
    )
    arn = setting.function("woken", package(source), setting.role("woken-role"))
    events, lambda_, s3 = (setting.client(name) for name in ("events", "lambda", "s3"))
    patterns = {
        "parameter": {"source": ["aws.ssm"], "detail": {"name": ["/trainstack/demo/run"], "operation": ["Update"]}},
        "outcome": {"source": ["aws.s3"], "detail": {"object": {"key": [{"wildcard": "runs/*/control/outcome.json"}]}}},
    }
    for name, pattern in patterns.items():
        rule = events.put_rule(Name=name, EventPattern=json.dumps(pattern))["RuleArn"]
        events.put_targets(Rule=name, Targets=[{"Id": "1", "Arn": arn}])
        lambda_.add_permission(
            FunctionName="woken",
            StatementId=name,
            Action="lambda:InvokeFunction",
            Principal="events.amazonaws.com",
            SourceArn=rule,
        )
    s3.put_bucket_notification_configuration(Bucket="data", NotificationConfiguration={"EventBridgeConfiguration": {}})
    ssm = setting.client("ssm")
    ssm.put_parameter(Name="/trainstack/demo/run", Value="a", Type="String")
    ssm.put_parameter(Name="/trainstack/demo/run", Value="b", Type="String", Overwrite=True)
    s3.put_object(Bucket="data", Key="runs/one/control/outcome.json", Body=b"{}")
    s3.put_object(Bucket="data", Key="runs/one/control/other.json", Body=b"{}")

    def woken() -> list[Any]:
        return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []

    eventually(lambda: len(woken()) >= 2, "both events")
    found = sorted(woken(), key=lambda event: event["source"])
    assert [event["detail-type"] for event in found] == ["Object Created", "Parameter Store Change"]
    assert found[0]["detail"]["object"]["size"] == 2
    assert found[1]["detail"] == {"name": "/trainstack/demo/run", "type": "String", "operation": "Update"}
    with pytest.raises(events.exceptions.InvalidEventPatternException):
        events.put_rule(Name="bad", EventPattern='{"source": "aws.ssm"}')
    answer = events.put_events(Entries=[{"Source": "my.app", "DetailType": "x", "Detail": "{}"}])
    assert answer["FailedEntryCount"] == 0 and answer["Entries"][0]["EventId"]
