"""Derives a run's status from an observation: progress, nodes, checkpoint age, price and remaining time."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stacks.capacity.catalogue import Catalogue, Purchase
from stacks.functions.run_controller.deadlines.goals import Outlook
from stacks.functions.run_controller.spending import Spending
from trainstack.account import Node, Observation

NO_RUN = "no run; `trainstack run FILE --name RUN` starts one"
LATE_SECONDS = 60.0
"""Age above which a training run's status is reported as old. The first member writes it every 10 s."""

LATE_NOTES = {
    "late": "the run will probably miss its deadline: the remaining training time exceeds the time to the deadline",
    "missed": "the run has missed its deadline",
}


@dataclass(frozen=True)
class NodeStatus:
    """A live instance and its rank. `rank` is None if the instance is not in the newest generation."""

    instance_id: str
    instance_type: str
    zone: str
    market: str
    state: str
    age_seconds: float
    rank: int | None
    usd_per_hour: float | None


@dataclass(frozen=True)
class Status:
    """The output of `trainstack status`. None: not known yet.

    Attributes:
        phase: The run controller's phase, or `starting` before its first step for this run.
        reason: The controller's reason for its phase.
        zones: The zones that the controller has ranked, with the numbers, best first; empty with `choose: order`.
        deadline: The run's deadline, with the numbers behind the controller's decision; empty without a deadline.
        outlook: The same numbers. None without a deadline.
        cause: Why the run is not training, as in `stacks.functions.run_controller.causes`; empty if it should train.
        desired: The operator's desired state: `running` or `stopped`.
        progress: Share of the run's steps that are complete, from 0 to 1.
        seconds_left: Time for the remaining steps at the most recent speed, without pauses.
        checkpoint_step: Step of the newest durable checkpoint.
        checkpoint_age_seconds: Age of that checkpoint. None also means that an earlier generation saved it.
        usd_per_hour: Hourly cost of the live instances, from the ledger or, until it contains them, from the catalogue.
            None if a price is unknown.
        usd: What the run's instances have cost so far, from the ledger.
        limit_usd: The run's limit. None also means that there is no limit.
        status_age_seconds: Age of the first member's report.
        controller_age_seconds: Time since the controller last changed its state.
        notes: Warnings for the reader.
    """

    name: str
    run: str
    run_digest: str
    phase: str
    reason: str
    zones: str
    deadline: str
    outlook: Outlook | None
    cause: str
    desired: str
    generation: int | None
    step: int | None
    steps_total: int | None
    progress: float | None
    seconds_left: float | None
    loss: float | None
    validation_loss: float | None
    tokens_per_second: float | None
    mfu: float | None
    checkpoint_step: int | None
    checkpoint_age_seconds: float | None
    nodes_wanted: int | None
    nodes: tuple[NodeStatus, ...]
    usd_per_hour: float | None
    usd: float | None
    limit_usd: float | None
    status_age_seconds: float | None
    controller_age_seconds: float | None
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the status as JSON values."""
        return dataclasses.asdict(self)


def status_of(seen: Observation, catalogue: Catalogue, region: str, now_unix_seconds: float) -> Status:
    """Derive the status from an observation at `now_unix_seconds`."""
    run, controller, report = seen.run, seen.controller, seen.status
    digest = "" if run is None else run.digest()
    if controller is not None and controller.run_digest != digest:  # the controller has not seen this document yet
        controller = None
    notes = list(seen.problems)
    is_current = report is not None and report.run_digest == digest
    if report is not None and not is_current:
        notes.append(f"the latest report is from an earlier run document (step {report.step})")
        report = None
    phase, reason, cause = "starting", "waiting for the run controller", ""
    if controller is not None:
        phase, reason, cause = controller.phase, controller.explanation(), str(controller.cause)
    if seen.desired.state == "stopped" and phase not in ("stopped", "ended"):
        who = seen.desired.requested_by or "an operator"
        phase, reason, cause = "stopping", f"{who} stopped the run; the run controller has not reacted yet", "stopped"
    status_age = None if report is None else max(0.0, now_unix_seconds - report.unix_seconds)
    if phase == "running" and status_age is not None and status_age > LATE_SECONDS:
        notes.append(f"the first member's report is {status_age:.0f} s old: no generation is training")
    step, total = (None, None) if report is None else (report.step, report.steps_total)
    left = None
    if report is not None and step is not None and total is not None and report.step_seconds is not None:
        left = max(0, total - step) * report.step_seconds
    saved = None if report is None else report.checkpoint
    nodes = _nodes(seen, catalogue, region, now_unix_seconds)
    spending, outlook = (None, None) if controller is None else (controller.spending, controller.outlook)
    if outlook is not None and outlook.verdict != "on_time" and phase not in ("ended", "stopped", "limited"):
        notes.append(LATE_NOTES[outlook.verdict])
    return Status(
        name=seen.deployment.name,
        run="" if run is None else run.run,
        run_digest=digest,
        phase=phase if run is not None else "idle",
        reason=reason if run is not None else NO_RUN if seen.deployment.slot else "no run document",
        zones="" if controller is None else controller.choice,
        deadline="" if outlook is None else outlook.sentence(0 if run is None else run.nodes),
        outlook=outlook,
        cause=cause if run is not None else "",
        desired=seen.desired.state,
        generation=None if report is None else report.generation,
        step=step,
        steps_total=total,
        progress=min(1.0, step / total) if step is not None and total else None,
        seconds_left=left if phase == "running" else None,
        loss=None if report is None else report.loss,
        validation_loss=None if report is None else report.validation_loss,
        tokens_per_second=None if report is None else report.tokens_per_second,
        mfu=None if report is None else report.mfu,
        checkpoint_step=None if saved is None else saved.step,
        checkpoint_age_seconds=(
            None if saved is None or saved.unix_seconds is None else max(0.0, now_unix_seconds - saved.unix_seconds)
        ),
        nodes_wanted=None if run is None else run.nodes,
        nodes=nodes,
        usd_per_hour=_usd_per_hour(nodes, spending),
        usd=None if spending is None else round(spending.usd, 4),
        limit_usd=None if spending is None or not spending.limit_usd else spending.limit_usd,
        status_age_seconds=status_age,
        controller_age_seconds=(
            None if seen.controller_unix_seconds is None else max(0.0, now_unix_seconds - seen.controller_unix_seconds)
        ),
        notes=tuple(notes),
    )


def _usd_per_hour(nodes: tuple[NodeStatus, ...], spending: Spending | None) -> float | None:
    """Return the ledger's figure, or the catalogue's until the ledger contains the instances."""
    if spending is not None and (spending.usd_per_hour or not nodes):
        return round(spending.usd_per_hour, 4)
    prices = [node.usd_per_hour for node in nodes]
    return None if None in prices else round(sum(price for price in prices if price is not None), 4)


def _nodes(seen: Observation, catalogue: Catalogue, region: str, now: float) -> tuple[NodeStatus, ...]:
    ranks: Mapping[str, int] = {}
    if seen.status is not None:
        ranks = {instance_id: rank for rank, instance_id in enumerate(seen.status.members)}
    return tuple(_node(node, ranks, catalogue, region, now) for node in seen.nodes)


def _node(node: Node, ranks: Mapping[str, int], catalogue: Catalogue, region: str, now: float) -> NodeStatus:
    purchase: Purchase = "spot" if node.market == "spot" else "on_demand"
    return NodeStatus(
        instance_id=node.instance_id,
        instance_type=node.instance_type,
        zone=node.zone,
        market=node.market,
        state=node.state,
        age_seconds=max(0.0, now - node.launched_unix_seconds),
        rank=ranks.get(node.instance_id),
        usd_per_hour=catalogue.usd_per_hour(region, node.instance_type, purchase),
    )


def duration(seconds: float) -> str:
    """Return a time span with at most two units, such as `3 h 20 min`."""
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60} s" if rounded < 600 else f"{rounded // 60} min"
    if rounded < 86400:
        return f"{rounded // 3600} h {rounded % 3600 // 60} min"
    return f"{rounded // 86400} d {rounded % 86400 // 3600} h"


def lines(status: Status) -> list[str]:
    """Return the status as aligned lines of text, with a line for each node."""
    rows = [("run", f"{status.run or '-'} of {status.name}: {status.phase}"), ("reason", status.reason)]
    if status.zones:
        rows.append(("zones", status.zones))
    if status.deadline:
        rows.append(("deadline", status.deadline))
    if status.step is not None:
        percent = "" if status.progress is None else f" of {status.steps_total:,} ({status.progress:.1%})"
        left = "" if status.seconds_left is None else f", about {duration(status.seconds_left)} left"
        rows.append(("step", f"{status.step:,}{percent}{left}"))
    values = [
        ("loss", status.loss, "{:.4f}"),
        ("validation loss", status.validation_loss, "{:.4f}"),
        ("tokens/s", status.tokens_per_second, "{:,.0f}"),
        ("MFU", status.mfu, "{:.1%}"),
    ]
    rows += [(label, form.format(value)) for label, value, form in values if value is not None]
    if status.checkpoint_step is not None:
        age = status.checkpoint_age_seconds
        saved = "by an earlier generation" if age is None else f"{duration(age)} ago"
        rows.append(("durable checkpoint", f"step {status.checkpoint_step:,}, saved {saved}"))
    wanted = "" if status.nodes_wanted is None else f" of {status.nodes_wanted}"
    price = "" if status.usd_per_hour is None else f", {status.usd_per_hour:,.2f} USD/h"
    rows.append(("nodes", f"{len(status.nodes)}{wanted}{price if status.nodes else ''}"))
    if status.usd is not None:
        limit = "" if status.limit_usd is None else f" of at most {status.limit_usd:,.2f} USD"
        rows.append(("cost so far", f"{status.usd:,.2f} USD{limit} for instances"))
    for node in status.nodes:
        rank = "-" if node.rank is None else str(node.rank)
        place = f"{node.instance_type} {node.market} {node.zone}"
        rows.append(("", f"rank {rank:<3} {node.instance_id}  {place}  {node.state}, {duration(node.age_seconds)}"))
    ages = [("report", status.status_age_seconds), ("controller", status.controller_age_seconds)]
    known = [f"{label} {duration(age)} ago" for label, age in ages if age is not None]
    if known:
        rows.append(("updated", ", ".join(known)))
    rows += [("note", note) for note in status.notes]
    width = max(len(label) for label, _ in rows)
    return [f"{label:<{width}}  {text}".rstrip() for label, text in rows]
