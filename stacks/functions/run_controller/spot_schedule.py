"""A randomized schedule of spot and On-Demand Instances whose cost is bounded for any pattern of spot capacity.

The rule is ROSS (Bhuyan, Kodialam, Bhatia and Lakshman, arXiv 2601.14612, Algorithm 1 and Theorem 2). `W` is the
remaining work, `R` the time to the deadline, and `K` the On-Demand price divided by the spot price:

- Warm-up, while R / W is above (1 + 2 sqrt(K)) / (1 + sqrt(K)): use spot capacity. The paper also buys on demand in
  this phase, greedily or uniformly. Here the run waits, because the bound below then holds from the start of the run.
- Injection: draw the start of an interval of length d = max(W / (1 + sqrt(K)), 2 W - R) uniformly so that the interval
  is within the next W hours. Run on demand during the interval; outside of it, run only on spot capacity.
- Catch-up, after these W hours: use spot capacity until no slack remains.

Bound. Assume that restarts and requests take no time, and that a run without slack still uses spot capacity whenever it
is available. Then the cost is at most sqrt(K) times the optimum, which is the least cost in hindsight, and at most 1 +
(K - 1) (2 - R / W) times the optimum if R / W is below the warm-up's limit. Proof for W = 1: during the warm-up, the
run uses all spot capacity, and the optimum cannot use more. After the warm-up, let T be the time with spot capacity
before the deadline. The optimum buys y = max(0, 1 - T) on demand. The schedule uses all spot capacity outside of the
injection, so it buys at most max(d, y + d) = y + d. The ratio (1 + (K - 1) (y + d)) / (1 + (K - 1) y) is largest at y =
0, where it is 1 + (K - 1) d, which gives both values above. The bound holds for each draw. It does not hold if a run
without slack must stay on On-Demand Instances; `make spot-economics` prints the ratios for both cases. An idle run
without slack requests no spot capacity, because a refusal takes time.

This module imports only the standard library because it is part of the run controller's Lambda asset, and because
simulations import it unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .placement import Action, Decision, Task, decide, in_request_order
from .places import HOUR, Offer, Place


@dataclass(frozen=True)
class Injection:
    """The interval during which a run uses On-Demand Instances, drawn at the end of the warm-up.

    Attributes:
        opened_unix_seconds: Start of the phase.
        closes_unix_seconds: End of the phase.
        start_unix_seconds: Start of the interval.
        end_unix_seconds: End of the interval.
    """

    opened_unix_seconds: float
    closes_unix_seconds: float
    start_unix_seconds: float
    end_unix_seconds: float

    def covers(self, now_unix_seconds: float) -> bool:
        """Return True within the interval."""
        return self.start_unix_seconds <= now_unix_seconds < self.end_unix_seconds


def warm_up_limit(price_ratio: float) -> float:
    """Return the ratio of time to work above which the warm-up continues: (1 + 2 sqrt(K)) / (1 + sqrt(K))."""
    root = math.sqrt(price_ratio)
    return (1.0 + 2.0 * root) / (1.0 + root)


def cost_bound(price_ratio: float, time_over_work: float) -> float:
    """Return the bound on the ratio of cost to least cost in hindsight, for a ratio of time to work of at least 1."""
    if time_over_work >= warm_up_limit(price_ratio):
        return math.sqrt(price_ratio)
    return 1.0 + (price_ratio - 1.0) * (2.0 - time_over_work)


def draw(task: Task, price_ratio: float, now_unix_seconds: float, uniform: float) -> Injection:
    """Return the On-Demand interval for `uniform`, a random number with a uniform distribution from 0 to 1."""
    work, remaining = task.work_hours, task.remaining_hours(now_unix_seconds)
    hours = min(work, max(work / (1.0 + math.sqrt(price_ratio)), 2.0 * work - remaining))
    start = now_unix_seconds + uniform * (work - hours) * HOUR
    return Injection(now_unix_seconds, now_unix_seconds + work * HOUR, start, start + hours * HOUR)


def decide_randomised(
    task: Task,
    offers: Sequence[Offer],
    current: Place | None,
    now_unix_seconds: float,
    injection: Injection | None,
    uniform: float,
) -> tuple[Decision, Injection | None]:
    """Return where the run's nodes should run from now on, and the drawn interval to pass to the next call.

    Args:
        task: The remaining part of the run. It needs a deadline.
        offers: All places, including at least one On-Demand place, with prices and records.
        current: The place where nodes run, or None.
        now_unix_seconds: The current time.
        injection: The interval that an earlier call drew, or None.
        uniform: A random number with a uniform distribution from 0 to 1. The call that ends the warm-up uses it.

    Raises:
        ValueError: The task has no deadline, or no place is an On-Demand place.
    """
    on_demand = [offer for offer in offers if offer.place.market == "on_demand"]
    spot = [offer for offer in offers if offer.place.market == "spot"]
    if task.deadline_unix_seconds is None or not on_demand:
        raise ValueError("a randomized schedule needs a deadline and an On-Demand place")
    bought = min(on_demand, key=lambda each: (each.record.is_refused(now_unix_seconds), each.usd_per_hour))
    base = decide(task, offers, current, now_unix_seconds)
    if not spot:
        return replace(base, action="on_demand", place=bought.place, reason="no spot place"), injection
    price_ratio = bought.usd_per_hour / min(each.usd_per_hour for each in spot)
    if injection is None and task.remaining_hours(now_unix_seconds) <= warm_up_limit(price_ratio) * task.work_hours:
        injection = draw(task, price_ratio, now_unix_seconds, uniform)
    is_on_spot = current is not None and current.market == "spot"
    ranked = [each for each in base.ranking if each.place.market == "spot"]
    requests = [each.place for each in in_request_order(ranked, offers, now_unix_seconds)]

    def answer(action: Action, place: Place | None, reason: str) -> tuple[Decision, Injection | None]:
        return replace(base, action=action, place=place, reason=reason), injection

    if task.is_critical(now_unix_seconds) and not is_on_spot:
        if task.restart_hours == 0.0 and requests and current is not None:
            return answer("place", requests[0], "no slack, but a restart takes no time")
        return answer("on_demand", bought.place, "no slack")
    if injection is not None and injection.covers(now_unix_seconds):
        return answer("on_demand", bought.place, "injected On-Demand interval")
    if is_on_spot:
        return answer("place", current, "training continues in this place")
    if requests:
        return answer("place", requests[0], "outside of the injected interval")
    return answer("wait", None, "outside of the injected interval, and no place accepts a request")
