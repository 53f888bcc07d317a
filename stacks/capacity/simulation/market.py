"""Replays one window with one policy, and adds up its cost.

In each tick, the policy chooses a place. A restart takes `restart_hours`, in which the instance is billed but does not
train. An interruption loses no training, because the trainer saves at the notice. On-Demand Instances are always
available. All time is billed, although AWS does not bill an instance that it interrupts in its first hour.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from stacks.capacity.simulation.windows import Window, Zone
from stacks.functions.run_controller.placement import NO_TRANSFER, Transfer
from stacks.functions.run_controller.places import Place

INSTANCE_TYPE = "p3.2xlarge"
EPSILON_HOURS = 1e-9


@dataclass(frozen=True)
class Conditions:
    """The requirements of a run, and its price on demand.

    Attributes:
        work_hours: Training time.
        deadline_hours: Time within which the run must end. If a window is shorter, its end is the deadline.
        restart_hours: Time from a launch to the first step.
        on_demand_usd_per_hour: Price of an On-Demand Instance.
        request_hours: Time that a refused request takes, for policies that cannot see capacity.
        transfer: The cost of a start in a region that does not have the newest checkpoint. The first region of a run
            has the dataset. On-Demand Instances start in the region of the newest checkpoint.
    """

    work_hours: float
    deadline_hours: float
    restart_hours: float
    on_demand_usd_per_hour: float
    request_hours: float = 1.0 / 60.0
    transfer: Transfer = NO_TRANSFER

    def deadline(self, window: Window) -> float:
        """Return the deadline of a run in a window, in hours."""
        return min(self.deadline_hours, window.ticks * window.gap_hours)


@dataclass
class View:
    """The market at one tick, as a policy sees it.

    Attributes:
        hours: Time since the start of the window.
        work_hours: Remaining training time, with the rest of a restart in progress.
        current: The place where the run is, or None.
        usd_per_hour: Price of each spot place.
        spent_hours: Time that the refused requests of this tick have taken.
        transfers: The cost of a start in each region that does not have the newest checkpoint.
    """

    hours: float
    work_hours: float
    current: Place | None
    usd_per_hour: Mapping[Place, float]
    capacity: Mapping[Place, bool]
    request_hours: float
    spent_hours: float = 0.0
    transfers: Mapping[str, Transfer] = field(default_factory=dict)

    def is_available(self, place: Place) -> bool:
        """Return True if the place has capacity. Only the papers' policies use it."""
        return self.capacity[place]

    def request(self, place: Place) -> bool:
        """Request an instance, and return True if it is granted. A refusal takes time."""
        if self.capacity[place]:
            return True
        self.spent_hours += self.request_hours
        return False


class Policy(Protocol):
    """Chooses places."""

    def start(self, places: tuple[Place, ...], conditions: Conditions, deadline_hours: float, gap_hours: float) -> None:
        """Forget earlier windows. `places` are the spot places in the order of the file; `ON_DEMAND` is the other."""

    def interrupted(self, place: Place, hours: float) -> None:
        """Note that the current place has taken its instance away."""

    def choose(self, view: View) -> Place | None:
        """Return the place for this tick, or None to wait. Another place than the current one costs a restart."""


@dataclass(frozen=True)
class Outcome:
    """The result of one replay."""

    usd: float
    end_hours: float
    met_deadline: bool
    on_demand_hours: float
    spot_hours: float
    starts: int
    transfers: int = 0
    transfer_usd: float = 0.0


ON_DEMAND = Place("", "", INSTANCE_TYPE, "on_demand")


def place_of(zone: Zone) -> Place:
    """Return the spot place of a zone."""
    return Place(zone.region, zone.name, INSTANCE_TYPE, "spot")


@dataclass
class _Run:
    """A run in progress."""

    work_hours: float
    conditions: Conditions
    current: Place | None = None
    booting_hours: float = 0.0
    usd: float = 0.0
    hours: dict[str, float] = field(default_factory=lambda: {"spot": 0.0, "on_demand": 0.0})
    starts: int = 0
    home_region: str | None = None  # the region of the newest checkpoint; None before the first start
    datasets: set[str] = field(default_factory=set)  # the regions that have the dataset
    transfers: int = 0
    transfer_usd: float = 0.0

    def move(self, place: Place | None) -> bool:
        """Change the place. Return True if an instance starts."""
        if place == self.current:
            return False
        self.current, self.booting_hours = place, self.conditions.restart_hours
        self.starts += place is not None
        if place is not None and place.region:
            self._transfer(place.region)
        return place is not None

    def _transfer(self, region: str) -> None:
        """Copy the checkpoint and the dataset to the region, if it does not have them."""
        transfer = self.transfers_to(region)
        self.booting_hours += transfer.hours
        if self.home_region not in (None, region):
            self.transfers += 1
            self.transfer_usd += transfer.first_usd
            self.usd += transfer.first_usd
        self.home_region = region
        self.datasets.add(region)

    def transfers_to(self, region: str) -> Transfer:
        """Return the cost of a start in the region."""
        transfer = self.conditions.transfer
        if transfer == NO_TRANSFER or self.home_region in (None, region):
            return NO_TRANSFER
        return replace(transfer, once_usd=0.0) if region in self.datasets else transfer

    def advance(self, hours: float, usd_per_hour: float) -> float:
        """Train until the run or the time ends, and return the time used."""
        used = min(hours, self.booting_hours + self.work_hours)
        booted = min(self.booting_hours, used)
        self.booting_hours -= booted
        self.work_hours -= used - booted
        self.usd += used * usd_per_hour
        if self.current is not None:
            self.hours[self.current.market] += used
        return used

    def outcome(self, end_hours: float, met_deadline: bool) -> Outcome:
        """Return the result of the replay."""
        return Outcome(
            self.usd,
            end_hours,
            met_deadline,
            self.hours["on_demand"],
            self.hours["spot"],
            self.starts,
            self.transfers,
            self.transfer_usd,
        )


def replay(policy: Policy, window: Window, conditions: Conditions) -> Outcome:
    """Replay a window from its start until the run ends, or until the window ends."""
    zones = {place_of(zone): zone for zone in window.zones}
    deadline = conditions.deadline(window)
    policy.start(tuple(zones), conditions, deadline, window.gap_hours)
    run = _Run(conditions.work_hours, conditions)
    regions = sorted({zone.region for zone in window.zones})
    for tick in range(window.ticks):
        hours = tick * window.gap_hours
        capacity = {place: zone.is_available[tick] for place, zone in zones.items()}
        prices = {place: zone.usd_per_hour[tick] for place, zone in zones.items()}
        if run.current is not None and not capacity.get(run.current, True):
            policy.interrupted(run.current, hours)
            run.move(None)
        booting = run.booting_hours if run.current is not None else 0.0
        transfers = {region: run.transfers_to(region) for region in regions}
        view = View(
            hours,
            run.work_hours + booting,
            run.current,
            prices,
            capacity,
            conditions.request_hours,
            transfers=transfers,
        )
        place = policy.choose(view)
        if place is not None and not capacity.get(place, True):
            raise ValueError(f"the policy chose {place.name} without capacity")
        left = window.gap_hours
        if run.move(place):
            left = max(0.0, left - view.spent_hours)
        if run.current is None:
            continue
        price = prices.get(run.current, conditions.on_demand_usd_per_hour)
        used = run.advance(left, price)
        if run.work_hours <= EPSILON_HOURS:
            end = hours + window.gap_hours - left + used
            met = end <= deadline + EPSILON_HOURS
            return run.outcome(end, met)
    return run.outcome(window.ticks * window.gap_hours, False)
