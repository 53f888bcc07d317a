"""Builds a run's report as a dictionary, using only the nodes' records, the cloud's records and prices.

Missing or invalid inputs are listed in `problems` and do not prevent a report. `report_html` renders the report.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from localcloud.demo.report_costs import Costs, bill
from localcloud.demo.report_format import plural
from localcloud.demo.report_timeline import instances_of, interruptions_of, timeline_of
from localcloud.demo.report_training import Training, training_of
from localcloud.demo.watch import version_problem

Record = Mapping[str, Any]


def build_report(
    events: Sequence[Record], records: Sequence[Record], deployment: Record, prices: Record
) -> dict[str, Any]:
    """Return the report.

    Args:
        events: The nodes' events from CloudWatch Logs, with trainer records nested under `record`.
        records: The lines of the embedded cloud's records.jsonl.
        deployment: `deployed_stacks`, `resources_by_type`, `unsupported_resources`, `iam_denied_calls`.
        prices: `date`, `source`, `currency`, `hourly` {instance type: {`on_demand`, `spot`}} in dollars per hour.
    """
    problems: list[str] = []
    events = _timed(_supported(events, problems), "event", problems)
    records = _timed(records, "record", problems)
    last_seconds = max((float(entry["unix_seconds"]) for entry in [*events, *records]), default=0.0)
    training = training_of(events)
    instances = instances_of(records)
    interruptions = interruptions_of(records, training)
    costs = bill(instances, prices, last_seconds)
    problems += costs.problems
    problems += _training_problems(training)
    problems += _cloud_problems(events, records, instances, deployment)
    problems += _loss_problems(training, interruptions)
    report: dict[str, Any] = {
        **_deployment_keys(deployment),
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
    report["verdict"] = _verdict(report, training, costs)
    report["succeeded"] = training.has_finished and not problems
    return report


def _supported(events: Sequence[Record], problems: list[str]) -> list[Record]:
    """Return the events with a supported schema version."""
    found = [(event, version_problem(event)) for event in events]
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


def _training_problems(training: Training) -> list[str]:
    if not training.train:
        return ["no training steps were recorded; see the instances' console logs"]
    problems = []
    if not training.has_finished:
        problems.append(f"the run did not finish: last step {training.last_step} of {training.steps_total}")
    if not training.validation:
        problems.append("no validation losses were recorded")
    else:
        last = training.validation[-1]
        if last["unigram_loss"] is not None and last["loss"] >= last["unigram_loss"]:
            problems.append(
                f"validation loss {last['loss']:.3f} is not below the unigram baseline ({last['unigram_loss']:.3f}): "
                "the model has not learned anything yet"
            )
    return problems


def _loss_problems(training: Training, interruptions: Sequence[Record]) -> list[str]:
    """Return a problem if steps were lost even though every interruption had a notice."""
    if training.steps_lost and all(entry["notice_seconds"] is not None for entry in interruptions):
        return [f"{plural(training.steps_lost, 'step')} lost even though every interruption had a notice"]
    return []


def _cloud_problems(
    events: Sequence[Record], records: Sequence[Record], instances: Sequence[Record], deployment: Record
) -> list[str]:
    problems = []
    if not instances:
        problems.append("no instances were launched")
    running = [entry["id"] for entry in instances if entry["ended"] is None]
    if running:
        problems.append(f"still running at the end: {', '.join(running)}")
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
    if not training.has_finished:
        return f"Training stopped at step {training.last_step} of {training.steps_total}, {losses}."
    lost = "no steps lost" if training.steps_lost == 0 else f"{plural(training.steps_lost, 'step')} lost"
    sentence = f"Trained all {training.steps_total} steps {losses}: {lost}"
    if training.resumes:
        sentence += f", {training.downtime_seconds:.0f} seconds of downtime"
    if costs.saved_share is not None and costs.saved_share > 0:
        sentence += f", {costs.saved_share:.0%} cheaper than on-demand"
    return sentence + "."
