"""The report of a run as one dictionary: pure, from what nodes, cloud and price table have recorded.

Not here: how it looks (`report_html`) and where the inputs come from (`driver`). Whatever is missing or wrong becomes a
line of `problems`; a report is made in any case.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from localcloud.demo.report_costs import Costs, bill
from localcloud.demo.report_format import plural
from localcloud.demo.report_timeline import instances_of, interruptions_of, timeline_of
from localcloud.demo.report_training import Training, training_of

Record = Mapping[str, Any]


def build_report(
    events: Sequence[Record], records: Sequence[Record], deployment: Record, prices: Record
) -> dict[str, Any]:
    """Return the report.

    Args:
        events: The nodes' events as CloudWatch Logs holds them; trainer records nested under `record`.
        records: The lines of the local cloud's records.jsonl.
        deployment: `deployed_stacks`, `resources_by_type`, `unsupported_resources`, `iam_denied_calls`.
        prices: `date`, `source`, `currency`, `hourly` {instance type: {`on_demand`, `spot`}} in dollars an hour.
    """
    problems: list[str] = []
    events = _timed(events, "event", problems)
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
        "series": {"train": training.train, "validation": training.validation, "checkpoints": training.checkpoints},
        "timeline": timeline_of(events, instances, interruptions, last_seconds),
        "problems": problems,
    }
    report["verdict"] = _verdict(report, training, costs)
    report["succeeded"] = training.has_finished and not problems
    return report


def _timed(entries: Sequence[Record], kind: str, problems: list[str]) -> list[Record]:
    """Return the entries that have a time, oldest first."""
    timed = [entry for entry in entries if isinstance(entry.get("unix_seconds"), (int, float))]
    if len(timed) < len(entries):
        problems.append(f"{plural(len(entries) - len(timed), kind)} left out: no unix_seconds")
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
    """Return the median over the nodes of each boot step's seconds, in the order in which the steps began."""
    steps = [e for e in events if e.get("event") == "boot_step" and isinstance(e.get("seconds"), (int, float))]
    steps.sort(key=lambda event: float(event.get("started_unix_seconds", event["unix_seconds"])))
    seconds: dict[str, list[float]] = {}
    for event in steps:
        seconds.setdefault(str(event.get("step")), []).append(float(event["seconds"]))
    return {step: round(statistics.median(values), 3) for step, values in seconds.items()}


def _training_problems(training: Training) -> list[str]:
    if not training.train:
        return ["no training step was recorded: look at the console logs of the instances"]
    problems = []
    if not training.has_finished:
        problems.append(f"the run did not finish: last step {training.last_step} of {training.steps_total}")
    if not training.validation:
        problems.append("no validation loss was recorded")
    else:
        last = training.validation[-1]
        if last["unigram_loss"] is not None and last["loss"] >= last["unigram_loss"]:
            problems.append(
                f"validation loss {last['loss']:.3f} is not below what token frequencies alone give "
                f"({last['unigram_loss']:.3f}): the model has learned nothing yet"
            )
    return problems


def _loss_problems(training: Training, interruptions: Sequence[Record]) -> list[str]:
    """Name the steps that were lost although each interruption came with notice."""
    if training.steps_lost and all(entry["notice_seconds"] is not None for entry in interruptions):
        return [f"{plural(training.steps_lost, 'step')} trained twice although every loss of a node came with notice"]
    return []


def _cloud_problems(
    events: Sequence[Record], records: Sequence[Record], instances: Sequence[Record], deployment: Record
) -> list[str]:
    problems = []
    if not instances:
        problems.append("no instance was launched")
    running = [entry["id"] for entry in instances if entry["ended"] is None]
    if running:
        problems.append(f"still running at the end: {', '.join(running)}")
    for event in events:
        if event.get("event") == "boot_failed":
            problems.append(f"{event.get('instance_id')}: boot step {event.get('step')}: {event.get('message')}")
    kinds = {
        "event_refused": lambda r: f"{r.get('rule', r.get('source'))}: an event was not delivered: {r.get('reason')}",
        "function_failed": lambda r: f"function {r.get('function')}: {r.get('error_message')}",
        "function_not_run": lambda r: f"function {r.get('function')}: {r.get('reason')}",
    }
    said = (kinds[record["kind"]](record) for record in records if record.get("kind") in kinds)
    problems += dict.fromkeys(said)
    denied = deployment.get("iam_denied_calls", [])
    if denied:
        problems.append(f"{plural(len(denied), 'call')} denied by IAM, listed below")
    unsupported = deployment.get("unsupported_resources", [])
    if unsupported:
        problems.append(f"resources that are not emulated: {', '.join(map(str, unsupported))}")
    return problems


def _verdict(report: Record, training: Training, costs: Costs) -> str:
    """Return the outcome in one sentence."""
    count = len(report["interruptions"])
    losses = {0: "without an interruption", 1: "through a spot interruption"}.get(
        count, f"through {count} interruptions"
    )
    if not training.train:
        return "No training step was recorded."
    if not training.has_finished:
        return f"Training stopped at step {training.last_step} of {training.steps_total}, {losses}."
    lost = "no step lost" if training.steps_lost == 0 else f"{training.steps_lost} steps trained twice"
    sentence = f"Trained all {training.steps_total} steps {losses}, {lost}"
    if training.resumes:
        sentence += f", {training.downtime_seconds:.0f} seconds without training"
    if costs.saved_share is not None and costs.saved_share > 0:
        sentence += f", {costs.saved_share:.0%} cheaper than on-demand"
    return sentence + "."
