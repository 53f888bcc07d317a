"""The run controller's decisions in the simulated market, by the functions that its Lambda function calls."""

from __future__ import annotations

import random
from dataclasses import replace

from stacks.capacity.simulation.market import ON_DEMAND, Conditions, View
from stacks.functions.run_controller.causes import Cause
from stacks.functions.run_controller.placement import Choose, Decision, Task, decide
from stacks.functions.run_controller.places import HOUR, Offer, Place, Record
from stacks.functions.run_controller.spot_schedule import Injection, decide_randomised

REQUESTS_PER_TICK = 3
"""The controller decides once a minute, so a tick of 195 s has time for three requests."""


class Controller:
    """Decides with `placement.decide`. It sees only the responses to its own requests."""

    def __init__(self, ranking: Choose = "cost") -> None:
        self._ranking: Choose = ranking

    def start(self, places: tuple[Place, ...], conditions: Conditions, deadline_hours: float, gap_hours: float) -> None:
        """Forget earlier windows."""
        self._records = {place: Record() for place in places}
        self._conditions, self._deadline_hours, self._gap_hours = conditions, deadline_hours, gap_hours
        self._started_hours = 0.0

    def interrupted(self, place: Place, hours: float) -> None:
        """Record an interruption."""
        if place in self._records:
            self._records[place] = self._records[place].interrupted(hours * HOUR)

    def choose(self, view: View) -> Place | None:
        """Decide until a request is granted, or until the rest of the tick is too short for another request."""
        current, now, asked = view.current, view.hours * HOUR, set[Place]()
        if current in self._records:
            self._records[current] = self._records[current].ran(now)
        for _ in range(REQUESTS_PER_TICK):
            place = self._decide(view, current, now).place
            if place is None or place in (current, ON_DEMAND):
                return place
            if place in asked:  # all other places are refused as well
                break
            if view.request(place):
                self._records[place] = self._records[place].launched(now)
                self._started_hours = view.hours
                return place
            asked.add(place)
            self._records[place] = self._records[place].refused(Cause.CAPACITY, now)
            current = None if current != ON_DEMAND else current
        return self._without_capacity(view, current, now)

    def _without_capacity(self, view: View, current: Place | None, now: float) -> Place | None:
        """Return where to be for the rest of a tick in which every request was refused."""
        if current == ON_DEMAND:
            return current
        return ON_DEMAND if decide(self._task(view), self._offers(view), current, now).needs_on_demand else None

    def _decide(self, view: View, current: Place | None, now: float) -> Decision:
        return decide(self._task(view), self._offers(view), current, now)

    def _task(self, view: View) -> Task:
        conditions = self._conditions
        return Task(
            work_hours=view.work_hours,
            deadline_unix_seconds=self._deadline_hours * HOUR,
            planned_share=conditions.work_hours / self._deadline_hours,
            restart_hours=conditions.restart_hours,
            period_hours=self._gap_hours,
            choose=self._ranking,
            stayed_hours=view.hours - self._started_hours,
            transfers=view.transfers,
        )

    def _offers(self, view: View) -> list[Offer]:
        spot = [Offer(place, view.usd_per_hour[place], record) for place, record in self._records.items()]
        return [*spot, Offer(ON_DEMAND, self._conditions.on_demand_usd_per_hour)]


class SpotOnly(Controller):
    """Decides with `placement.decide` for a run that buys nothing on demand."""

    def _task(self, view: View) -> Task:
        return replace(super()._task(view), deadline_unix_seconds=None)

    def _offers(self, view: View) -> list[Offer]:
        return [offer for offer in super()._offers(view) if offer.place != ON_DEMAND]


class Randomised(Controller):
    """Decides with `spot_schedule.decide_randomised`."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__()
        self._random = random.Random(seed)  # noqa: S311 - a reproducible schedule, not a secret

    def start(self, places: tuple[Place, ...], conditions: Conditions, deadline_hours: float, gap_hours: float) -> None:
        """Draw a new schedule."""
        super().start(places, conditions, deadline_hours, gap_hours)
        self._injection: Injection | None = None
        self._uniform = self._random.random()

    def _decide(self, view: View, current: Place | None, now: float) -> Decision:
        task, offers = self._task(view), self._offers(view)
        decision, self._injection = decide_randomised(task, offers, current, now, self._injection, self._uniform)
        return decision

    def _without_capacity(self, view: View, current: Place | None, now: float) -> Place | None:
        return ON_DEMAND if self._task(view).is_critical(now) else None
