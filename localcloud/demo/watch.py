"""Follows a run: reads the nodes' events from CloudWatch Logs, says what happens, and plays the fault.

Not here: what the events mean for the final figures (`report`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

POLL_SECONDS = 0.5
NOTICE_SECONDS = 20.0
"""AWS gives 120. The node trains on until its last save must begin: the demo would be over before it left."""


class LogsClient(Protocol):
    """The one call of boto3's logs client that is used here."""

    def filter_log_events(self, **arguments: Any) -> dict[str, Any]:
        """Return a page of a log group's events."""
        ...


class RunFailed(Exception):
    """The run ended badly, or did not move for too long; the message says what the nodes said last."""


@dataclass
class EventLog:
    """The events of a log group in arrival order, each once."""

    logs: LogsClient
    group: str
    events: list[dict[str, Any]] = field(default_factory=list)
    _seen: set[str] = field(default_factory=set)

    def poll(self) -> Iterator[dict[str, Any]]:
        """Yield the events that came since the last poll, oldest first."""
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
                fresh.append(record)
            if "nextToken" not in page:
                break
            arguments["nextToken"] = page["nextToken"]
        fresh.sort(key=lambda event: float(event["unix_seconds"]))
        self.events.extend(fresh)
        yield from fresh


def describe(event: Mapping[str, Any]) -> str | None:
    """Return the line that a person sees for an event, or None when it is not worth one."""
    kind = event["event"]
    if kind == "trainer":
        return _describe_record(event["record"])
    texts: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "boot_started": lambda e: "boots",
        "boot_step": lambda e: f"boot: {e['step']} {e['outcome']} in {e['seconds']:.1f} s",
        "boot_failed": lambda e: f"boot FAILED in {e['step']}: {e['message']} Remedy: {e['remedy']}",
        "boot_finished": lambda e: f"booted in {e['seconds']:.1f} s",
        "supervisor_started": lambda e: f"supervises ({e['market']} {e['instance_type']} in {e['availability_zone']})",
        "generation_started": lambda e: f"generation {e['generation']}: rank {e['rank']} of {e['world_size']}",
        "generation_ended": lambda e: f"generation {e['generation']} ended: {e['outcome']} at step {e['step']}",
        "interruption_notice": lambda e: f"AWS TAKES THIS NODE BACK ({e['action']}): checkpoint, then leave",
        "rebalance_recommendation": lambda e: "rebalance recommendation: extra checkpoint",
        "run_document_changed": lambda e: "run document changed: the trainer restarts in place",
        "lifecycle_target": lambda e: f"fleet wants this node {e['state']}",
        "gang_incomplete": lambda e: f"{e['message']}. Remedy: {e['remedy']}",
        "election_lost": lambda e: str(e["message"]),
        "clock_jumped": lambda e: f"{e['message']}. Remedy: {e['remedy']}",
        "run_finished": lambda e: f"run {e['run']} FINISHED at step {e['step']}",
        "node_leaving": lambda e: f"leaves: {e['reason']}",
    }
    text = texts.get(kind)
    return None if text is None else text(event)


def _describe_record(record: Mapping[str, Any]) -> str | None:
    kind = record["record"]
    if kind == "start":
        resumed = record["resumed_from_step"]
        origin = "from scratch" if resumed is None else f"RESUMES from step {resumed}"
        return (
            f"training {origin}: {record['parameters'] / 1e6:.1f} M parameters, {record['world_size']} ranks, "
            f"{record['precision']} on {record['device']}, {record['steps_total']} steps"
        )
    if kind == "step":
        return f"step {record['step']:>4}  loss {record['loss']:.3f}  {record['tokens_per_second']:,.0f} tokens/s"
    if kind == "validation":
        return (
            f"step {record['step']:>4}  validation loss {record['loss']:.3f} "
            f"({record['bits_per_byte']:.2f} bits per byte; token frequencies alone {record['unigram_loss']:.2f})"
        )
    if kind == "checkpoint":
        return f"step {record['step']:>4}  checkpoint, the loop waited {record['blocked_seconds'] * 1000:.0f} ms"
    return None


@dataclass
class Fault:
    """What is done to the run: a node taken at `at_share` of the steps, with or without notice, or nothing."""

    kind: str
    at_share: float
    interrupt: Callable[[str, float | None], None]
    notice_seconds: float = NOTICE_SECONDS
    done: bool = False
    _steps_total: int = 0
    _checkpoint_step: int = 0
    _members: list[str] = field(default_factory=list)

    def observe(self, event: Mapping[str, Any]) -> str | None:
        """Take note of an event; when the moment has come, take the last node of the gang and say so.

        The last rank is taken with notice. Without notice it is the first: the harder case, since the ranks meet at its
        address. The kill waits for a first checkpoint, so that there is something to resume from.
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
            return f"{self._members[0]} is taken WITHOUT notice"
        self.interrupt(self._members[-1], self.notice_seconds)
        return f"{self._members[-1]} gets its interruption notice ({self.notice_seconds:.0f} s)"


def follow(
    log: EventLog,
    fault: Fault,
    *,
    say: Callable[[float, str, str], None],
    running_instances: Callable[[], int],
    stall_seconds: float,
) -> None:
    """Follow a run from its first node to an empty fleet.

    Args:
        say: Called with unix time, who (an instance id, or "fleet"), and a line for the person.
        running_instances: Returns how many instances are not yet ended.
        stall_seconds: Give up when no event came for so long.

    Raises:
        RunFailed: A node gave up, the run ended badly, or nothing happened for `stall_seconds`.
    """
    finished = False
    failures = 0
    last_news = time.monotonic()
    while not (finished and running_instances() == 0):
        for event in log.poll():
            last_news = time.monotonic()
            line = describe(event)
            if line is not None:
                say(float(event["unix_seconds"]), event["instance_id"], line)
            news = fault.observe(event)
            if news is not None:
                say(time.time(), "cloud", news)
            finished = finished or event["event"] == "run_finished"
            failures += event["event"] == "boot_failed"
            if failures >= 3 or event.get("outcome") == "bad_configuration":
                raise RunFailed(f"the nodes cannot train: {line}")
        if time.monotonic() - last_news > stall_seconds:
            last = log.events[-1]["event"] if log.events else "none"
            raise RunFailed(f"nothing happened for {stall_seconds:.0f} s (last event: {last})")
        time.sleep(POLL_SECONDS)
