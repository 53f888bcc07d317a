"""Compares a run's remaining work with its deadline, and determines how many On-Demand nodes to buy.

`placement.decide` makes the decision. This module derives its inputs: the remaining training time from the report of
the run's first member, the duration of a restart from earlier restarts, and the places from the prices and records.
Nodes that already run on spot capacity stay there. Missing nodes are bought on demand while the run needs them, so the
number of On-Demand nodes grows with each interruption, and becomes zero once spot capacity has replaced them.

This module imports only the standard library because it is part of the run controller's Lambda asset.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .. import placement, zone_choice
from ..placement import Task
from ..places import HOUR, Offer, Place, Record
from ..situation import ControllerState, Run, Situation
from .goals import FRESH_SECONDS, LOOK_BACK_SECONDS, Deadline, Outlook, Progress, Verdict

SMOOTHING = 0.1
"""Weight of a new measurement of the time per step."""
TOLERANCE = 0.05
"""Fraction by which the estimated work may exceed the time to the deadline before `stop` stops the run."""
PERIOD_HOURS = (zone_choice.REFUSED_SECONDS + 2.0 * zone_choice.PERIOD_SECONDS) / HOUR
"""Time from a request that AWS refuses to the next request."""
MAX_RESTART_HOURS = 2.0


def looked(situation: Situation, run: Run, state: ControllerState) -> ControllerState:
    """Return the state with the outlook at the current time, or without one if the deployment has no deadline."""
    goal = situation.settings.deadline
    if goal is None:
        return replace(state, outlook=None, started_unix_seconds=None)
    now, before = situation.now_unix_seconds, state.outlook
    deadline = (now if state.started_unix_seconds is None else state.started_unix_seconds) + goal.hours * HOUR
    report = situation.progress
    is_fresh = report is not None and now - report.unix_seconds <= FRESH_SECONDS
    outlook = Outlook(
        deadline_unix_seconds=deadline,
        work_hours=_work_hours(goal, run, report, before, is_fresh=is_fresh),
        remaining_hours=(deadline - now) / HOUR,
        step_seconds=step_seconds(report, before, run),
        restart_hours=goal.restart_hours if before is None else before.restart_hours,
        has_restarted=before is not None and before.has_restarted,
        restart_since_unix_seconds=None if before is None else before.restart_since_unix_seconds,
        leaving_since_unix_seconds=None if before is None else before.leaving_since_unix_seconds,
    )
    outlook = _restarted(situation, outlook, report)
    late = outlook.remaining_hours < outlook.work_hours + (0.0 if is_fresh else outlook.restart_hours)
    if outlook.remaining_hours <= 0.0:
        verdict: Verdict = "missed"
    else:
        verdict = "late" if late else "on_time"
    state = replace(state, outlook=replace(outlook, verdict=verdict, reason=_REASONS[verdict]))
    return _planned(situation, run, goal, state)


_REASONS = {
    "on_time": "the run can meet its deadline",
    "late": "the remaining training time exceeds the time to the deadline",
    "missed": "the deadline has passed",
}


def stop_reason(situation: Situation, state: ControllerState) -> str:
    """Return the reason to save and stop the run, or an empty string."""
    goal, outlook = situation.settings.deadline, state.outlook
    if goal is None or outlook is None or goal.on_miss != "stop":
        return ""
    allowed = outlook.remaining_hours * (1.0 + TOLERANCE)
    if outlook.remaining_hours > 0.0 and allowed >= outlook.work_hours:
        return ""
    return (
        f"the run needs {outlook.work_hours:.2f} h of training, but only {max(0.0, outlook.remaining_hours):.2f} h of "
        f"limits.deadline_hours ({goal.hours:g}) remain"
    )


def _work_hours(goal: Deadline, run: Run, report: Progress | None, before: Outlook | None, *, is_fresh: bool) -> float:
    """Return the remaining training time with all nodes. While the run trains, unsaved steps count as done."""
    if report is None:
        return goal.training_hours
    done = report.step if is_fresh else report.checkpoint_step
    seconds = step_seconds(report, before, run) or goal.training_hours * HOUR / report.steps_total
    return max(0, report.steps_total - done) * seconds / HOUR


def step_seconds(report: Progress | None, before: Outlook | None, run: Run) -> float | None:
    """Return the average time per step with all nodes. A smaller gang is slower in proportion to its size."""
    known = None if before is None else before.step_seconds
    if report is None or report.step_seconds is None:
        return known
    measured = report.step_seconds * min(1.0, report.members / run.nodes)
    return measured if known is None else known + SMOOTHING * (measured - known)


def _restarted(situation: Situation, outlook: Outlook, report: Progress | None) -> Outlook:
    """Return the outlook with the longest time from a gang's first instance to its first report, once measured."""
    now, since = situation.now_unix_seconds, outlook.restart_since_unix_seconds
    if since is None:
        is_idle = report is None or now - report.unix_seconds > LOOK_BACK_SECONDS
        return replace(outlook, restart_since_unix_seconds=now) if is_idle and situation.fleet.instances else outlook
    if not situation.fleet.instances:
        return replace(outlook, restart_since_unix_seconds=None)
    if report is None or report.unix_seconds <= since:
        return outlook
    measured = min(MAX_RESTART_HOURS, (report.unix_seconds - since + LOOK_BACK_SECONDS) / HOUR)
    longest = max(measured, outlook.restart_hours) if outlook.has_restarted else measured
    return replace(outlook, restart_hours=longest, has_restarted=True, restart_since_unix_seconds=None)


def _planned(situation: Situation, run: Run, goal: Deadline, state: ControllerState) -> ControllerState:
    """Return the state with the number of On-Demand nodes to buy and the expected cost."""
    outlook, fleet, now = state.outlook, situation.fleet, situation.now_unix_seconds
    assert outlook is not None
    target, seen = min(run.nodes, fleet.maximum), _seen(situation, state)
    is_gang = len(seen.serving) >= run.min_nodes
    task = Task(
        work_hours=outlook.work_hours * (target / min(target, len(seen.serving)) if is_gang else 1.0),
        deadline_unix_seconds=None if outlook.verdict == "missed" else outlook.deadline_unix_seconds,
        planned_share=min(1.0, goal.training_hours / goal.hours),
        restart_hours=outlook.restart_hours,
        period_hours=PERIOD_HOURS,
        choose=situation.settings.choose,
    )
    spots = spot_offers(situation, state)
    on_demand = Place(spots[0].place.region, "", spots[0].place.instance_type, "on_demand")
    offers = spots
    if goal.on_miss == "on_demand":
        usd = goal.on_demand_usd_per_hour
        offers = [*spots, Offer(on_demand, float("inf") if usd is None else usd)]
    current = on_demand if seen.bought else _current_place(situation, state, spots) if is_gang else None
    decision = placement.decide(task, offers, current, now)
    expected = decision.expected_usd * target
    state = replace(state, outlook=replace(outlook, expected_usd=expected if expected < float("inf") else None))
    missing = max(0, target - len(seen.spot))
    if goal.on_miss != "on_demand":
        return _with(state, on_demand_nodes=0)
    if outlook.is_leaving and seen.bought:
        return _leaving(situation, state, seen, target)
    if outlook.verdict == "missed":
        return _with(state, on_demand_nodes=min(fleet.on_demand, missing))  # the nodes stay, but no more are bought
    if decision.action == "on_demand":
        return _with(state, on_demand_nodes=missing, reason=decision.reason)
    if missing and is_gang and task.is_critical(now):
        return _with(state, on_demand_nodes=missing, reason="nodes are missing, and the slack does not cover a restart")
    if seen.bought and decision.place is not None:
        return _leave(situation, state, seen, decision.place, target)
    return _with(state, on_demand_nodes=missing if seen.bought else 0)


@dataclass(frozen=True)
class _Seen:
    """The instances without an interruption notice: those in service, and all existing spot and On-Demand instances."""

    serving: tuple[str, ...]
    spot: tuple[str, ...]
    bought: tuple[str, ...]


def _seen(situation: Situation, state: ControllerState) -> _Seen:
    gone, bought = situation.interrupted | set(state.excused), set(situation.fleet.bought)
    present = [name for name in situation.fleet.present() if name not in gone]
    return _Seen(
        tuple(name for name in situation.fleet.in_service() if name not in gone),
        tuple(name for name in present if name not in bought),
        tuple(name for name in present if name in bought),
    )


def _with(state: ControllerState, *, on_demand_nodes: int, reason: str = "") -> ControllerState:
    """Return the state with the given number of On-Demand nodes, which are not being replaced."""
    assert state.outlook is not None
    outlook = replace(
        state.outlook,
        on_demand_nodes=on_demand_nodes,
        reason=reason or state.outlook.reason,
        leaving_since_unix_seconds=None,
        leaving_subnet="",
    )
    return replace(state, outlook=outlook)


def _leave(situation: Situation, state: ControllerState, seen: _Seen, place: Place, target: int) -> ControllerState:
    """Request spot capacity for all nodes. The On-Demand nodes train until a full gang is in service there."""
    fleet, settings = situation.fleet, situation.settings
    missing = max(0, target - len(seen.spot))
    if len(set(seen.serving) & set(seen.spot)) >= target:  # an earlier step failed before it released the others
        return _with(state, on_demand_nodes=0, reason="spot capacity replaces the On-Demand nodes")
    subnet = zone_choice.subnet_of(settings, place)
    if seen.spot and subnet not in state.subnets:
        return _with(state, on_demand_nodes=missing, reason="the other nodes run in another zone")
    assert state.outlook is not None
    outlook = replace(
        state.outlook,
        on_demand_nodes=fleet.on_demand,
        leaving_since_unix_seconds=situation.now_unix_seconds,
        leaving_subnet=subnet,
        reason=f"requesting spot capacity{f' in {place.zone}' if place.zone else ''} to replace the On-Demand nodes",
    )
    return replace(state, outlook=outlook, subnets=(subnet,) if settings.one_subnet_at_a_time else state.subnets)


def _leaving(situation: Situation, state: ControllerState, seen: _Seen, target: int) -> ControllerState:
    """Return the state while spot capacity is requested in addition to the On-Demand nodes."""
    outlook, now = state.outlook, situation.now_unix_seconds
    assert outlook is not None and outlook.leaving_since_unix_seconds is not None
    since = outlook.leaving_since_unix_seconds
    if len(set(seen.serving) & set(seen.spot)) >= target:
        return _with(state, on_demand_nodes=0, reason="spot capacity replaces the On-Demand nodes")
    is_late = now - since >= situation.settings.gang_timeout_seconds
    if is_late or (not seen.spot and zone_choice.has_failed(situation, since)):
        state = zone_choice.refused(situation, state)
        reason = "AWS has no spot capacity to replace the On-Demand nodes"
        return _with(state, on_demand_nodes=max(0, target - len(seen.spot)), reason=reason)
    return replace(state, outlook=replace(outlook, on_demand_nodes=situation.fleet.on_demand))


def spot_offers(situation: Situation, state: ControllerState) -> list[Offer]:
    """Return the spot places, with prices and records. Subnets that one request covers are one place."""
    settings = situation.settings
    prices = situation.usd_per_hour
    goal = settings.deadline
    unknown = max(prices.values(), default=(goal.on_demand_usd_per_hour if goal is not None else None) or 1.0)
    pairs = list(zip(settings.subnets, zone_choice.spot_places(settings), strict=True))
    if not settings.one_subnet_at_a_time:
        subnet, place = pairs[0]
        lowest = min(prices.values(), default=unknown)
        return [Offer(replace(place, zone=""), lowest, state.places.get(subnet, Record()))]
    return [
        Offer(place, prices.get(subnet, unknown), state.places.get(subnet, Record()), state.scores.get(subnet))
        for subnet, place in pairs
    ]


def _current_place(situation: Situation, state: ControllerState, spots: list[Offer]) -> Place:
    """Return the place of the spot nodes."""
    settings = situation.settings
    if len(spots) == len(settings.subnets) and len(state.subnets) == 1 and state.subnets[0] in settings.subnets:
        return spots[settings.subnets.index(state.subnets[0])].place
    return spots[0].place
