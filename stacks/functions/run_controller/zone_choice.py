"""Chooses the subnet of each attempt, and keeps the record of each subnet's place.

With `capacity.choose: order`, attempts use the subnets in turn. Otherwise `placement.decide` ranks their places by
price or availability, with the refusals and interruptions that the controller has observed. Nodes move only between
attempts, when the fleet has no nodes. This module imports only the standard library because it is part of the run
controller's Lambda asset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from .causes import Cause, first_to_remove
from .current_cause import is_gang
from .placement import Estimate, Task, decide
from .places import HOUR, LOOK_HOURS, Offer, Place, Record
from .situation import ControllerState, Settings, Situation

RESTART_HOURS = 0.2
"""Assumed time from a launch to the first step: 12 minutes, as in the papers of the traces. Used only for ranking."""
REFUSED_SECONDS = 120.0
"""Time after which an attempt without any instance ends if AWS has reported a failed launch. Requests are free."""
PERIOD_SECONDS = 60.0
"""Period of the controller's schedule. An attempt ends in one step, and the next one starts in another."""
MAX_NAMED = 4


@dataclass(frozen=True)
class Chosen:
    """The subnets of an attempt, with the estimates that determined them. Without a choice, both are empty."""

    subnets: tuple[str, ...]
    ranking: tuple[Estimate, ...] = ()
    reason: str = ""


def chooses(settings: Settings) -> bool:
    """Return True if the controller ranks the candidate subnets."""
    has_places = len(settings.places) == len(settings.subnets) > 1
    return settings.choose != "order" and settings.one_subnet_at_a_time and has_places


def keeps_records(settings: Settings) -> bool:
    """Return True if the controller needs the records of places: to rank them, or to meet a deadline."""
    return chooses(settings) or settings.deadline is not None


def spot_places(settings: Settings) -> tuple[Place, ...]:
    """Return the spot place of each candidate subnet."""
    return settings.places or tuple(Place("", subnet, "", "spot") for subnet in settings.subnets)


def subnet_of(settings: Settings, place: Place) -> str:
    """Return the subnet of a spot place; the first one if the place covers all subnets."""
    pairs = zip(spot_places(settings), settings.subnets, strict=True)
    return next((subnet for each, subnet in pairs if each == place), settings.subnets[0])


def first_subnets(situation: Situation, state: ControllerState, *, in_turn: bool = False) -> Chosen:
    """Return the subnets for a run's first attempt.

    Args:
        in_turn: True to ignore the records, because the attempt buys only On-Demand nodes. The result is then the
            current subnet if it is a candidate.
    """
    settings, current = situation.settings, _current_subnets(situation, state)
    if chooses(settings) and not in_turn:
        return _best(situation, state)
    if not settings.one_subnet_at_a_time:
        return Chosen(settings.subnets)
    return Chosen(current if len(current) == 1 and current[0] in settings.subnets else settings.subnets[:1])


def next_subnets(situation: Situation, state: ControllerState, *, in_turn: bool = False) -> Chosen:
    """Return the subnets for the next attempt. With `in_turn`, this is the candidate after the current subnet."""
    settings, current = situation.settings, _current_subnets(situation, state)
    if (chooses(settings) and not in_turn) or not settings.one_subnet_at_a_time:
        return first_subnets(situation, state)
    if len(current) != 1 or current[0] not in settings.subnets:
        return first_subnets(situation, state, in_turn=in_turn)
    position = settings.subnets.index(current[0]) + 1
    return Chosen((settings.subnets[position % len(settings.subnets)],))


def _current_subnets(situation: Situation, state: ControllerState) -> tuple[str, ...]:
    """Return the subnets of the latest attempt. A deploy can have moved a fleet without nodes to other subnets."""
    return state.subnets or situation.fleet.subnets


def _best(situation: Situation, state: ControllerState) -> Chosen:
    """Return the subnet of the best place, or of the place whose refusal expires first if none may be tried."""
    settings, now = situation.settings, situation.now_unix_seconds
    subnet_of = dict(zip(settings.places, settings.subnets, strict=True))
    offers = [
        Offer(place, _usd_per_hour(situation, subnet), state.places.get(subnet, Record()), state.scores.get(subnet))
        for place, subnet in subnet_of.items()
    ]
    task = Task(
        work_hours=1.0,
        deadline_unix_seconds=None,
        planned_share=0.5,
        restart_hours=RESTART_HOURS,
        period_hours=settings.gang_timeout_seconds / HOUR,
        choose=settings.choose,
    )
    decision = decide(task, offers, None, now)
    place = decision.place
    if place is None:  # every refusal has a cause that only the user can resolve; a request is free
        place = min(offers, key=lambda each: each.record.refused_until_unix_seconds).place
    ranked = [each for each in decision.ranking if each.place != place]
    chosen = next(each for each in decision.ranking if each.place == place)
    named = [_text(each) for each in (chosen, *ranked[: MAX_NAMED - 1])]
    reason = f"by {settings.choose}: {'; '.join(named)}"
    return Chosen((subnet_of[place],), (chosen, *ranked), reason)


def _usd_per_hour(situation: Situation, subnet: str) -> float:
    """Return a subnet's price, or the highest known price if it is unknown, so that known prices are preferred."""
    known = situation.usd_per_hour
    return known.get(subnet, max(known.values(), default=1.0))


def _text(each: Estimate) -> str:
    refused = ", refused" if each.refused else ""
    return (
        f"{each.place.zone} {each.usd_per_hour:.4f} USD/h, {each.usd_per_work_hour:.4f} per hour of training, "
        f"launch success {each.availability:.0%}, lifetime {each.lifetime_hours:.1f} h{refused}"
    )


def observed(situation: Situation, state: ControllerState) -> ControllerState:
    """Return the state with a launch, running time, refusal or interruption added to the current place's record."""
    subnet = _recorded_subnet(situation.settings, state)
    if not subnet:
        return state
    now, fleet, record = situation.now_unix_seconds, situation.fleet, state.places.get(subnet, Record())
    members = {item.instance_id for item in fleet.instances} - set(fleet.bought)
    serves = is_gang(situation, members & set(fleet.in_service()))
    if state.in_place and situation.interrupted & members:
        return _with(state, subnet, record.interrupted(now), in_place=serves)
    if serves and not state.in_place:
        return _with(state, subnet, record.launched(now), in_place=True)
    looked = record.looked_unix_seconds or 0.0
    is_due = now - looked >= LOOK_HOURS * HOUR
    if state.in_place and (not serves or is_due):
        return _with(state, subnet, record.ran(now), in_place=serves)
    # If requests continue in the same subnets, no attempt ends, and the refusal is recorded here.
    if not chooses(situation.settings) and not members and is_due and has_failed(situation, now - LOOK_HOURS * HOUR):
        return refused(situation, state)
    return state


def is_refused(situation: Situation, since_unix_seconds: float) -> bool:
    """Return True if AWS has refused the attempt that began at the given time, so that another place can be tried."""
    settings = situation.settings
    is_urgent = settings.one_subnet_at_a_time and len(settings.subnets) > 1 and situation.fleet.on_demand > 0
    if not (chooses(settings) or is_urgent) or situation.fleet.instances:
        return False
    return has_failed(situation, since_unix_seconds)


def has_failed(situation: Situation, since_unix_seconds: float) -> bool:
    """Return True if AWS has refused a launch since the given time, and that time is long enough ago."""
    if situation.now_unix_seconds - since_unix_seconds < REFUSED_SECONDS:
        return False
    return any(failure.unix_seconds >= since_unix_seconds for failure in situation.launch_failures)


def abandoned(situation: Situation, state: ControllerState) -> ControllerState:
    """If the abandoned attempt used spot capacity, record in the state that the current place has refused it."""
    return state if situation.fleet.on_demand else refused(situation, state)


def refused(situation: Situation, state: ControllerState) -> ControllerState:
    """Return the state with a refusal of the current place."""
    subnet = _recorded_subnet(situation.settings, state)
    if not subnet:
        return state
    reported = first_to_remove(failure.message for failure in situation.launch_failures)
    cause = reported[0] if reported is not None else Cause.GANG_INCOMPLETE
    record = state.places.get(subnet, Record())
    shortest_hours = len(situation.settings.subnets) * (REFUSED_SECONDS + 2.0 * PERIOD_SECONDS) / HOUR
    return _with(state, subnet, record.refused(cause, situation.now_unix_seconds, shortest_hours), in_place=False)


def _recorded_subnet(settings: Settings, state: ControllerState) -> str:
    """Return the subnet whose record describes the current place, or an empty string if there is no record.

    If one request covers all subnets, the first one stands for all of them.
    """
    if not keeps_records(settings):
        return ""
    if not settings.one_subnet_at_a_time:
        return settings.subnets[0]
    return state.subnets[0] if len(state.subnets) == 1 else ""


def _with(state: ControllerState, subnet: str, record: Record, *, in_place: bool) -> ControllerState:
    places: Mapping[str, Record] = {**state.places, subnet: record}
    return replace(state, places=places, in_place=in_place)
