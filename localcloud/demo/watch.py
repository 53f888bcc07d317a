"""Follows a run: reads the nodes' events from CloudWatch Logs, reports progress and injects the fault."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

SCHEMA_VERSION = 2
"""The supported schema version for the nodes' events and the trainer's records."""
POLL_SECONDS = 0.5
NOTICE_SECONDS = 20.0
"""With AWS's 120 s of notice, a node trains until its last save must start. The demo might finish before then."""


class LogsClient(Protocol):
    """The part of boto3's logs client that this module uses."""

    def filter_log_events(self, **arguments: Any) -> dict[str, Any]:
        """Return a page of a log group's events."""
        ...


class RunFailed(Exception):
    """The run failed, or made no progress for too long."""


@dataclass
class EventLog:
    """A log group's events in order of arrival, without duplicates."""

    logs: LogsClient
    group: str
    events: list[dict[str, Any]] = field(default_factory=list)
    _seen: set[str] = field(default_factory=set)

    def poll(self) -> Iterator[dict[str, Any]]:
        """Yield the events that arrived since the last poll, oldest first.

        Raises:
            RunFailed: An event or a trainer record has an unsupported schema version.
        """
        arguments: dict[str, Any] = {"logGroupName": self.group, "interleaved": True}
        fresh: list[dict[str, Any]] = []
        while True:
            page = self.logs.filter_log_events(**arguments)
            for entry in page["events"]:
                if entry["eventId"] in self._seen:
                    continue
                self._seen.add(entry["eventId"])
                record = json.loads(entry["message"])
                record.setdefault("instance_id", entry["logStreamName"])
                if problem := version_problem(record):
                    raise RunFailed(f"{record['instance_id']}: {problem}; run the demo and nodes at the same revision")
                fresh.append(record)
            if "nextToken" not in page:
                break
            arguments["nextToken"] = page["nextToken"]
        fresh.sort(key=lambda event: float(event["unix_seconds"]))
        self.events.extend(fresh)
        yield from fresh


def version_problem(event: Mapping[str, Any]) -> str | None:
    """Return the problem with the schema version of an event or its trainer record, or None if it is supported."""
    parts = {"event": event} | ({"record": event["record"]} if "record" in event else {})
    for name, part in parts.items():
        version = part.get("schema_version", 1)  # version 1 records do not have a schema_version
        if version != SCHEMA_VERSION:
            return f"{name} {part.get(name)} has schema_version {version}, expected {SCHEMA_VERSION}"
    return None


def describe(event: Mapping[str, Any]) -> str | None:
    """Return an event's progress line, or None for an event that is not shown."""
    kind = event["event"]
    if kind == "trainer":
        return _describe_record(event["record"])
    texts: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "boot_started": lambda e: "booting",
        "boot_step": lambda e: f"boot: {e['step']} {e['outcome']} in {e['seconds']:.1f} s",
        "boot_failed": lambda e: f"boot FAILED in {e['step']}: {e['message']} Remedy: {e['remedy']}",
        "boot_finished": lambda e: f"booted in {e['seconds']:.1f} s",
        "supervisor_started": lambda e: (
            f"supervisor started ({e['market']} {e['instance_type']} in {e['availability_zone']})"
        ),
        "generation_started": lambda e: f"generation {e['generation']}: rank {e['rank']} of {e['world_size']}",
        "generation_ended": lambda e: f"generation {e['generation']} ended: {e['outcome']} at step {e['step']}",
        "interruption_notice": lambda e: f"INTERRUPTION NOTICE ({e['action']}): saving a checkpoint, then stopping",
        "rebalance_recommendation": lambda e: "rebalance recommendation: saving an extra checkpoint",
        "run_document_changed": lambda e: "run document changed: restarting the trainer in place",
        "lifecycle_target": lambda e: f"target lifecycle state: {e['state']}",
        "gang_incomplete": lambda e: f"{e['message']}. Remedy: {e['remedy']}",
        "election_lost": lambda e: str(e["message"]),
        "clock_jumped": lambda e: f"{e['message']}. Remedy: {e['remedy']}",
        "run_finished": lambda e: f"run {e['run']} FINISHED at step {e['step']}",
        "node_leaving": lambda e: f"leaving: {e['reason']}",
    }
    text = texts.get(kind)
    return None if text is None else text(event)


def _describe_record(record: Mapping[str, Any]) -> str | None:
    kind = record["record"]
    if kind == "start":
        resumed = record["resumed_from_step"]
        origin = "starts from scratch" if resumed is None else f"RESUMES from step {resumed}"
        return (
            f"training {origin}: {record['parameters'] / 1e6:.1f} M parameters, {record['world_size']} ranks, "
            f"{record['precision']} on {record['device']}, {record['steps_total']} steps"
        )
    if kind == "step":
        return f"step {record['step']:>4}  loss {record['loss']:.3f}  {record['tokens_per_second']:,.0f} tokens/s"
    if kind == "validation":
        return (
            f"step {record['step']:>4}  validation loss {record['loss']:.3f} "
            f"({record['bits_per_byte']:.2f} bits per byte; unigram baseline {record['unigram_loss']:.2f})"
        )
    if kind == "checkpoint":
        return f"step {record['step']:>4}  checkpoint, training blocked for {record['blocked_seconds'] * 1000:.0f} ms"
    return None


@dataclass
class Fault:
    """The injected fault. If enabled, it interrupts a node, with or without notice, after `at_share` of the steps."""

    kind: str
    at_share: float
    interrupt: Callable[[str, float | None], None]
    notice_seconds: float = NOTICE_SECONDS
    done: bool = False
    _steps_total: int = 0
    _checkpoint_step: int = 0
    _members: list[str] = field(default_factory=list)

    def observe(self, event: Mapping[str, Any]) -> str | None:
        """Process an event. When the fault is due, interrupt a node and return a progress line.

        With notice, the node with the last rank is interrupted. Without notice, the first node is interrupted, which is
        the harder case because the ranks rendezvous at its address. The fault waits for the first checkpoint so that
        the run can resume.
        """
        if event["event"] == "generation_started":
            self._members = list(event["members"])
        if event["event"] != "trainer":
            return None
        record = event["record"]
        if record["record"] == "start":
            self._steps_total = record["steps_total"]
        if record["record"] == "checkpoint":
            self._checkpoint_step = max(self._checkpoint_step, record["step"])
        due = record["record"] == "step" and record["step"] >= self._steps_total * self.at_share
        if self.kind == "none" or self.done or not due or not self._checkpoint_step or not self._members:
            return None
        self.done = True
        if self.kind == "no-notice":
            self.interrupt(self._members[0], None)
            return f"killed {self._members[0]} WITHOUT notice"
        self.interrupt(self._members[-1], self.notice_seconds)
        return f"sent {self._members[-1]} an interruption notice ({self.notice_seconds:.0f} s)"


def follow(
    log: EventLog,
    fault: Fault,
    *,
    report: Callable[[float, str, str], None],
    running_instances: Callable[[], int],
    stall_seconds: float,
) -> None:
    """Follow a run from the launch of its first node until the fleet is empty.

    Args:
        report: Called with the Unix time, the source (an instance ID or "cloud") and a progress line.
        running_instances: Returns the number of instances that are not terminated.
        stall_seconds: Seconds without events after which the run is considered failed.

    Raises:
        RunFailed: The nodes cannot boot or train, or no events arrived for `stall_seconds`.
    """
    finished = False
    failures = 0
    last_event = time.monotonic()
    while not (finished and running_instances() == 0):
        for event in log.poll():
            last_event = time.monotonic()
            line = describe(event)
            if line is not None:
                report(float(event["unix_seconds"]), event["instance_id"], line)
            injected = fault.observe(event)
            if injected is not None:
                report(time.time(), "cloud", injected)
            finished = finished or event["event"] == "run_finished"
            failures += event["event"] == "boot_failed"
            if failures >= 3 or event.get("outcome") == "bad_configuration":
                raise RunFailed(f"the nodes cannot train: {line}")
        if time.monotonic() - last_event > stall_seconds:
            last = log.events[-1]["event"] if log.events else "none"
            raise RunFailed(f"no events for {stall_seconds:.0f} s (last event: {last})")
        time.sleep(POLL_SECONDS)
