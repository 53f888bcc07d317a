from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError

from bootstrap.aws import Aws
from bootstrap.events import shipper as log_shipper
from bootstrap.events.log import EventLog
from bootstrap.events.schema import Trainer
from bootstrap.events.shipper import LogShipper
from bootstrap.system import System
from tests.bootstrap.account import REGION, Account

WAIT_SECONDS = 10.0


class FakeLogs:
    """Fails `failures` times; `delivered` holds the messages."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.delivered: list[str] = []
        self.batches: list[int] = []
        self.gate = threading.Event()
        self.gate.set()

    def create_log_stream(self, **target: str) -> None:
        pass

    def put_log_events(self, logEvents: list[dict[str, Any]], **target: str) -> None:
        self.gate.wait(WAIT_SECONDS)
        if self.failures:
            self.failures -= 1
            raise EndpointConnectionError(endpoint_url="https://logs")
        self.batches.append(len(logEvents))
        self.delivered += [event["message"] for event in logEvents]


def event(number: int) -> dict[str, Any]:
    return {"event": "trainer", "unix_seconds": 1.0, "number": number}


def numbers(logs: FakeLogs) -> list[int]:
    return [json.loads(message)["number"] for message in logs.delivered]


def test_events_reach_the_stream_of_the_instance(account: Account, tmp_path: Path) -> None:
    client = Aws(REGION).client("logs")
    for rank in (0, 1):  # the second shipper finds an existing stream
        shipper = LogShipper(client, log_group=account.log_group, stream="i-1")
        events = EventLog(System(), tmp_path / "events.jsonl")
        events.set_instance("i-1")
        events.add_listener(shipper)
        events.emit(Trainer({"rank": rank}))
        assert shipper.close(WAIT_SECONDS)
    answer = account.logs.get_log_events(logGroupName=account.log_group, logStreamName="i-1", startFromHead=True)
    delivered = [json.loads(each["message"]) for each in answer["events"]]
    assert delivered == [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [each["record"]["rank"] for each in delivered] == [0, 1]


def test_a_failure_neither_loses_nor_duplicates_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_shipper, "INTERVAL_SECONDS", 0.01)
    logs = FakeLogs(failures=3)
    shipper = LogShipper(logs, log_group="g", stream="s")
    for number in range(50):
        shipper(event(number))
    deadline = threading.Event()
    for _ in range(int(WAIT_SECONDS / 0.02)):
        if len(logs.delivered) == 50:
            break
        deadline.wait(0.02)
    assert numbers(logs) == list(range(50))
    assert shipper.close(WAIT_SECONDS)


def test_batches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_shipper, "BATCH_EVENTS", 10)
    logs = FakeLogs()
    shipper = LogShipper(logs, log_group="g", stream="s")
    for number in range(25):
        shipper(event(number))
    assert shipper.close(WAIT_SECONDS)
    assert logs.batches == [10, 10, 5]


def test_a_full_queue_drops_the_oldest_events_without_blocking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_shipper, "QUEUE_EVENTS", 5)
    monkeypatch.setattr(log_shipper, "INTERVAL_SECONDS", WAIT_SECONDS)
    logs = FakeLogs()
    shipper = LogShipper(logs, log_group="g", stream="s")
    for number in range(20):
        shipper(event(number))
    assert shipper.close(WAIT_SECONDS)
    assert numbers(logs) == [15, 16, 17, 18, 19]


def test_an_event_over_the_size_limit_is_sent_with_its_common_keys_only() -> None:
    logs = FakeLogs()
    shipper = LogShipper(logs, log_group="g", stream="s")
    shipper({**event(0), "message": "x" * 300_000})
    assert shipper.close(WAIT_SECONDS)
    assert json.loads(logs.delivered[0]).keys() == {"event", "unix_seconds", "too_long_bytes"}


def test_closing_retries_failed_deliveries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_shipper, "CLOSING_PAUSE_SECONDS", 0.01)
    logs = FakeLogs(failures=4)
    shipper = LogShipper(logs, log_group="g", stream="s")
    shipper(event(0))
    assert shipper.close(WAIT_SECONDS)
    assert numbers(logs) == [0]


def test_closing_ends_in_time_if_deliveries_keep_failing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_shipper, "CLOSING_PAUSE_SECONDS", 0.01)
    logs = FakeLogs(failures=10**9)
    shipper = LogShipper(logs, log_group="g", stream="s")
    shipper(event(0))
    assert not shipper.close(0.1)
    shipper._thread.join(WAIT_SECONDS)
    assert not shipper._thread.is_alive()


def test_closing_ends_in_time_if_the_service_hangs() -> None:
    logs = FakeLogs()
    logs.gate.clear()
    shipper = LogShipper(logs, log_group="g", stream="s")
    shipper(event(0))
    assert not shipper.close(0.1)
    logs.gate.set()
