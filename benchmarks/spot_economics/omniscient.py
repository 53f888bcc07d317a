"""The least cost of a window in hindsight, by dynamic programming over time and remaining work.

The remaining work is a multiple of 1 / GRID of a tick. Two solutions enclose the true least cost: one rounds the work
and the restart down, and the other rounds them up. A place is used for full ticks, except for the last one, whose cost
is proportional. The run may release its instance at each tick.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stacks.capacity.simulation.market import Conditions
from stacks.capacity.simulation.windows import Window

GRID = 4
"""Steps of the remaining work per tick."""
IMPOSSIBLE = 1e9

Costs = NDArray[np.float64]


@dataclass(frozen=True)
class Bounds:
    """Bounds on the least cost in hindsight, in USD. The difference is due to rounding."""

    lower_usd: float
    upper_usd: float


def least_cost(window: Window, conditions: Conditions) -> Bounds:
    """Return bounds on the least cost that meets the deadline; IMPOSSIBLE if none does."""
    return Bounds(_solve(window, conditions, math.floor), _solve(window, conditions, math.ceil))


def _solve(window: Window, conditions: Conditions, rounded: Callable[[float], int]) -> float:
    step_hours = window.gap_hours / GRID
    work = rounded(conditions.work_hours / step_hours + (1e-9 if rounded is math.floor else -1e-9))
    restart = rounded(conditions.restart_hours / step_hours)
    ticks = int(conditions.deadline(window) / window.gap_hours + 1e-9)
    size = work + restart + 1
    share = np.minimum(np.arange(size) / GRID, 1.0)
    done = np.full(size, IMPOSSIBLE)
    done[0] = 0.0
    away = done.copy()  # least cost from here on without an instance, by remaining work
    markets = [(zone.is_available, zone.usd_per_hour) for zone in window.zones]
    markets.append(((True,) * ticks, (conditions.on_demand_usd_per_hour,) * ticks))
    inside = [done.copy() for _ in markets]
    for tick in range(ticks - 1, -1, -1):
        before = away
        away = before.copy()
        for index, (is_available, prices) in enumerate(markets):
            if not is_available[tick]:
                inside[index] = np.full(size, IMPOSSIBLE)
                continue
            after = np.minimum(inside[index], before)
            stay = np.empty(size)
            stay[GRID:] = after[: size - GRID]
            stay[:GRID] = after[0]
            stay += prices[tick] * window.gap_hours * share
            inside[index] = stay
            if restart:
                away[:-restart] = np.minimum(away[:-restart], stay[restart:])
            else:
                away = np.minimum(away, stay)
        away[0] = 0.0
    return float(away[work])
