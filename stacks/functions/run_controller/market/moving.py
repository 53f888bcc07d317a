"""Moves the nodes of a run to a cheaper zone when the plan expects the move to save more than its restart costs.

`placement.decide` compares the places, as it does in the simulations. A gang that needs one zone moves at zero nodes:
its nodes save and terminate, and the next attempt starts in the cheaper zone. If AWS refuses that attempt, the places
are tried as after any refusal, which the decision has taken into account.

Only Auto Scaling groups move running nodes, because their terminating hook gives the nodes the time to save, and only
if all nodes are Spot Instances. This module imports only the standard library because it is part of the run
controller's Lambda asset.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .. import placement, replacement, zone_choice
from ..deadlines.goals import FRESH_SECONDS, RESTART_HOURS
from ..deadlines.planning import PERIOD_HOURS, spot_offers, step_seconds
from ..fleet_back_ends import BACK_ENDS, Backend
from ..placement import Choose, Estimate, Task
from ..places import HOUR, Place
from ..situation import Action, ControllerState, Decision, Resize, Run, Situation


@dataclass(frozen=True)
class Move:
    """A move of all nodes to another subnet, with the numbers that determined it."""

    subnet: str
    ranking: tuple[Estimate, ...]
    reason: str


def may_move(choose: Choose, backend: Backend, on_demand_base: int) -> bool:
    """Return True if a deployment's running nodes may move to a cheaper zone.

    A terminating hook gives the nodes the time to save. An On-Demand node would pay for a restart without a saving.
    """
    return choose == "cost" and BACK_ENDS[backend].has_lifecycle_hooks and on_demand_base == 0


def wanted(situation: Situation, run: Run, state: ControllerState) -> Move | None:
    """Return the move that the plan expects to pay off, or None if the nodes stay.

    Nodes do not move unless all of them train on spot capacity, without a notice, in one of the candidate subnets.
    """
    settings, fleet, now = situation.settings, situation.fleet, situation.now_unix_seconds
    target, report = min(run.nodes, fleet.maximum), situation.progress
    is_settled = state.phase == "running" and not situation.interrupted and not replacement.bought(state)
    trains = report is not None and now - report.unix_seconds <= FRESH_SECONDS and len(fleet.in_service()) == target
    if not (settings.moves and zone_choice.chooses(settings) and is_settled and trains and not fleet.on_demand):
        return None
    if len(state.subnets) != 1 or state.subnets != fleet.subnets or state.subnets[0] not in settings.subnets:
        return None
    if state.subnets[0] not in situation.usd_per_hour:  # without its price, no saving is known
        return None
    offers = [
        each for each in spot_offers(situation, state) if _subnet(situation, each.place) in situation.usd_per_hour
    ]
    current = next(each for each in offers if _subnet(situation, each.place) == state.subnets[0])
    outlook, goal, started = state.outlook, settings.deadline, state.placed_unix_seconds
    task = Task(
        work_hours=_work_hours(situation, run, state),
        deadline_unix_seconds=None if outlook is None else outlook.deadline_unix_seconds,
        planned_share=0.5 if goal is None else min(1.0, goal.training_hours / goal.hours),
        restart_hours=RESTART_HOURS if outlook is None else outlook.restart_hours,
        period_hours=PERIOD_HOURS,
        choose=settings.choose,
        stayed_hours=float("inf") if started is None else (now - started) / HOUR,
    )
    decision = placement.decide(task, offers, current.place, now)
    if decision.place is None or decision.place == current.place or decision.action != "place":
        return None
    found = next(each for each in offers if each.place == decision.place)
    reason = (
        f"moving from {current.place.zone} ({current.usd_per_hour:.4f} USD/h) to {found.place.zone} "
        f"({found.usd_per_hour:.4f} USD/h) for {task.work_hours:.1f} h of training: each node saves about "
        f"{decision.saved_usd:.4f} USD after a restart of {task.restart_hours:.2f} h"
    )
    return Move(_subnet(situation, found.place), decision.ranking, reason)


def leave(state: ControllerState, move: Move, actions: tuple[Action, ...]) -> Decision:
    """Let the nodes save and terminate. At zero nodes, the next attempt starts in the other subnet."""
    state = replace(
        state,
        phase="giving_up",
        moving_to=move.subnet,
        attempt=0,
        had_instances=False,
        since_unix_seconds=None,
        booting=(),
        choice=move.reason,
        reason=move.reason,
    )
    return Decision((*actions, Resize(0)), state, move.ranking)


def _subnet(situation: Situation, place: Place) -> str:
    return zone_choice.subnet_of(situation.settings, place)


def _work_hours(situation: Situation, run: Run, state: ControllerState) -> float:
    """Return the remaining training time with all nodes; 0 if the nodes have not reported the time of a step."""
    if state.outlook is not None:
        return state.outlook.work_hours
    report = situation.progress
    seconds = step_seconds(report, None, run)
    return 0.0 if report is None or seconds is None else max(0, report.steps_total - report.step) * seconds / HOUR
