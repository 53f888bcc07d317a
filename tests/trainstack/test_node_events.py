"""Node events read from CloudWatch Logs, and their lines."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto import mock_aws

from bootstrap.events import shipper
from bootstrap.supervise.supervisor import TICK_SECONDS
from bootstrap.supervise.trainers.output import INTERVAL_SECONDS
from trainstack.observe.node_events import POLL_SECONDS, EventReader, line_of, output_lines

GROUP = "/trainstack/x"


@pytest.fixture
def logs() -> Iterator[Any]:
    with mock_aws():
        client = boto3.client("logs", region_name="us-east-1")
        client.create_log_group(logGroupName=GROUP)
        yield client


def put(logs: Any, node: str, unix_seconds: float, text: str) -> None:
    if not logs.describe_log_streams(logGroupName=GROUP, logStreamNamePrefix=node)["logStreams"]:
        logs.create_log_stream(logGroupName=GROUP, logStreamName=node)
    entry = {"timestamp": int(unix_seconds * 1000), "message": text}
    logs.put_log_events(logGroupName=GROUP, logStreamName=node, logEvents=[entry])


def event(node: str, unix_seconds: float, name: str) -> str:
    return json.dumps({"event": name, "unix_seconds": unix_seconds, "instance_id": node})


def test_events_of_two_nodes_are_in_order_and_read_once(logs: Any) -> None:
    now = time.time()
    put(logs, "i-1", now - 20, event("i-1", now - 20, "first"))
    put(logs, "i-2", now - 10, event("i-2", now - 10, "third"))
    put(logs, "i-1", now - 15, event("i-1", now - 15, "second"))
    put(logs, "i-1", now - 9000, event("i-1", now - 9000, "old"))
    reader = EventReader(logs, GROUP, now - 60)
    assert [each["event"] for each in reader.poll()] == ["first", "second", "third"]
    assert list(reader.poll()) == []
    put(logs, "i-1", now - 12, event("i-1", now - 12, "late"))
    put(logs, "i-3", now, event("i-3", now, "replacement"))
    assert [each["event"] for each in reader.poll()] == ["late", "replacement"]


def test_only_the_chosen_node_is_read(logs: Any) -> None:
    now = time.time()
    put(logs, "i-1", now, event("i-1", now, "a"))
    put(logs, "i-2", now, event("i-2", now, "b"))
    assert [each["event"] for each in EventReader(logs, GROUP, now - 60, "i-2").poll()] == ["b"]


def test_follow_continues_across_replaced_nodes_and_shows_each_line_at_the_next_poll(logs: Any) -> None:
    now = time.time()
    written: list[str] = []

    def sleep(seconds: float) -> None:
        """In each pause, one node writes a line: the first node, then its replacement, then the first node again."""
        assert seconds == POLL_SECONDS
        number = len(written)
        node = ("i-1", "i-2", "i-1", "i-2")[number]
        written.append(f"line {number}")
        body = {"event": "trainer_output", "unix_seconds": now + number, "rank": 0, "text": f"line {number}\n"}
        put(logs, node, now + number, json.dumps({**body, "instance_id": node, "dropped_bytes": 0}))

    following = EventReader(logs, GROUP, now - 60).follow(sleep)
    for number in range(4):
        event = next(following)
        assert (event["text"], len(written)) == (f"line {number}\n", number + 1)


def test_a_line_is_at_most_three_seconds_late() -> None:
    """The sum of all intervals between a trainer's line and the terminal leaves 0.3 s for the calls."""
    assert INTERVAL_SECONDS + TICK_SECONDS + shipper.INTERVAL_SECONDS + POLL_SECONDS <= 2.7


@pytest.mark.parametrize("text", ["not JSON", "[1]", '{"event": 3}', "[" * 100_000])
def test_text_that_is_not_an_event_is_shown(logs: Any, text: str) -> None:
    put(logs, "i-1", time.time(), text)
    (found,) = EventReader(logs, GROUP, time.time() - 60).poll()
    assert (found["event"], found["message"], found["instance_id"]) == ("text", text, "i-1")


def test_lines() -> None:
    start = {"unix_seconds": 3661.0, "instance_id": "i-1"}
    assert line_of({**start, "event": "node_leaving", "reason": "notice", "x": None}) == (
        "01:01:01 i-1                 node_leaving       reason=notice"
    )
    record = {"record": "step", "schema_version": 2, "step": 7, "loss": 2.123456789, "unix_seconds": 3661.0}
    assert line_of({**start, "event": "trainer", "record": record}) == (
        "01:01:01 i-1                 step               step=7 loss=2.12346"
    )
    assert "\x1b" not in line_of({**start, "event": "text", "message": "\x1b[2Jcleared\nnext"})


def test_output_lines() -> None:
    event = {"event": "trainer_output", "rank": 1, "text": "10%\r20%\r\nloss \x1b[1m2\npartial", "dropped_bytes": 1500}
    assert output_lines(event) == [
        "[node 1] (1,500 bytes omitted)",
        "[node 1] 20%",
        "[node 1] loss  [1m2",
        "[node 1] partial",
    ]
    assert output_lines({**event, "text": "a\n\nb\n", "dropped_bytes": 0}) == ["[node 1] a", "[node 1] ", "[node 1] b"]
