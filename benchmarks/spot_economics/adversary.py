"""Patterns of spot capacity chosen against a policy, and the ratio of its cost to the least cost in hindsight.

Restarts take no time, so the least cost is known exactly: the run uses all capacity before its deadline, up to its
work, and uses On-Demand capacity for the rest. The spot price is 1, and the On-Demand price is K.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.spot_economics.baselines import UniformProgress
from stacks.capacity.simulation.controller import Controller, Randomised
from stacks.capacity.simulation.market import Conditions, replay
from stacks.capacity.simulation.windows import Window, Zone
from stacks.functions.run_controller.places import Place
from stacks.functions.run_controller.spot_schedule import cost_bound, warm_up_limit

TICKS = 96
"""Ticks of the work."""
WORK_HOURS = 48.0
PRICE_RATIOS = (2.0, 4.0, 9.0)
DRAWS = 8
"""Draws per pattern, evenly spaced instead of random."""

Interval = tuple[float, float]


@dataclass(frozen=True)
class Worst:
    """The largest ratio of a policy over all patterns of capacity.

    Attributes:
        bound: Bound that the ratio must not exceed, or None if the policy has none.
        course: The intervals with capacity, in units of work.
    """

    policy: str
    price_ratio: float
    ratio: float
    bound: float | None
    course: tuple[Interval, ...]


class _Drawn(Randomised):
    """A randomized schedule with a chosen draw."""

    def __init__(self, uniform: float) -> None:
        super().__init__()
        self._chosen = uniform

    def start(self, places: tuple[Place, ...], conditions: Conditions, deadline_hours: float, gap_hours: float) -> None:
        """Use the chosen draw."""
        super().start(places, conditions, deadline_hours, gap_hours)
        self._uniform = self._chosen


def courses(deadline: float) -> Iterator[tuple[Interval, ...]]:
    """Yield patterns of capacity for a unit of work and a deadline, as intervals with capacity.

    The slack is the deadline minus the work. Capacity that starts when no slack remains is the worst case for a policy
    that waits, and capacity that ends early is the worst case for a policy that buys early. With two intervals that
    together contain the work, a schedule with an injection waits unnecessarily before the second one.
    """
    slack = deadline - 1.0
    yield ()
    yield ((0.0, deadline),)
    for share in (0.25, 0.5, 0.75, 1.0):
        yield ((slack * share + 0.02, deadline),)
        yield ((0.0, share),)
        yield ((0.0, share / 2), (deadline - share / 2, deadline))
        yield ((0.5 - share / 4, 0.5 + share / 4), (deadline - 1.0 + share / 2, deadline))
    generator = random.Random(25)  # noqa: S311 - reproducible patterns, not a secret
    for _ in range(8):
        points = sorted(generator.uniform(0.0, deadline) for _ in range(2 * generator.randint(1, 8)))
        yield tuple(zip(points[::2], points[1::2], strict=True))


def window_of(course: Sequence[Interval], deadline: float) -> Window:
    """Return a window of one zone with the pattern's capacity and a price of 1."""
    ticks = round(deadline * TICKS)
    available = tuple(any(start <= (tick + 0.5) / TICKS < end for start, end in course) for tick in range(ticks))
    return Window("adversary", WORK_HOURS / TICKS, (Zone("xx-test-1a", "xx-test-1", available, (1.0,) * ticks),))


def least_cost(window: Window, price_ratio: float) -> float:
    """Return the least cost in hindsight, without restarts."""
    with_capacity = min(WORK_HOURS, sum(window.zones[0].is_available) * window.gap_hours)
    return with_capacity + price_ratio * (WORK_HOURS - with_capacity)


def worst_ratios(price_ratio: float) -> list[Worst]:
    """Return the largest ratio of each policy, with a deadline at the limit of the schedule's warm-up."""
    deadline = round(warm_up_limit(price_ratio) * TICKS) / TICKS
    tried = [(course, window_of(course, deadline)) for course in courses(deadline)]
    conditions = Conditions(WORK_HOURS, deadline * WORK_HOURS, 0.0, price_ratio, request_hours=0.0)
    committed = replace(conditions, restart_hours=1e-4)
    draws = [_Drawn((number + 0.5) / DRAWS) for number in range(DRAWS)]
    bound = cost_bound(price_ratio, deadline)

    def worst(
        name: str, policies: Sequence[Controller | UniformProgress], given: Conditions, limit: float | None
    ) -> Worst:
        found = []
        for course, window in tried:
            mean = sum(replay(policy, window, given).usd for policy in policies) / len(policies)
            found.append((mean / least_cost(window, price_ratio), course))
        ratio, course = max(found)
        return Worst(name, price_ratio, ratio, limit, course)

    return [
        worst("randomized", draws, conditions, bound),
        worst("randomized, stays on demand", draws, committed, None),
        worst("uniform progress", [UniformProgress()], committed, None),
        worst("controller", [Controller()], committed, None),
    ]
