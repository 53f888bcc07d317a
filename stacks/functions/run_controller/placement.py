"""Decides where a run's nodes should run now: in one of its places, on demand, or nowhere yet.

The goal is to meet the deadline at the lowest expected cost. The decision follows a merit order.
Each place has an expected price per hour of training, including its restarts. Places supply training time in order of
this price until the expected time covers the remaining work. The price of the last place needed is the *marginal
price*; more expensive places are rejected. If all places together do not cover the work, On-Demand Instances are bought
now to cover the rest.

Two rules take precedence over all estimates:

- Safety net: if a run is idle or on On-Demand Instances, and its slack (time to the deadline minus the remaining work)
  does not cover two restarts, it uses On-Demand Instances until it ends. Source: Wu et al., "Can't Be Late",
  NSDI 2024, section 3.
- Pace: no On-Demand Instances are bought while the run is ahead of uniform progress. Source: the same, section 5.2.

This module imports only the standard library because it is part of the run controller's Lambda asset, and because
simulations import it unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from .places import HOUR, Offer, Place

PACE_MARGIN = 1.05
"""Factor by which the required share of training time may exceed the planned share before On-Demand nodes are bought.

Chosen on a subset of the traces that docs/verification.md describes, and evaluated on all of them.
"""

MIN_STAY_HOURS = 1.0
"""Time from the start of an attempt before its nodes may move to a cheaper place, so that nodes do not move too often.

Spot prices change a few times a day, and an instance keeps its price for an instance-hour (see `ledger/machines.py`).
"""

Choose = Literal["order", "cost", "availability"]
"""The ranking of places: as listed, by their expected price, or by their expected training time per request."""
Action = Literal["place", "on_demand", "wait"]


@dataclass(frozen=True)
class Transfer:
    """The cost of a start in a region that does not have the run's newest checkpoint.

    Only simulations of several regions set it: the run controller manages one region.

    Attributes:
        hours: Time to copy the checkpoint, during which the instance is billed.
        usd: Price of copying the checkpoint, which each move to the region costs.
        once_usd: Price of copying the dataset, or 0 if the region already has it.
    """

    hours: float = 0.0
    usd: float = 0.0
    once_usd: float = 0.0

    @property
    def first_usd(self) -> float:
        """Price of the first move to the region."""
        return self.usd + self.once_usd


NO_TRANSFER = Transfer()


@dataclass(frozen=True)
class Task:
    """The remaining part of a run.

    Attributes:
        work_hours: Training time that remains, including the rest of a restart in progress.
        deadline_unix_seconds: Time by which the run must end, or None.
        planned_share: Training time divided by the time to the deadline, at the start of the run: 0 to 1.
        restart_hours: Time from a launch to the first step.
        period_hours: Time between two decisions.
        choose: The ranking of places.
        stayed_hours: Time since the nodes started in their current place.
        transfers: The cost of a start in each region that does not have the newest checkpoint.
    """

    work_hours: float
    deadline_unix_seconds: float | None
    planned_share: float
    restart_hours: float
    period_hours: float
    choose: Choose = "cost"
    stayed_hours: float = float("inf")
    transfers: Mapping[str, Transfer] = field(default_factory=dict)

    def transfer(self, place: Place) -> Transfer:
        """Return the cost of the first start in the place's region."""
        return self.transfers.get(place.region, NO_TRANSFER)

    def remaining_hours(self, now_unix_seconds: float) -> float:
        """Return the time to the deadline; infinity without a deadline."""
        if self.deadline_unix_seconds is None:
            return float("inf")
        return (self.deadline_unix_seconds - now_unix_seconds) / HOUR

    def is_critical(self, now_unix_seconds: float, place: Place | None = None) -> bool:
        """Return True if the slack no longer covers a failed restart and a restart on On-Demand Instances.

        Args:
            now_unix_seconds: The current time.
            place: The place of the first restart, whose region may need a copy of the checkpoint first.
        """
        slack = self.remaining_hours(now_unix_seconds) - self.work_hours
        copied_hours = 0.0 if place is None else self.transfer(place).hours
        return slack < 2.0 * self.restart_hours + copied_hours + self.period_hours


@dataclass(frozen=True)
class Estimate:
    """The estimates on which a decision about one place is based.

    Attributes:
        usd_per_hour: Current price.
        usd_per_work_hour: Expected price of an hour of training, including restarts and transfers; infinity if
        lifetimes are too short.
        productive_share: Share of an instance's lifetime during which it trains.
        availability: Probability that a launch succeeds.
        lifetime_hours: Expected lifetime of an instance.
        refused: True while the latest refusal is in effect.
    """

    place: Place
    usd_per_hour: float
    usd_per_work_hour: float
    productive_share: float
    availability: float
    lifetime_hours: float
    refused: bool


@dataclass(frozen=True)
class Decision:
    """A decision, with the estimates on which it is based.

    Attributes:
        place: The place to request, to stay in, or to buy on demand. None: wait, or no place is available.
        remaining_hours: Time to the deadline; infinity without one.
        spot_share: Expected training time per hour in the acceptable spot places.
        marginal_usd_per_hour: Highest acceptable expected price of an hour of training.
        expected_usd: Expected cost from now to the end of the run.
        needs_on_demand: True if the run needs On-Demand Instances while no acceptable place has capacity.
        ranking: The estimates of all places, best first.
        reason: The cause of the decision, for logs.
        saved_usd: Expected saving of a move from the current place, after the cost of its restart, for one node.
    """

    action: Action
    place: Place | None
    work_hours: float
    remaining_hours: float
    spot_share: float
    marginal_usd_per_hour: float
    expected_usd: float
    needs_on_demand: bool
    ranking: tuple[Estimate, ...]
    reason: str
    saved_usd: float = 0.0


@dataclass(frozen=True)
class _Merit:
    """The result of the merit order. `accepted` contains the spot places that are worth their price."""

    accepted: tuple[Estimate, ...]
    spot_share: float
    marginal_usd_per_hour: float
    expected_usd: float
    needs_on_demand: bool


def decide(task: Task, offers: Sequence[Offer], current: Place | None, now_unix_seconds: float) -> Decision:
    """Return where the run's nodes should run from now on.

    Args:
        task: The remaining part of the run.
        offers: All places in the order of the deployment file, spot and on demand, with prices and records.
        current: The place where nodes run, or None.
        now_unix_seconds: The current time.
    """
    spot = [_estimate(offer, task, now_unix_seconds) for offer in offers if offer.place.market == "spot"]
    on_demand = [_estimate(offer, task, now_unix_seconds) for offer in offers if offer.place.market == "on_demand"]
    bought = min(on_demand, key=lambda each: (each.refused, each.usd_per_hour), default=None)
    merit = _merit(task, spot, bought, now_unix_seconds)
    ranking = tuple(_ranked(task, spot))

    def answer(action: Action, place: Place | None, reason: str) -> Decision:
        return Decision(
            action=action,
            place=place,
            work_hours=task.work_hours,
            remaining_hours=task.remaining_hours(now_unix_seconds),
            spot_share=merit.spot_share,
            marginal_usd_per_hour=merit.marginal_usd_per_hour,
            expected_usd=merit.expected_usd,
            needs_on_demand=bought is not None and (merit.needs_on_demand or task.is_critical(now_unix_seconds)),
            ranking=(*ranking, *on_demand),
            reason=reason,
        )

    if current is not None and current.market == "spot":
        better = _better_place(task, spot, current, now_unix_seconds)
        if better is not None:
            moved = answer("place", better[0], "a move saves more than its restart costs")
            return replace(moved, saved_usd=better[1])
        return answer("place", current, "training continues in this place")
    is_on_demand = current is not None
    if bought is not None and task.is_critical(now_unix_seconds):
        place = current if is_on_demand else bought.place
        return answer("on_demand", place, "safety net: the slack no longer covers two restarts")
    candidates = [
        each
        for each in in_request_order(merit.accepted, offers, now_unix_seconds)
        if not (bought is not None and task.is_critical(now_unix_seconds, each.place))
        and (not is_on_demand or (not each.refused and _is_worth_leaving(each, bought, task)))
    ]
    if candidates:
        return answer("place", candidates[0].place, "best acceptable place")
    if is_on_demand:
        return answer("on_demand", current, "no acceptable place; the On-Demand nodes already exist")
    if bought is not None and merit.needs_on_demand:
        return answer("on_demand", bought.place, "the expected spot time does not cover the remaining work")
    return answer("wait", None, "no acceptable place, and the expected spot time covers the remaining work")


def _estimate(offer: Offer, task: Task, now_unix_seconds: float) -> Estimate:
    offer = offer.at(now_unix_seconds)
    life = offer.record.lifetime_hours() if offer.place.market == "spot" else float("inf")
    transfer = task.transfer(offer.place)
    share = _productive_share(life, task.restart_hours + transfer.hours)
    assumed = task.planned_share if offer.place.market == "spot" else 1.0
    return Estimate(
        place=offer.place,
        usd_per_hour=offer.usd_per_hour,
        usd_per_work_hour=_usd_per_work_hour(offer.usd_per_hour, life, task, transfer),
        productive_share=share,
        availability=offer.availability(assumed),
        lifetime_hours=life,
        refused=offer.record.is_refused(now_unix_seconds),
    )


def _usd_per_work_hour(usd_per_hour: float, lifetime_hours: float, task: Task, transfer: Transfer) -> float:
    """Return the expected price of an hour of training; infinity if lifetimes are too short.

    Each lifetime includes a restart. A copy of the checkpoint serves the training of one lifetime. A copy of the
    dataset serves all remaining training, because it stays in the region.
    """
    share = _productive_share(lifetime_hours, task.restart_hours)
    trained_hours = min(lifetime_hours * share - transfer.hours, task.work_hours)
    if share <= 0.0 or (trained_hours <= 0.0 < task.work_hours):
        return float("inf")
    if transfer == NO_TRANSFER or task.work_hours <= 0.0:
        return usd_per_hour / share
    copied_usd = transfer.usd + transfer.hours * usd_per_hour
    return usd_per_hour / share + copied_usd / trained_hours + transfer.once_usd / task.work_hours


def _productive_share(lifetime_hours: float, restart_hours: float) -> float:
    """Return the share of an instance's lifetime during which it trains."""
    if lifetime_hours == float("inf"):
        return 1.0
    return max(0.0, lifetime_hours - restart_hours) / lifetime_hours


def _ranked(task: Task, spot: Iterable[Estimate]) -> list[Estimate]:
    """Return places, best first according to `task.choose`."""
    if task.choose == "order":
        return list(spot)
    if task.choose == "availability":
        return sorted(spot, key=lambda each: -each.availability * each.lifetime_hours)
    return sorted(spot, key=lambda each: each.usd_per_work_hour)


def _merit(task: Task, spot: Sequence[Estimate], bought: Estimate | None, now_unix_seconds: float) -> _Merit:
    """Let the places supply training time, best first, until the expected time covers the work."""
    limit = float("inf") if bought is None else bought.usd_per_hour
    usable = [each for each in _ranked(task, spot) if each.usd_per_work_hour < limit]
    remaining, work = task.remaining_hours(now_unix_seconds), task.work_hours
    missing_all, share, supplied, cost, marginal, count = 1.0, 0.0, 0.0, 0.0, limit, len(usable)
    for number, each in enumerate(usable, start=1):
        missing_all *= 1.0 - each.availability
        share = (1.0 - missing_all) * each.productive_share
        reached = min(work, max(supplied, share * remaining))
        cost += (reached - supplied) * each.usd_per_work_hour
        supplied = reached
        if supplied >= work and task.choose == "cost" and task.deadline_unix_seconds is not None:
            marginal, count = each.usd_per_work_hour, number
            break
    pace = max(share, min(1.0, task.planned_share * PACE_MARGIN))
    missing = work - supplied
    return _Merit(
        accepted=tuple(usable[:count]),
        spot_share=share,
        marginal_usd_per_hour=marginal,
        expected_usd=cost + (missing * limit if missing > 0.0 else 0.0),
        needs_on_demand=work > pace * remaining,
    )


def in_request_order(places: Sequence[Estimate], offers: Sequence[Offer], now_unix_seconds: float) -> list[Estimate]:
    """Return places in the order of requests. Places with a refusal in effect are last, sorted by its expiry.

    A request is free, so a place that had no capacity may be tried again when no other place is left. A place whose
    refusal has a cause in FIRM is not tried.
    """
    records = {offer.place: offer.record for offer in offers}
    asked = [each for each in places if not records[each.place].is_firm(now_unix_seconds)]
    return [each for each in asked if not each.refused] + sorted(
        (each for each in asked if each.refused),
        key=lambda each: records[each.place].refused_until_unix_seconds,
    )


def _is_worth_leaving(spot: Estimate, bought: Estimate | None, task: Task) -> bool:
    """Return True if switching from On-Demand Instances to this place, and back after its lifetime, costs less than
    staying.

    The condition is (price * life + on_demand * restart) / (life - restart) < on_demand. Source: "Can't Be Late",
    section 5.4, with the expected life instead of a known one.
    """
    if bought is None:
        return True
    life, transfer = spot.lifetime_hours, task.transfer(spot.place)
    restart = task.restart_hours + transfer.hours
    usd = spot.usd_per_hour * life + bought.usd_per_hour * task.restart_hours + transfer.first_usd
    return life > restart and usd < bought.usd_per_hour * (life - restart)


def _better_place(
    task: Task, spot: Sequence[Estimate], current: Place, now_unix_seconds: float
) -> tuple[Place, float] | None:
    """Return a place that is worth the restart of a move, even if the first request there fails, and the saving.

    The hysteresis: the saving must exceed another restart, and the nodes have stayed for `MIN_STAY_HOURS`.
    """
    own = next((each for each in spot if each.place == current), None)
    if own is None or task.choose != "cost" or task.stayed_hours < MIN_STAY_HOURS:
        return None
    slack = task.remaining_hours(now_unix_seconds) - task.work_hours
    if slack < 4.0 * task.restart_hours + task.period_hours:
        return None

    def gain_usd(other: Estimate) -> float:
        hours, transfer = min(task.work_hours, other.lifetime_hours), task.transfer(other.place)
        cost = (task.restart_hours + transfer.hours) * other.usd_per_hour + transfer.first_usd
        saved = (own.usd_per_hour - other.usd_per_hour) * hours - cost
        return other.availability * saved - (1.0 - other.availability) * 2.0 * task.restart_hours * own.usd_per_hour

    others = [each for each in spot if each.place != current and not each.refused]
    best = max(others, key=gain_usd, default=None)
    if best is None or gain_usd(best) <= task.restart_hours * own.usd_per_hour:
        return None
    return best.place, gain_usd(best)
