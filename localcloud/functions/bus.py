"""The event bus: rules kept by moto, matched and dispatched here; schedules; events of Parameter Store and S3.

Not here: how a pattern matches (`patterns`), what a target gets (`transforms`), how it gets it (`targets`).
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from moto.events.models import events_backends
from moto.s3 import notifications as moto_s3_notifications

from localcloud.api import ApiError, Call, Clients, Handler, Observer
from localcloud.functions.clock import ScheduleClock, ScheduledRule
from localcloud.functions.destinations import queue_url
from localcloud.functions.errors import InvalidPattern, InvalidSchedule, InvalidTransform, TargetRefused
from localcloud.functions.observed import ObjectEvents, ParameterEvents, ServiceEvent
from localcloud.functions.patterns import matches, parse_pattern
from localcloud.functions.schedules import parse_schedule
from localcloud.functions.service import FunctionService
from localcloud.functions.targets import TargetSender
from localcloud.functions.transforms import target_input

_logger = logging.getLogger(__name__)

WORKERS = 4
QUEUE_EVENTS = 2000
ENTRY_LIMIT_BYTES = 1024 * 1024
"""Source: https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-putevents.html (read 2026-11)."""
ENTRIES_LIMIT = 10

Job = Callable[[], None]


class LocalEventBus:
    """EventBridge's buses, for the events of services (`publish`) and of users (PutEvents).

    Events of one source are dispatched in the order in which they came.
    """

    name = "events"

    def __init__(self, clients: Clients, functions: FunctionService, *, now: Callable[[], float] | None = None) -> None:
        """Start the workers and the clock; `now` replaces the schedules' clock (Unix seconds)."""
        self._clients = clients
        self._records = functions.records
        self._sender = TargetSender(clients, functions)
        self._parameters = ParameterEvents(clients, self._submit_events)
        self._objects = ObjectEvents(clients, self._submit_events)
        self._closed = False
        self._queues: list[queue.Queue[Job | None]] = [queue.Queue(QUEUE_EVENTS) for _ in range(WORKERS)]
        self._threads = [
            threading.Thread(target=self._work, args=(jobs,), name=f"event-dispatch-{number}", daemon=True)
            for number, jobs in enumerate(self._queues)
        ]
        # moto would hand S3 events to queues and log groups itself: a second time, and for disabled rules too.
        setattr(moto_s3_notifications, "_send_event_bridge_message", _leave_to_the_bus)  # noqa: B010 - see above
        for thread in self._threads:
            thread.start()
        self._clock = ScheduleClock(self._scheduled_rules, self._fire, now)

    def publish(
        self, source: str, detail_type: str, detail: Mapping[str, Any], resources: list[str] | None = None
    ) -> None:
        """Deliver an AWS service event to the default bus, without waiting for targets."""
        event = self._envelope(ServiceEvent(source, detail_type, detail, tuple(resources or ())))
        self._submit(source, lambda: self._dispatch(event, "default"))

    def operations(self) -> Mapping[str, Handler]:
        """Return the operations that are answered here: what moto checks too little, and PutEvents."""
        return {"PutEvents": self._put_events, "PutRule": self._put_rule, "TestEventPattern": self._test_pattern}

    def observers(self) -> Mapping[tuple[str, str], Observer]:
        """Return the observers of the calls that make events."""

        def rules_changed(call: Call, answer: Mapping[str, Any]) -> None:
            self._clock.rules_changed()

        own = {("events", operation): rules_changed for operation in ("EnableRule", "DisableRule", "DeleteRule")}
        return {**own, **self._parameters.observers(), **self._objects.observers()}

    def http(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Answer nothing: the history is in records.jsonl."""
        return 404, b""

    def close(self) -> None:
        """End the clock and the workers; events that still wait are dropped."""
        self._closed = True
        self._clock.close()
        for jobs in self._queues:
            with jobs.mutex:
                jobs.queue.clear()
            jobs.put(None)
        for thread in self._threads:
            thread.join(5)

    def _put_rule(self, call: Call) -> Mapping[str, Any]:
        try:
            if call.parameters.get("EventPattern"):
                parse_pattern(call.parameters["EventPattern"])
        except InvalidPattern as error:
            raise ApiError("InvalidEventPatternException", str(error)) from error
        try:
            if call.parameters.get("ScheduleExpression"):
                parse_schedule(call.parameters["ScheduleExpression"])
        except InvalidSchedule as error:
            raise ApiError(
                "ValidationException", f"Parameter ScheduleExpression is not valid. Reason: {error}"
            ) from error
        try:
            answer = self._clients.direct("events").put_rule(**call.parameters)
        except ClientError as error:
            raise ApiError(error.response["Error"]["Code"], error.response["Error"]["Message"]) from error
        self._clock.rules_changed()
        return {"RuleArn": answer["RuleArn"]}

    def _test_pattern(self, call: Call) -> Mapping[str, Any]:
        try:
            pattern = parse_pattern(call.parameters["EventPattern"])
        except InvalidPattern as error:
            raise ApiError("InvalidEventPatternException", str(error)) from error
        try:
            event = json.loads(call.parameters["Event"])
        except ValueError as error:
            raise ApiError("ValidationException", f"Parameter Event is not valid. Reason: {error}") from error
        return {"Result": matches(pattern, event)}

    def _put_events(self, call: Call) -> Mapping[str, Any]:
        entries = call.parameters["Entries"]
        if len(entries) > ENTRIES_LIMIT:
            raise ApiError(
                "ValidationException",
                f"1 validation error detected: Value at 'entries' failed to satisfy constraint: Member must have "
                f"length less than or equal to {ENTRIES_LIMIT}",
            )
        answers = [self._put_entry(entry) for entry in entries]
        return {"FailedEntryCount": sum("ErrorCode" in answer for answer in answers), "Entries": answers}

    def _put_entry(self, entry: Mapping[str, Any]) -> dict[str, str]:
        for field in ("Source", "DetailType", "Detail"):
            if not entry.get(field):
                message = f"Parameter {field} is not valid. Reason: {field} is a required argument."
                return {"ErrorCode": "InvalidArgument", "ErrorMessage": message}
        if str(entry["Source"]).startswith("aws."):
            message = f"Not authorized for the source {entry['Source']}: sources of AWS services are theirs alone."
            return {"ErrorCode": "NotAuthorizedForSourceException", "ErrorMessage": message}
        if len(entry["Detail"].encode()) > ENTRY_LIMIT_BYTES:
            return {"ErrorCode": "InvalidArgument", "ErrorMessage": f"Entry is larger than {ENTRY_LIMIT_BYTES} bytes."}
        try:
            detail = json.loads(entry["Detail"])
        except ValueError:
            detail = None
        if not isinstance(detail, dict):
            return {"ErrorCode": "MalformedDetail", "ErrorMessage": "Detail is malformed."}
        bus = str(entry.get("EventBusName") or "default").rpartition("/")[2]
        given = entry.get("Time")
        event = self._envelope(
            ServiceEvent(entry["Source"], entry["DetailType"], detail, tuple(entry.get("Resources", ()))),
            given.timestamp() if isinstance(given, datetime) else None,
        )
        if not self._submit(entry["Source"], lambda: self._dispatch(event, bus)):
            return {"ErrorCode": "ThrottlingException", "ErrorMessage": "Too many events wait for their targets."}
        return {"EventId": str(event["id"])}

    def _envelope(self, event: ServiceEvent, unix_seconds: float | None = None) -> dict[str, Any]:
        return {
            "version": "0",
            "id": str(uuid.uuid4()),
            "detail-type": event.detail_type,
            "source": event.source,
            "account": self._clients.account,
            "time": _timestamp(time.time() if unix_seconds is None else unix_seconds),
            "region": self._clients.region,
            "resources": list(event.resources),
            "detail": dict(event.detail),
        }

    def _submit_events(self, source: str, make: Callable[[], list[ServiceEvent]]) -> None:
        def job() -> None:
            for event in make():
                self._dispatch(self._envelope(event), "default")

        self._submit(source, job)

    def _submit(self, source: str, job: Job) -> bool:
        if self._closed:
            return False
        try:
            self._queues[zlib.crc32(source.encode()) % WORKERS].put_nowait(job)
        except queue.Full:
            reason = f"{QUEUE_EVENTS} events wait already"
            self._records.append("event_refused", source=source, reason=reason)
            _logger.error("an event of %s is dropped: %s", source, reason)
            return False
        return True

    def _work(self, jobs: queue.Queue[Job | None]) -> None:
        while True:
            job = jobs.get()
            if job is None:
                return
            try:
                job()
            except Exception:  # a thread's top level: one event's failure must not stop the bus
                _logger.exception("an event could not be dispatched")

    def _rules(self, bus: str) -> list[Any]:
        found = events_backends[self._clients.account][self._clients.region].event_buses.get(bus)
        return [] if found is None else [rule for rule in list(found.rules.values()) if rule.state != "DISABLED"]

    def _dispatch(self, event: Mapping[str, Any], bus: str) -> None:
        for rule in self._rules(bus):
            pattern = rule.event_pattern.get_pattern()
            if pattern and matches(pattern, event):
                self._deliver(event, rule.arn, list(rule.targets))

    def _scheduled_rules(self) -> list[ScheduledRule]:
        return [
            ScheduledRule(rule.arn, rule.scheduled_expression)
            for rule in self._rules("default")
            if rule.scheduled_expression
        ]

    def _fire(self, scheduled: ScheduledRule, due_seconds: float) -> None:
        event = self._envelope(ServiceEvent("aws.events", "Scheduled Event", {}, (scheduled.arn,)), due_seconds)

        def job() -> None:
            for rule in self._rules("default"):
                if rule.arn == scheduled.arn:
                    self._deliver(event, rule.arn, list(rule.targets))

        self._submit("aws.events", job)

    def _deliver(self, event: Mapping[str, Any], rule_arn: str, targets: Iterable[Mapping[str, Any]]) -> None:
        for target in targets:
            story = {
                "event_id": event["id"],
                "source": event["source"],
                "detail_type": event["detail-type"],
                "rule": rule_arn,
                "target": target["Arn"],
            }
            text = ""
            try:
                text = target_input(target, event, rule_arn, _timestamp(time.time()))
                self._sender.send(target, text, rule_arn)
            except (TargetRefused, InvalidTransform, BotoCoreError) as error:
                self._records.append("event_refused", **story, reason=str(error))
                _logger.error("%s: %s", rule_arn, error)
                self._to_dead_letters(target, text or json.dumps(event), rule_arn, str(error))
            else:
                self._records.append("event_delivered", **story)

    def _to_dead_letters(self, target: Mapping[str, Any], text: str, rule_arn: str, reason: str) -> None:
        arn = target.get("DeadLetterConfig", {}).get("Arn")
        if not arn:
            return
        attributes = {"RULE_ARN": rule_arn, "TARGET_ARN": str(target["Arn"]), "ERROR_MESSAGE": reason}
        try:
            self._clients.direct("sqs").send_message(
                QueueUrl=queue_url(self._clients, arn),
                MessageBody=text,
                MessageAttributes={
                    key: {"DataType": "String", "StringValue": value} for key, value in attributes.items()
                },
            )
        except (ClientError, BotoCoreError) as error:
            _logger.error("%s: dead-letter queue %s: %s", rule_arn, arn, error)


def _leave_to_the_bus(*_: object) -> None:
    """Stand in for moto's own delivery of S3 events to EventBridge rules."""


def _timestamp(unix_seconds: float) -> str:
    return datetime.fromtimestamp(unix_seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
