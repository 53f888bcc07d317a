"""The event bus, which matches events against moto's rules and delivers them to targets.

`observed` creates Parameter Store and S3 events, `patterns` matches events, and `targets` delivers them.
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
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import BotoCoreError
from moto.events.models import events_backends
from moto.s3 import notifications as moto_s3_notifications

from localcloud.api import ApiError, Call, Clients, Handler, Observer, Service
from localcloud.events.clock import ScheduleClock, ScheduledRule
from localcloud.events.observed import ObjectEvents, ParameterEvents, ServiceEvent
from localcloud.events.patterns import InvalidPattern, matches, parse_pattern
from localcloud.events.schedules import InvalidSchedule, parse_schedule
from localcloud.events.targets import TargetRefused, TargetSender, check_target
from localcloud.functions.service import FunctionService

_logger = logging.getLogger(__name__)

WORKERS = 4
QUEUE_EVENTS = 2000
REQUEST_LIMIT_BYTES = 1024 * 1024
"""Source: https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-putevents.html (read 2026-11)."""
ENTRIES_LIMIT = 10
TARGETS_LIMIT = 5
"""Targets of a rule. Source: https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-quota.html (read 2026-11)."""
EVENT_FIELDS = {"id", "account", "source", "time", "region", "detail-type"}
"""Source: Event in TestEventPattern in botocore's model of EventBridge (1.44)."""

Job = Callable[[], None]


class LocalEventBus(Service):
    """EventBridge's buses. Services send events with `publish`, and users send them with PutEvents.

    Events from the same source are dispatched in the order in which they arrive.
    """

    name = "events"

    def __init__(self, clients: Clients, functions: FunctionService, *, now: Callable[[], float] | None = None) -> None:
        """Start the workers and the schedules. `now` replaces the schedules' clock and returns Unix seconds."""
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
        # moto also delivers S3 events to queues and log groups, so they would arrive twice, even for disabled rules.
        setattr(moto_s3_notifications, "_send_event_bridge_message", _no_delivery)  # noqa: B010 - see above
        for thread in self._threads:
            thread.start()
        self._clock = ScheduleClock(self._scheduled_rules, self._fire, now)

    def publish(
        self, source: str, detail_type: str, detail: Mapping[str, Any], resources: list[str] | None = None
    ) -> None:
        """Send an AWS service's event to the default bus without waiting for targets."""
        event = self._envelope(ServiceEvent(source, detail_type, detail, tuple(resources or ())))
        self._submit(source, lambda: self._dispatch(event, "default"))

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers for PutEvents and for the operations that moto does not validate strictly enough."""
        return {
            "PutEvents": self._put_events,
            "PutRule": self._put_rule,
            "PutTargets": self._put_targets,
            "TestEventPattern": self._test_pattern,
        }

    def observers(self) -> Mapping[tuple[str, str], Observer]:
        """Return the observers for calls that cause events or change rules."""

        def rules_changed(call: Call, answer: Mapping[str, Any]) -> None:
            self._clock.loop.wake()

        own = {("events", operation): rules_changed for operation in ("EnableRule", "DisableRule", "DeleteRule")}
        return {**own, **self._parameters.observers(), **self._objects.observers()}

    def close(self) -> None:
        """Stop the schedules and the workers, and drop queued events."""
        self._closed = True
        self._clock.loop.close()
        for jobs in self._queues:
            with jobs.mutex:
                jobs.queue.clear()
            jobs.put(None)
        for thread in self._threads:
            thread.join(5)

    def _put_rule(self, call: Call) -> Mapping[str, Any]:
        if call.parameters.get("EventPattern"):
            _pattern_of(call)
        try:
            if call.parameters.get("ScheduleExpression"):
                parse_schedule(call.parameters["ScheduleExpression"])
        except InvalidSchedule as error:
            raise ApiError(
                "ValidationException", f"Parameter ScheduleExpression is not valid. Reason: {error}"
            ) from error
        answer = self._moto("put_rule", call)
        self._clock.loop.wake()
        return {"RuleArn": answer["RuleArn"]}

    def _test_pattern(self, call: Call) -> Mapping[str, Any]:
        pattern = _pattern_of(call)
        try:
            event = json.loads(call.parameters["Event"])
        except ValueError:
            event = None
        if not isinstance(event, dict) or not set(event) >= EVENT_FIELDS:
            raise ApiError("ValidationException", "Parameter Event is not valid.")
        return {"Result": matches(pattern, event)}

    def _put_targets(self, call: Call) -> Mapping[str, Any]:
        for number, target in enumerate(call.parameters["Targets"], 1):
            check_target(number, target)
        bus = str(call.parameters.get("EventBusName") or "default").rpartition("/")[2]
        rule = self._buses()[bus].rules.get(call.parameters["Rule"]) if bus in self._buses() else None
        present = {target["Id"] for target in rule.targets} if rule is not None else set()
        if len(present | {target["Id"] for target in call.parameters["Targets"]}) > TARGETS_LIMIT:
            raise ApiError("LimitExceededException", "The requested resource exceeds the maximum number allowed.")
        answer = self._moto("put_targets", call)
        return {key: answer[key] for key in ("FailedEntryCount", "FailedEntries")}

    def _moto(self, operation: str, call: Call) -> Mapping[str, Any]:
        return dict(getattr(self._clients.direct("events"), operation)(**call.parameters))

    def _put_events(self, call: Call) -> Mapping[str, Any]:
        entries = call.parameters["Entries"]
        if len(entries) > ENTRIES_LIMIT:
            raise ApiError(
                "ValidationException",
                f"1 validation error detected: Value at 'entries' failed to satisfy constraint: Member must have "
                f"length less than or equal to {ENTRIES_LIMIT}",
            )
        if sum(_size_bytes(entry) for entry in entries) > REQUEST_LIMIT_BYTES:
            raise ApiError("ValidationException", "Total size of the entries in the request is over the limit.")
        answers = [self._put_entry(entry) for entry in entries]
        return {"FailedEntryCount": sum("ErrorCode" in answer for answer in answers), "Entries": answers}

    def _put_entry(self, entry: Mapping[str, Any]) -> dict[str, str]:
        for field in ("Source", "DetailType", "Detail"):
            if not entry.get(field):
                message = f"Parameter {field} is not valid. Reason: {field} is a required argument."
                return {"ErrorCode": "InvalidArgument", "ErrorMessage": message}
        if str(entry["Source"]).startswith("aws."):
            message = f"Not authorized for the source {entry['Source']}: sources starting with aws. are reserved."
            return {"ErrorCode": "NotAuthorizedForSourceException", "ErrorMessage": message}
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
            return {"ErrorCode": "ThrottlingException", "ErrorMessage": "Too many queued events."}
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
            reason = f"the queue is full ({QUEUE_EVENTS} events)"
            self._records.append("event_refused", source=source, reason=reason)
            _logger.error("dropped an event from %s: %s", source, reason)
            return False
        return True

    def _work(self, jobs: queue.Queue[Job | None]) -> None:
        while True:
            job = jobs.get()
            if job is None:
                return
            try:
                job()
            except Exception:  # top level of the thread: one failing event must not stop the bus
                _logger.exception("failed to dispatch an event")

    def _buses(self) -> Mapping[str, Any]:
        return events_backends[self._clients.account][self._clients.region].event_buses

    def _rules(self, bus: str) -> list[Any]:
        found = self._buses().get(bus)
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
            delivery = {
                "event_id": event["id"],
                "source": event["source"],
                "detail_type": event["detail-type"],
                "rule": rule_arn,
                "target": target["Arn"],
            }
            try:
                self._sender.send(target, target.get("Input", json.dumps(event)), rule_arn)
            except (TargetRefused, BotoCoreError) as error:
                self._records.append("event_refused", **delivery, reason=str(error))
                _logger.error("%s: %s", rule_arn, error)
            else:
                self._records.append("event_delivered", **delivery)


def _pattern_of(call: Call) -> Mapping[str, Any]:
    try:
        return parse_pattern(call.parameters["EventPattern"])
    except InvalidPattern as error:
        raise ApiError("InvalidEventPatternException", str(error)) from error


def _size_bytes(entry: Mapping[str, Any]) -> int:
    """Return the size of an entry; the time counts as 14 bytes."""
    texts = [entry.get(name) or "" for name in ("Source", "DetailType", "Detail")] + list(entry.get("Resources", ()))
    return sum(len(text.encode()) for text in texts) + (14 if entry.get("Time") else 0)


def _no_delivery(*_: object) -> None:
    """Replace moto's delivery of S3 events to EventBridge rules."""


def _timestamp(unix_seconds: float) -> str:
    return datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
