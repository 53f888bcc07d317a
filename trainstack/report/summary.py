"""Builds a run's report as a dictionary, using only the nodes' records, the cloud's records and prices.

Missing or invalid inputs are listed in `problems` and do not prevent a report. `page` renders the report.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stacks.functions.run_controller.ledger.documents import Entry
from trainstack.report.costs import Costs, bill, ledger_bill
from trainstack.report.text import plural
from trainstack.report.timeline import instances_of, interruptions_of, timeline_of
from trainstack.report.training import Training, training_of

Record = Mapping[str, Any]


SCHEMA_VERSION = 2
"""The supported schema version for the nodes' events and the trainer's records."""


@dataclass(frozen=True)
class Inputs:
    """What a report is made from.

    Attributes:
        events: The nodes' events from CloudWatch Logs, with trainer records nested under `record`.
        records: The embedded cloud's records of launches, ends and interruptions, or those of `records_of`.
        deployment: `deployed_stacks`, `resources_by_type`, `unsupported_resources`, `iam_denied_calls`.
        prices: `date`, `source`, `currency`, `hourly` {instance type: {`on_demand`, `spot`}} in dollars per hour.
        ledger: The ledger's entries for the run; empty: costs come from lifetimes and prices.
        about: Settings, dataset, code, weights and sample of the run, as `about.py` describes them.
        is_running: Whether the run has not ended yet.
        knows_cloud: Whether `records` contain everything that happened to the instances, as the embedded cloud's do.
        notes: Problems of reading the inputs.
    """

    events: Sequence[Record]
    records: Sequence[Record]
    deployment: Record
    prices: Record
    ledger: Sequence[Entry] = ()
    about: Record = field(default_factory=dict)
    is_running: bool = False
    knows_cloud: bool = True
    notes: Sequence[str] = ()


def build_report(inputs: Inputs) -> dict[str, Any]:
    """Return the report as JSON values."""
    problems: list[str] = list(inputs.notes)
    deployment = inputs.deployment
    events = _timed(_supported(inputs.events, problems), "event", problems)
    records = _timed(inputs.records, "record", problems)
    last_seconds = max((float(entry["unix_seconds"]) for entry in [*events, *records]), default=0.0)
    training = training_of(events)
    instances = instances_of(records)
    interruptions = interruptions_of(records, training)
    costs = ledger_bill(inputs.ledger, inputs.prices) if inputs.ledger else bill(instances, inputs.prices, last_seconds)
    problems += costs.problems
    problems += _training_problems(training, inputs.is_running)
    problems += _cloud_problems(events, records, deployment)
    problems += [] if inputs.is_running else _left_over(instances)
    problems += _loss_problems(training, interruptions) if inputs.knows_cloud else []
    report: dict[str, Any] = {
        **_deployment_keys(deployment),
        "about": dict(inputs.about),
        "instances": instances,
        "interruptions": interruptions,
        **_training_keys(training),
        "boot_steps_seconds": _boot_steps_seconds(events),
        "cost_spot_usd": costs.spot_usd,
        "cost_on_demand_usd": costs.on_demand_usd,
        "costs": costs.as_dict(),
        "resumes": training.resumes_as_dicts(),
        "run": training.facts,
        "series": {
            "train": training.train,
            "validation": training.validation,
            "checkpoints": training.checkpoints,
        },
        "timeline": timeline_of(events, instances, interruptions, last_seconds),
        "problems": problems,
    }
    report["is_running"] = inputs.is_running and not training.has_finished
    report["verdict"] = _verdict(report, training, costs)
    report["succeeded"] = training.has_finished and not problems
    return report


def _version_problem(event: Record) -> str | None:
    """Return the problem with the schema version of an event or its trainer record, or None if it is supported."""
    parts = {"event": event} | ({"record": event["record"]} if isinstance(event.get("record"), Mapping) else {})
    for name, part in parts.items():
        version = part.get("schema_version", 1)  # version 1 records do not have a schema_version
        if version != SCHEMA_VERSION:
            return f"{name} {part.get(name)} has schema_version {version}, expected {SCHEMA_VERSION}"
    return None


def _supported(events: Sequence[Record], problems: list[str]) -> list[Record]:
    """Return the events with a supported schema version."""
    found = [(event, _version_problem(event)) for event in events]
    for problem, number in Counter(problem for _, problem in found if problem).items():
        problems.append(f"{plural(number, 'event')} ignored: {problem}")
    return [event for event, problem in found if problem is None]


def _timed(entries: Sequence[Record], kind: str, problems: list[str]) -> list[Record]:
    """Return the entries that have a timestamp, oldest first."""
    timed = [entry for entry in entries if isinstance(entry.get("unix_seconds"), (int, float))]
    if len(timed) < len(entries):
        problems.append(f"{plural(len(entries) - len(timed), kind)} ignored: no unix_seconds")
    return sorted(timed, key=lambda entry: float(entry["unix_seconds"]))


def _deployment_keys(deployment: Record) -> dict[str, Any]:
    return {
        "deployed_stacks": list(deployment.get("deployed_stacks", [])),
        "resources_by_type": dict(deployment.get("resources_by_type", {})),
        "unsupported_resources": list(deployment.get("unsupported_resources", [])),
        "iam_denied_calls": list(deployment.get("iam_denied_calls", [])),
    }


def _training_keys(training: Training) -> dict[str, Any]:
    train, validation = training.train, training.validation
    speeds = [point["tokens_per_second"] for point in train if point["tokens_per_second"] is not None]
    return {
        "steps_total": training.steps_total,
        "steps_lost": training.steps_lost,
        "resumed_from_step": training.resumed_from_step,
        "train_loss_first": train[0]["loss"] if train else None,
        "train_loss_last": train[-1]["loss"] if train else None,
        "validation_loss_last": validation[-1]["loss"] if validation else None,
        "validation_loss_unigram": validation[-1]["unigram_loss"] if validation else None,
        "bits_per_byte_last": validation[-1]["bits_per_byte"] if validation else None,
        "tokens_per_second": round(statistics.median(speeds), 1) if speeds else None,
        "downtime_seconds": training.downtime_seconds,
    }


def _boot_steps_seconds(events: Sequence[Record]) -> dict[str, float]:
    """Return the median duration of each boot step across the nodes, ordered by start time."""
    steps = [e for e in events if e.get("event") == "boot_step" and isinstance(e.get("seconds"), (int, float))]
    steps.sort(key=lambda event: float(event.get("started_unix_seconds", event["unix_seconds"])))
    seconds: dict[str, list[float]] = {}
    for event in steps:
        seconds.setdefault(str(event.get("step")), []).append(float(event["seconds"]))
    return {step: round(statistics.median(values), 3) for step, values in seconds.items()}


def _training_problems(training: Training, is_running: bool) -> list[str]:
    if is_running and not training.validation:
        return []
    if not training.train:
        return ["no training steps were recorded; see the instances' console logs"]
    problems = []
    if not training.has_finished and not is_running:
        problems.append(f"the run did not finish: last step {training.last_step} of {training.steps_total}")
    if not training.validation:
        problems.append("no validation losses were recorded")
    else:
        last = training.validation[-1]
        known = last["unigram_loss"] is not None and last["loss"] is not None
        if known and not is_running and last["loss"] >= last["unigram_loss"]:
            problems.append(
                f"validation loss {last['loss']:.3f} is not below the unigram baseline ({last['unigram_loss']:.3f}): "
                "the model has not learned anything yet"
            )
    return problems


def _loss_problems(training: Training, interruptions: Sequence[Record]) -> list[str]:
    """Return a problem if steps were lost although a notice preceded every interruption."""
    if training.steps_lost and all(entry["notice_seconds"] is not None for entry in interruptions):
        return [f"{plural(training.steps_lost, 'step')} lost, although a notice preceded every interruption"]
    return []


def _left_over(instances: Sequence[Record]) -> list[str]:
    if not instances:
        return ["no instances were launched"]
    running = [entry["id"] for entry in instances if entry["ended"] is None]
    return [f"still running at the end: {', '.join(running)}"] if running else []


def _cloud_problems(events: Sequence[Record], records: Sequence[Record], deployment: Record) -> list[str]:
    problems = []
    for event in events:
        if event.get("event") == "boot_failed":
            problems.append(f"{event.get('instance_id')}: boot step {event.get('step')} failed: {event.get('message')}")
    kinds = {
        "event_refused": lambda r: f"{r.get('rule', r.get('source'))}: cannot deliver an event: {r.get('reason')}",
        "function_failed": lambda r: f"function {r.get('function')} failed: {r.get('error_message')}",
        "function_not_run": lambda r: f"function {r.get('function')} was not run: {r.get('reason')}",
    }
    problems += dict.fromkeys(kinds[record["kind"]](record) for record in records if record.get("kind") in kinds)
    denied = deployment.get("iam_denied_calls", [])
    if denied:
        problems.append(f"{plural(len(denied), 'call')} denied by IAM")
    unsupported = deployment.get("unsupported_resources", [])
    if unsupported:
        problems.append(f"resource types that are not emulated: {', '.join(map(str, unsupported))}")
    return problems


def _verdict(report: Record, training: Training, costs: Costs) -> str:
    """Return the outcome in one sentence."""
    count = len(report["interruptions"])
    losses = {0: "without interruptions", 1: "with 1 spot interruption"}.get(count, f"with {count} interruptions")
    if not training.train:
        return "No training steps were recorded."
    if report["is_running"]:
        return f"At step {training.last_step} of {training.steps_total}, {losses} so far."
    if not training.has_finished:
        return f"Training stopped at step {training.last_step} of {training.steps_total}, {losses}."
    lost = "no steps lost" if training.steps_lost == 0 else f"{plural(training.steps_lost, 'step')} lost"
    sentence = f"Trained all {training.steps_total} steps {losses}: {lost}"
    if training.resumes:
        sentence += f", {training.downtime_seconds:.0f} seconds of downtime"
    if costs.saved_share is not None and costs.saved_share > 0:
        sentence += f", {costs.saved_share:.0%} cheaper than on-demand"
    return sentence + "."
