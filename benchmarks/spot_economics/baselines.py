"""Policies for comparison: On-Demand only, the controller's list order, Uniform Progress, and eager failover.

The papers' policies can observe the capacity of every place at no cost, as in the papers' simulators. The list-order
policy sends one request per tick.
"""

from __future__ import annotations

from typing import Literal

from stacks.capacity.simulation.market import ON_DEMAND, Conditions, View
from stacks.functions.run_controller.places import Place

GANG_TIMEOUT_HOURS = 0.25
"""Default of capacity.gang_timeout_seconds."""


class _Base:
    """The conditions of the current window."""

    def start(self, places: tuple[Place, ...], conditions: Conditions, deadline_hours: float, gap_hours: float) -> None:
        """Forget earlier windows."""
        self.places, self.conditions = places, conditions
        self.deadline_hours, self.gap_hours = deadline_hours, gap_hours
        self.lost: Place | None = None

    def interrupted(self, place: Place, hours: float) -> None:
        """Record where the latest interruption occurred."""
        self.lost = place

    def is_critical(self, view: View) -> bool:
        """Return True if the slack at the end of this tick does not cover one failed restart and one On-Demand
        restart."""
        slack = self.deadline_hours - view.hours - view.work_hours
        return slack < 2.0 * self.conditions.restart_hours + self.gap_hours


class OnDemand(_Base):
    """Uses On-Demand capacity from the start."""

    def choose(self, view: View) -> Place | None:
        """Return the On-Demand place."""
        return ON_DEMAND


class ListOrder(_Base):
    """Requests one place after another in the order of the file, each for the gang timeout, with the safety net.

    This is the run controller with `capacity.choose: order`, plus a safety net, which that setting does not have.
    """

    def start(self, places: tuple[Place, ...], conditions: Conditions, deadline_hours: float, gap_hours: float) -> None:
        """Forget earlier windows."""
        super().start(places, conditions, deadline_hours, gap_hours)
        self._index, self._since = 0, 0.0

    def interrupted(self, place: Place, hours: float) -> None:
        """Start the gang timeout in the same place."""
        super().interrupted(place, hours)
        self._since = hours

    def choose(self, view: View) -> Place | None:
        """Stay, or request the next place in the list."""
        if view.current is not None:
            return view.current
        if self.is_critical(view):
            return ON_DEMAND
        if view.hours - self._since >= GANG_TIMEOUT_HOURS:
            self._index, self._since = (self._index + 1) % len(self.places), view.hours
        place = self.places[self._index]
        return place if view.request(place) else None


class UniformProgress(_Base):
    """Uniform Progress in the cheapest place with capacity (Wu et al., "Can't Be Late", NSDI 2024, section 5.2).

    Rules, with `cp` the work done, `ep(t)` the work done under uniform progress, and `d` the restart: 1. An idle run
    with cp < ep(t) switches to On-Demand capacity and stays there. 2. A run uses spot capacity whenever there is some,
    and stays until it is interrupted. 3. A run on On-Demand capacity stays there until cp >= ep(t + 2 d), and then
    until there is spot capacity. 4. An idle run whose remaining time is below the remaining work plus 2 d uses
    On-Demand capacity until its end.

    Args:
        failover: cheapest: the cheapest place first. eager: places in the region of the latest interruption last, as
            in SkyNomad's baseline UP(S) (arXiv 2601.06520, section 6).
    """

    def __init__(self, failover: Literal["cheapest", "eager"] = "cheapest") -> None:
        self._is_eager = failover == "eager"

    def start(self, places: tuple[Place, ...], conditions: Conditions, deadline_hours: float, gap_hours: float) -> None:
        """Forget earlier windows."""
        super().start(places, conditions, deadline_hours, gap_hours)
        self._is_safe = False

    def choose(self, view: View) -> Place | None:
        """Apply the rules."""
        if view.current is not None and view.current != ON_DEMAND:
            return view.current
        if self._is_safe or self.is_critical(view):
            self._is_safe = True
            return ON_DEMAND
        done = self.conditions.work_hours - view.work_hours
        if view.current == ON_DEMAND and done < self._expected(view.hours + 2.0 * self.conditions.restart_hours):
            return ON_DEMAND
        available = [place for place in self._order(view) if view.is_available(place)]
        if available:
            return available[0]
        return ON_DEMAND if view.current == ON_DEMAND or done < self._expected(view.hours) else None

    def _expected(self, hours: float) -> float:
        """Return the work done under uniform progress."""
        return hours * self.conditions.work_hours / self.deadline_hours

    def _order(self, view: View) -> list[Place]:
        region = self.lost.region if self._is_eager and self.lost is not None else None
        return sorted(self.places, key=lambda place: (place.region == region, view.usd_per_hour[place]))
