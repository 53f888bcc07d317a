"""Builds each instance's timeline: lifetime, boot steps, generations, interruptions and other events."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from trainstack.report.training import Training

Record = Mapping[str, Any]

MARKS = {
    "interruption_notice": "interruption notice received by the node",
    "rebalance_recommendation": "rebalance recommendation",
    "run_document_changed": "run document changed",
    "run_finished": "run finished",
    "node_leaving": "node leaving",
    "gang_incomplete": "gang incomplete",
    "clock_jumped": "clock jumped",
    "boot_failed": "boot failed",
}


def records_of(events: Sequence[Record], live: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yield the launches, ends and interruptions of instances, as far as their events show them.

    An instance starts with its first event, and ends with its last one unless its id is in `live`.

    Args:
        events: The nodes' events, sorted by time.
        live: Ids of the instances that exist.
    """
    own: dict[str, list[Record]] = {}
    for event in events:
        own.setdefault(str(event.get("instance_id")), []).append(event)
    for instance_id, found in own.items():
        started = next((event for event in found if event.get("event") == "supervisor_started"), {})
        yield {
            "kind": "instance_launched",
            "unix_seconds": found[0]["unix_seconds"],
            "instance_id": instance_id,
            "instance_type": started.get("instance_type", "unknown type"),
            "market": started.get("market"),
            "zone": started.get("availability_zone"),
        }
        for event in found:
            if event.get("event") == "interruption_notice":
                seconds, reclaim = event["unix_seconds"], event.get("reclaim_unix_seconds")
                notice = round(reclaim - seconds) if isinstance(reclaim, (int, float)) else None
                yield {
                    "kind": "interruption",
                    "unix_seconds": seconds,
                    "instance_id": instance_id,
                    "notice_seconds": notice,
                }
        if instance_id not in live:
            leaving = [event.get("reason") for event in found if event.get("event") == "node_leaving"]
            reason = leaving[-1] if leaving else None
            last = found[-1]["unix_seconds"]
            yield {"kind": "instance_ended", "unix_seconds": last, "instance_id": instance_id, "reason": reason}


def events_of_run(events: Sequence[Record], run: str) -> list[Record]:
    """Return the events of one run, from the sorted events of a deployment.

    A node can train several runs after each other. Events that precede its first generation, such as boot events,
    belong to the same run as that generation. The events of nodes that never joined a generation belong to the run if
    they are between its first and its last generation.
    """
    generations = [event for event in events if event.get("event") == "generation_started"]
    times = [float(event["unix_seconds"]) for event in generations if event.get("run") == run]
    runs: dict[str, str] = {}
    for event in reversed(generations):
        runs[str(event.get("instance_id"))] = str(event.get("run"))
    kept = []
    for event in events:
        instance_id = str(event.get("instance_id"))
        if event.get("event") == "generation_started":
            runs[instance_id] = str(event.get("run"))
        if instance_id in runs:
            if runs[instance_id] == run:
                kept.append(event)
        elif not times or min(times) <= float(event["unix_seconds"]) <= max(times):
            kept.append(event)
    return kept


def instances_of(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return all launched instances, oldest first. Times are in Unix seconds; `ended` is None if still running."""
    instances: dict[str, dict[str, Any]] = {}
    for record in records:
        instance_id = str(record.get("instance_id"))
        if record.get("kind") == "instance_launched":
            instances[instance_id] = {
                "id": instance_id,
                "type": str(record.get("instance_type")),
                "market": record.get("market"),
                "zone": record.get("zone"),
                "launched": float(record["unix_seconds"]),
                "ended": None,
                "reason": None,
            }
        elif record.get("kind") == "instance_ended" and instance_id in instances:
            instances[instance_id] |= {"ended": float(record["unix_seconds"]), "reason": record.get("reason")}
    return list(instances.values())


def interruptions_of(records: Sequence[Record], training: Training) -> list[dict[str, Any]]:
    """Return the interruptions, each with its training step. Without a notice, `notice_seconds` is None."""
    return [
        {
            "instance_id": record.get("instance_id"),
            "unix_seconds": float(record["unix_seconds"]),
            "notice_seconds": record.get("notice_seconds"),
            "step": training.step_at(float(record["unix_seconds"])),
        }
        for record in records
        if record.get("kind") == "interruption"
    ]


def timeline_of(
    events: Sequence[Record],
    instances: Sequence[Record],
    interruptions: Sequence[Record],
    last_seconds: float,
) -> list[dict[str, Any]]:
    """Return a row for each instance, with spans (boot steps, generations) and marks. Times are in Unix seconds."""
    rows = []
    for instance in instances:
        own = [event for event in events if event.get("instance_id") == instance["id"]]
        end_seconds = instance["ended"] if instance["ended"] is not None else last_seconds
        marks = [
            {"kind": "interruption", "unix_seconds": entry["unix_seconds"], "text": _notice_text(entry)}
            for entry in interruptions
            if entry["instance_id"] == instance["id"]
        ]
        rows.append(
            {
                **{key: instance[key] for key in ("id", "type", "market", "zone", "launched", "reason")},
                "ended": end_seconds,
                "spans": [*_boot_spans(own), *_generation_spans(own, end_seconds)],
                "marks": marks + [_mark(event) for event in own if event.get("event") in MARKS],
            }
        )
    return rows


def _notice_text(interruption: Record) -> str:
    notice_seconds = interruption["notice_seconds"]
    return "interruption without notice" if notice_seconds is None else f"interruption, {notice_seconds:g} s notice"


def _mark(event: Record) -> dict[str, Any]:
    kind = str(event["event"])
    more = event.get("reason") or event.get("message")
    text = MARKS[kind] if more is None else f"{MARKS[kind]}: {more}"
    return {"kind": kind, "unix_seconds": float(event["unix_seconds"]), "text": text}


def _boot_spans(own: Sequence[Record]) -> list[dict[str, Any]]:
    spans = []
    for event in own:
        if event.get("event") != "boot_step":
            continue
        ended = float(event.get("ended_unix_seconds", event["unix_seconds"]))
        started = float(event.get("started_unix_seconds", ended - float(event.get("seconds") or 0.0)))
        spans.append(
            {
                "kind": "boot_step",
                "name": str(event.get("step")),
                "started": started,
                "ended": ended,
                "outcome": event.get("outcome"),
            }
        )
    return spans


def _generation_spans(own: Sequence[Record], end_seconds: float) -> list[dict[str, Any]]:
    """Pair start events with end events. A generation without an end event ends with its instance."""
    spans: dict[Any, dict[str, Any]] = {}
    for event in own:
        generation = event.get("generation")
        if event.get("event") == "generation_started":
            spans[generation] = {
                "kind": "generation",
                "name": f"generation {generation}",
                "generation": generation,
                "rank": event.get("rank"),
                "world_size": event.get("world_size"),
                "started": float(event["unix_seconds"]),
                "ended": end_seconds,
                "outcome": None,
            }
        elif event.get("event") == "generation_ended" and generation in spans:
            spans[generation] |= {
                "ended": float(event["unix_seconds"]),
                "outcome": event.get("outcome"),
                "step": event.get("step"),
            }
    return list(spans.values())
