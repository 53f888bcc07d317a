"""Tests of the event bus: it delivers events of services and API calls to functions, queues and log groups."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from localcloud.api import ApiError, Call, Principal
from localcloud.events.bus import LocalEventBus

ACCOUNT, REGION = "123456789012", "us-east-1"
ROOT = Principal(f"arn:aws:iam::{ACCOUNT}:root", ACCOUNT, "root")
COLLECT = """
import json
def handler(event, context):
    with open("{path}", "a") as file:
        file.write(json.dumps(event) + "\\n")
"""


def call(service: str, operation: str, **parameters: Any) -> Call:
    return Call(service, operation, parameters, ROOT, REGION, ACCOUNT)


class Scene:
    """A bus, a function that collects events, and rules."""

    def __init__(self, cloud: Any, bus: LocalEventBus) -> None:
        self.cloud = cloud
        self.bus = bus
        self.events = cloud.clients.direct("events")
        self.path: Path = cloud.state / "events"
        self.arn = cloud.create("collect", COLLECT.replace("{path}", str(self.path)))

    def rule(self, name: str, target: dict[str, Any] | None = None, *, permit: bool = True, **settings: Any) -> str:
        arn = self.bus.operations()["PutRule"](call("events", "PutRule", Name=name, **settings))["RuleArn"]
        targets = [{"Id": "1", "Arn": self.arn, **(target or {})}]
        self.bus.operations()["PutTargets"](call("events", "PutTargets", Rule=name, Targets=targets))
        if permit:
            self.cloud.call(
                "AddPermission",
                FunctionName="collect",
                StatementId=name,
                Action="lambda:InvokeFunction",
                Principal="events.amazonaws.com",
                SourceArn=arn,
            )
        return str(arn)

    def received(self) -> list[Any]:
        return [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []

    def wait_received(self, number: int = 1) -> list[Any]:
        self.cloud.wait_for(lambda: len(self.received()) >= number, f"{number} events")
        return self.received()

    def observe(self, service: str, operation: str, answer: dict[str, Any], **parameters: Any) -> None:
        self.bus.observers()[service, operation](call(service, operation, **parameters), answer)


@pytest.fixture
def scene(cloud: Any, bus: LocalEventBus) -> Scene:
    return Scene(cloud, bus)


def test_service_event_invokes_the_function_of_a_matching_rule(scene: Scene, cloud: Any) -> None:
    rule = scene.rule("notices", EventPattern='{"source": ["aws.ec2"], "detail": {"instance-action": ["terminate"]}}')
    scene.bus.publish("aws.ec2", "Other", {"instance-action": "stop"})
    scene.bus.publish(
        "aws.ec2",
        "EC2 Spot Instance Interruption Warning",
        {"instance-id": "i-1", "instance-action": "terminate"},
        ["arn:aws:ec2:us-east-1b:instance/i-1"],
    )
    (event,) = scene.wait_received()
    assert event["detail-type"] == "EC2 Spot Instance Interruption Warning"
    assert event["source"] == "aws.ec2" and event["account"] == ACCOUNT and event["region"] == REGION
    assert event["detail"] == {"instance-id": "i-1", "instance-action": "terminate"}
    assert event["resources"] == ["arn:aws:ec2:us-east-1b:instance/i-1"]
    assert datetime.fromisoformat(event["time"].replace("Z", "+00:00")).tzinfo is not None
    (record,) = cloud.records("event_delivered")
    assert (record["rule"], record["target"], record["event_id"]) == (rule, scene.arn, event["id"])


def test_events_of_one_source_arrive_in_order(scene: Scene, cloud: Any) -> None:
    cloud.call("PutFunctionConcurrency", FunctionName="collect", ReservedConcurrentExecutions=1)
    scene.rule("ordered", EventPattern='{"source": ["aws.test"]}')
    for number in range(20):
        scene.bus.publish("aws.test", "Numbered", {"n": number})
    assert [event["detail"]["n"] for event in scene.wait_received(20)] == list(range(20))


def test_publish_does_not_wait_for_targets(scene: Scene, monkeypatch: Any) -> None:
    release, entered = threading.Event(), threading.Event()

    def stuck(*_: Any) -> None:
        entered.set()
        release.wait(30)

    monkeypatch.setattr("localcloud.events.targets.TargetSender.send", stuck)
    scene.rule("slow", EventPattern='{"source": ["aws.test"]}')
    try:
        scene.bus.publish("aws.test", "First", {})
        assert entered.wait(10)
        scene.bus.publish("aws.test", "Second", {})  # returns although the worker is stuck
    finally:
        release.set()


@pytest.mark.parametrize("source_arn", [None, "arn:aws:events:us-east-1:123456789012:rule/another"])
def test_function_is_not_invoked_without_permission_for_the_rule(scene: Scene, cloud: Any, source_arn: Any) -> None:
    rule = scene.rule("uninvited", EventPattern='{"source": ["aws.ec2"]}', permit=False)
    if source_arn is not None:
        cloud.call(
            "AddPermission",
            FunctionName="collect",
            StatementId="other",
            Action="lambda:InvokeFunction",
            Principal="events.amazonaws.com",
            SourceArn=source_arn,
        )
    scene.bus.publish("aws.ec2", "Anything", {})
    (record,) = cloud.wait_for(lambda: cloud.records("event_refused"), "the record of the refusal")
    assert record["rule"] == rule and "lambda:InvokeFunction" in record["reason"]
    assert scene.received() == [] and cloud.log("collect") == ""


def test_disabled_rule_delivers_nothing(scene: Scene, cloud: Any) -> None:
    scene.rule("off", EventPattern='{"source": ["aws.ec2"]}', State="DISABLED")
    scene.rule("on", {"Input": '"from on"'}, EventPattern='{"source": ["aws.ec2"]}')
    scene.bus.publish("aws.ec2", "Anything", {})
    assert scene.wait_received() == ["from on"]
    assert len(cloud.records("event_delivered")) == 1


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ({"Arn": f"arn:aws:states:{REGION}:{ACCOUNT}:stateMachine:x"}, "supported services: lambda, sns, sqs"),
        ({"InputTransformer": {"InputTemplate": '"x"'}}, "InputTransformer is not supported by the embedded cloud"),
        ({"InputPath": "$.detail"}, "InputPath is not supported by the embedded cloud"),
        ({"DeadLetterConfig": {"Arn": "arn:aws:sqs:us-east-1:1:dead"}}, "DeadLetterConfig is not supported"),
    ],
)
def test_unsupported_target_is_refused(scene: Scene, target: dict[str, Any], text: str) -> None:
    with pytest.raises(ApiError, match=text) as refusal:
        scene.rule("refused", target, EventPattern='{"source": ["aws.ec2"]}', permit=False)
    assert refusal.value.code == "ValidationException"
    assert scene.events.list_targets_by_rule(Rule="refused")["Targets"] == []


def test_queue_without_a_policy_is_refused_while_other_rules_deliver(scene: Scene, cloud: Any) -> None:
    cloud.clients.direct("sqs").create_queue(QueueName="private")
    target = {"Arn": f"arn:aws:sqs:{REGION}:{ACCOUNT}:private"}
    scene.rule("first", target, EventPattern='{"source": ["aws.ec2"]}', permit=False)
    scene.rule("second", EventPattern='{"source": ["aws.ec2"]}')
    scene.bus.publish("aws.ec2", "Anything", {})
    assert len(scene.wait_received()) == 1
    (record,) = cloud.records("event_refused")
    assert "does not allow events.amazonaws.com to call sqs:SendMessage" in record["reason"]


def test_queue_gets_events_if_its_policy_allows_it(scene: Scene, cloud: Any) -> None:
    sqs = cloud.clients.direct("sqs")
    queue_arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:wanted"
    policy = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"Service": "events.amazonaws.com"},
                "Action": "sqs:SendMessage",
                "Resource": queue_arn,
                "Condition": {"ArnEquals": {"aws:SourceArn": f"arn:aws:events:{REGION}:{ACCOUNT}:rule/queue"}},
            }
        ],
    }
    url = sqs.create_queue(QueueName="wanted", Attributes={"Policy": json.dumps(policy)})["QueueUrl"]
    scene.rule("queue", {"Arn": queue_arn}, EventPattern='{"source": ["aws.ec2"]}', permit=False)
    scene.bus.publish("aws.ec2", "Anything", {"n": 1})
    (message,) = cloud.wait_for(lambda: sqs.receive_message(QueueUrl=url).get("Messages"), "the message")
    assert json.loads(message["Body"])["detail"] == {"n": 1}
    assert cloud.records("event_refused") == []


def test_put_events_reports_the_result_of_each_entry(scene: Scene) -> None:
    scene.rule("mine", EventPattern='{"source": ["my.app"], "detail": {"ok": [true]}}')
    entries = [
        {
            "Source": "my.app",
            "DetailType": "Done",
            "Detail": '{"ok": true}',
            "Time": datetime(2026, 1, 2, tzinfo=UTC),
        },
        {"Source": "my.app", "DetailType": "Done", "Detail": "[]"},
        {"Source": "aws.ec2", "DetailType": "Done", "Detail": "{}"},
        {"Source": "my.app", "Detail": "{}"},
    ]
    answer = scene.bus.operations()["PutEvents"](call("events", "PutEvents", Entries=entries))
    codes = [entry.get("ErrorCode") for entry in answer["Entries"]]
    assert codes == [None, "MalformedDetail", "NotAuthorizedForSourceException", "InvalidArgument"]
    assert answer["FailedEntryCount"] == 3
    (event,) = scene.wait_received()
    assert (event["id"], event["time"]) == (answer["Entries"][0]["EventId"], "2026-01-02T00:00:00Z")


def test_invalid_rules_are_refused(scene: Scene) -> None:
    put = scene.bus.operations()["PutRule"]
    with pytest.raises(ApiError) as refusal:
        put(call("events", "PutRule", Name="bad", EventPattern='{"source": "aws.ec2"}'))
    assert refusal.value.code == "InvalidEventPatternException"
    with pytest.raises(ApiError) as refusal:
        put(call("events", "PutRule", Name="bad", ScheduleExpression="rate(1 minutes)"))
    assert refusal.value.code == "ValidationException"
    assert scene.events.list_rules()["Rules"] == []


def test_schedule_delivers_a_scheduled_event(cloud: Any) -> None:
    now = [1_800_000_000.0]
    bus = LocalEventBus(cloud.clients, cloud.functions, now=lambda: now[0])
    try:
        scene = Scene(cloud, bus)
        rule = scene.rule("minute", ScheduleExpression="rate(1 minute)")
        cloud.wait_for(lambda: bus._clock.book.seconds_to_next(now[0]) is not None, "the clock to see the rule")
        now[0] += 61
        bus._clock.loop.wake()
        (event,) = scene.wait_received()
        assert (event["source"], event["detail-type"], event["detail"]) == ("aws.events", "Scheduled Event", {})
        assert event["resources"] == [rule]
    finally:
        bus.close()


def test_parameter_store_events(scene: Scene, cloud: Any) -> None:
    scene.rule(
        "parameters",
        EventPattern='{"source": ["aws.ssm"], "detail-type": ["Parameter Store Change"], "detail": {"name": ["/run"]}}',
    )
    put = {"Name": "/run", "Value": "x", "Type": "String", "Description": "the run"}
    other = {"Name": "/other", "Value": "y", "Type": "SecureString"}
    ssm = cloud.clients.direct("ssm")
    for parameters in (put, {**put, "Value": "y", "Overwrite": True}, other):
        ssm.put_parameter(**parameters)
        scene.observe("ssm", "PutParameter", {}, **parameters)
    scene.observe("ssm", "DeleteParameters", {}, Names=["/run", "/never-there"])
    events = sorted(
        scene.wait_received(3), key=lambda e: ["Create", "Update", "Delete"].index(e["detail"]["operation"])
    )
    base = {"name": "/run", "type": "String", "description": "the run"}
    assert [event["detail"] for event in events] == [
        {**base, "operation": operation} for operation in ("Create", "Update", "Delete")
    ]
    assert events[0]["resources"] == [f"arn:aws:ssm:{REGION}:{ACCOUNT}:parameter/run"]


def test_s3_events_of_buckets_with_eventbridge_notifications(scene: Scene, cloud: Any) -> None:
    s3 = cloud.clients.direct("s3")
    key = "runs/a/control/outcome.json"
    versions = {}
    for bucket in ("quiet", "loud"):
        s3.create_bucket(Bucket=bucket)
        s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        versions[bucket] = s3.put_object(Bucket=bucket, Key=key, Body=b"done")["VersionId"]
    s3.put_bucket_notification_configuration(Bucket="loud", NotificationConfiguration={"EventBridgeConfiguration": {}})
    pattern = {"source": ["aws.s3"], "detail": {"object": {"key": [{"wildcard": "runs/*/control/outcome.json"}]}}}
    scene.rule("objects", EventPattern=json.dumps(pattern))
    scene.observe("s3", "PutObject", {}, Bucket="quiet", Key=key)
    scene.observe("s3", "PutObject", {}, Bucket="loud", Key="elsewhere")
    scene.observe("s3", "PutObject", {}, Bucket="loud", Key=key)
    (created,) = scene.wait_received()
    scene.observe("s3", "DeleteObject", {}, Bucket="loud", Key=key)
    scene.observe("s3", "DeleteObjects", {}, Bucket="loud", Delete={"Objects": [{"Key": key, "VersionId": "v"}]})
    marked, deleted = sorted(scene.wait_received(3)[1:], key=lambda event: event["detail"]["object"]["sequencer"])
    assert created["detail-type"] == "Object Created" and created["resources"] == ["arn:aws:s3:::loud"]
    detail = created["detail"]
    assert detail["bucket"] == {"name": "loud"} and detail["reason"] == "PutObject" and detail["version"] == "0"
    assert detail["object"]["key"] == key and detail["object"]["size"] == 4
    assert detail["object"]["etag"] == "6b2ded51d81a4403d8a4bd25fa1e57ee"
    assert detail["object"]["version-id"] == versions["loud"]
    assert detail["object"]["sequencer"] < marked["detail"]["object"]["sequencer"]
    assert {marked["detail-type"], deleted["detail-type"]} == {"Object Deleted"}
    assert marked["detail"]["deletion-type"] == "Delete Marker Created"
    assert deleted["detail"]["deletion-type"] == "Permanently Deleted"
    assert deleted["detail"]["object"]["version-id"] == "v"
    cloud.wait_for(lambda: len(cloud.records("event_delivered")) == 3, "exactly three deliveries")


def test_moto_does_not_deliver_s3_events_itself(scene: Scene, cloud: Any) -> None:
    s3, sqs = cloud.clients.direct("s3"), cloud.clients.direct("sqs")
    s3.create_bucket(Bucket="loud")
    s3.put_bucket_notification_configuration(Bucket="loud", NotificationConfiguration={"EventBridgeConfiguration": {}})
    url = sqs.create_queue(QueueName="twice")["QueueUrl"]
    target = {"Arn": f"arn:aws:sqs:{REGION}:{ACCOUNT}:twice"}
    scene.rule("objects", target, EventPattern='{"source": ["aws.s3"]}', permit=False)
    s3.put_object(Bucket="loud", Key="a", Body=b"b")
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
