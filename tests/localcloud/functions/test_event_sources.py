"""Event source mappings: functions that are invoked with messages from an SQS queue."""

from __future__ import annotations

import json
from typing import Any

import pytest

from localcloud.api import ApiError, Call, Principal
from localcloud.events.bus import LocalEventBus

ACCOUNT, REGION = "123456789012", "us-east-1"
ROOT = Principal(f"arn:aws:iam::{ACCOUNT}:root", ACCOUNT, "root")
COLLECT = """
import json, os
def handler(event, context):
    with open("{path}", "a") as file:
        file.write(json.dumps(event) + "\\n")
    if os.path.exists("{path}.fail"):
        raise ValueError("not now")
"""


class Scene:
    """A FIFO queue, and a function that collects the events that it receives."""

    def __init__(self, cloud: Any, bus: LocalEventBus) -> None:
        self.cloud, self.bus = cloud, bus
        self.sqs = cloud.clients.direct("sqs")
        self.path = cloud.state / "events"
        self.function = cloud.create("collect", COLLECT.replace("{path}", str(self.path)))
        self.url = self.queue("events.fifo", "20")
        self.arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:events.fifo"

    def queue(self, name: str, visibility_seconds: str) -> str:
        fifo = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
        attributes = {"VisibilityTimeout": visibility_seconds, **fifo}
        return str(self.sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"])

    def map(self, **settings: Any) -> str:
        parameters = {"FunctionName": "collect", "EventSourceArn": self.arn, **settings}
        return str(self.cloud.call("CreateEventSourceMapping", **parameters)["UUID"])

    def send(self, *bodies: str) -> None:
        for body in bodies:
            self.sqs.send_message(QueueUrl=self.url, MessageBody=body, MessageGroupId="one")
        self.cloud.functions.event_sources.wake("events.fifo")

    def received(self) -> list[Any]:
        return [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []

    def bodies(self) -> list[str]:
        return [record["body"] for event in self.received() for record in event["Records"]]

    def left(self) -> int:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)["Attributes"]
        return sum(int(value) for value in found.values())


@pytest.fixture
def scene(cloud: Any, bus: LocalEventBus) -> Scene:
    return Scene(cloud, bus)


def test_messages_arrive_in_order_and_are_deleted(scene: Scene) -> None:
    scene.send(*(str(number) for number in range(5)))
    scene.map()
    scene.cloud.wait_for(lambda: len(scene.bodies()) == 5, "5 messages")
    assert scene.bodies() == ["0", "1", "2", "3", "4"]
    record = scene.received()[0]["Records"][0]
    assert (record["eventSource"], record["eventSourceARN"], record["awsRegion"]) == ("aws:sqs", scene.arn, REGION)
    assert record["attributes"]["MessageGroupId"] == "one"
    scene.cloud.wait_for(lambda: scene.left() == 0, "the messages to be deleted")


def test_a_failed_batch_blocks_its_group_until_it_is_visible_again(scene: Scene) -> None:
    """Source: https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-scaling.html."""
    scene.sqs.set_queue_attributes(QueueUrl=scene.url, Attributes={"VisibilityTimeout": "1"})
    scene.cloud.call("UpdateFunctionConfiguration", FunctionName="collect", Timeout=1)
    fail = scene.path.with_name("events.fail")
    fail.touch()
    scene.map(BatchSize=1)
    scene.send("first", "second")
    scene.cloud.wait_for(lambda: scene.bodies().count("first") >= 2, "a second delivery")
    assert "second" not in scene.bodies()
    fail.unlink()
    scene.cloud.wait_for(lambda: "second" in scene.bodies(), "the next message")
    scene.cloud.wait_for(lambda: scene.left() == 0, "the messages to be deleted")


def test_a_rule_sends_its_events_to_the_queue_in_the_message_group(scene: Scene) -> None:
    put = scene.bus.operations()
    arn = put["PutRule"](
        Call("events", "PutRule", {"Name": "r", "EventPattern": '{"source": ["mine"]}'}, ROOT, REGION, ACCOUNT)
    )["RuleArn"]
    target = {"Id": "1", "Arn": scene.arn, "SqsParameters": {"MessageGroupId": "one"}}
    put["PutTargets"](Call("events", "PutTargets", {"Rule": "r", "Targets": [target]}, ROOT, REGION, ACCOUNT))
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": "events.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": scene.arn,
        "Condition": {"ArnEquals": {"aws:SourceArn": arn}},
    }
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    scene.sqs.set_queue_attributes(QueueUrl=scene.url, Attributes={"Policy": policy})
    scene.map()
    scene.bus.publish("mine", "Something", {"n": 1})
    scene.cloud.wait_for(lambda: scene.bodies(), "the event")
    assert json.loads(scene.bodies()[0])["detail"] == {"n": 1}


def test_mapping_is_described_disabled_and_deleted(scene: Scene) -> None:
    uuid = scene.map()
    shown = scene.cloud.call("GetEventSourceMapping", UUID=uuid)
    assert (shown["State"], shown["FunctionArn"]) == ("Enabled", scene.function)
    assert scene.cloud.call("UpdateEventSourceMapping", UUID=uuid, Enabled=False)["State"] == "Disabled"
    scene.send("kept")
    assert scene.left() == 1
    scene.cloud.call("UpdateEventSourceMapping", UUID=uuid, Enabled=True)
    scene.cloud.wait_for(lambda: scene.bodies() == ["kept"], "the message")
    assert len(scene.cloud.call("ListEventSourceMappings", FunctionName="collect")["EventSourceMappings"]) == 1
    scene.cloud.call("DeleteEventSourceMapping", UUID=uuid)
    with pytest.raises(ApiError, match="does not exist"):
        scene.cloud.call("GetEventSourceMapping", UUID=uuid)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"BatchSize": 11}, "Batch size must be between 1 and 10"),
        ({"EventSourceArn": "arn:aws:kinesis:us-east-1:123456789012:stream/s"}, "supports only SQS queues"),
        ({"FunctionResponseTypes": ["ReportBatchItemFailures"]}, "FunctionResponseTypes: not supported"),
        ({"MaximumBatchingWindowInSeconds": 5}, "MaximumBatchingWindowInSeconds: not supported"),
        ({"FunctionName": "nothing"}, "Function not found"),
        ({"EventSourceArn": f"arn:aws:sqs:{REGION}:{ACCOUNT}:short.fifo"}, "10 seconds is less than Function timeout"),
        ({"EventSourceArn": f"arn:aws:sqs:{REGION}:{ACCOUNT}:none.fifo"}, "queue does not exist"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_invalid_mapping_is_rejected(scene: Scene, settings: dict[str, Any], message: str) -> None:
    scene.queue("short.fifo", "10")
    with pytest.raises(ApiError, match=message):
        scene.map(**settings)
