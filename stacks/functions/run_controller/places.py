"""Places, which are pools of instances, and the run controller's record of each place.

A record estimates the probability that a launch succeeds and the lifetime of an instance. It contains only the
controller's own observations. Older observations lose weight, because capacity changes within days. This module imports
only the standard library because it is part of the run controller's Lambda asset, and because simulations import it
unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from .causes import Cause

HOUR = 3600.0
HALF_LIFE_HOURS = 24.0
"""Half-life of an observation. The traces of "Can't Be Late" (NSDI 2024, section 2) change within a day."""
LOOK_HOURS = 1.0 / 6.0
"""Longest time for which one observation of a place counts. The published traces were probed every 10 minutes."""
PRIOR_AVAILABILITY_HOURS = 6.0
"""Weight of the assumed availability, in hours of observation."""
PRIOR_LIFETIME_HOURS = 1.5
PRIOR_INTERRUPTIONS = 4.0
"""Weight of the assumed lifetime, as a number of interruptions."""
REFUSAL_HOURS: Mapping[Cause, float] = {
    Cause.CAPACITY: 0.05,  # Karpenter's cache of unavailable offerings keeps an entry for three minutes
    Cause.UNKNOWN: 0.05,
    Cause.GANG_INCOMPLETE: 0.05,
    Cause.PRICE: 0.25,
    Cause.QUOTA: 0.5,
    Cause.PERMISSION: 0.5,
    Cause.CONFIGURATION: 0.5,
}
"""Time for which a first refusal is in effect, by cause. The time doubles with each further refusal.

Karpenter's value: https://github.com/aws/karpenter-provider-aws/blob/main/pkg/cache/cache.go (2026-11).
"""
LONGEST_REFUSAL_HOURS: Mapping[Cause, float] = {
    Cause.CAPACITY: 0.5,
    Cause.UNKNOWN: 0.5,
    Cause.GANG_INCOMPLETE: 0.5,
    Cause.PRICE: 2.0,
    Cause.QUOTA: 6.0,
    Cause.PERMISSION: 6.0,
    Cause.CONFIGURATION: 6.0,
}
FIRM: frozenset[Cause] = frozenset((Cause.QUOTA, Cause.PERMISSION, Cause.CONFIGURATION))
"""Causes that do not resolve themselves. After such a refusal, a place is not tried until the refusal expires."""
MAX_SCORE = 10
"""The highest Spot placement score. Source (2026-11):
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/how-sps-works.html
"""

Market = Literal["spot", "on_demand"]


@dataclass(frozen=True, order=True)
class Place:
    """A pool of instances. `instance_type` can name several types, separated by commas, that one request covers."""

    region: str
    zone: str
    instance_type: str
    market: Market

    @property
    def name(self) -> str:
        """The place as one string, for logs and as a key."""
        return f"{self.region}/{self.zone}/{self.instance_type}/{self.market}"


@dataclass(frozen=True)
class Record:
    """The controller's observations of one place.

    Attributes:
        available_hours: Time for which a launch would have succeeded.
        unavailable_hours: Time for which it would not.
        run_hours: Total lifetime of the instances.
        interruptions: Number of interruptions.
        looked_unix_seconds: Time of the latest observation, to which the four sums above refer, or None.
        refusals: Number of consecutive refusals.
        refused_until_unix_seconds: Time until which the latest refusal is in effect.
        cause: Cause of the latest refusal, or empty.
    """

    available_hours: float = 0.0
    unavailable_hours: float = 0.0
    run_hours: float = 0.0
    interruptions: float = 0.0
    looked_unix_seconds: float | None = None
    refusals: int = 0
    refused_until_unix_seconds: float = 0.0
    cause: Cause | Literal[""] = ""

    def at(self, now_unix_seconds: float) -> Record:
        """Return the record with its sums decayed to a later time."""
        if self.looked_unix_seconds is None or now_unix_seconds <= self.looked_unix_seconds:
            return self
        share: float = 0.5 ** ((now_unix_seconds - self.looked_unix_seconds) / HOUR / HALF_LIFE_HOURS)
        return replace(
            self,
            available_hours=self.available_hours * share,
            unavailable_hours=self.unavailable_hours * share,
            run_hours=self.run_hours * share,
            interruptions=self.interruptions * share,
            looked_unix_seconds=now_unix_seconds,
        )

    def refused(self, cause: Cause, now_unix_seconds: float, shortest_hours: float = 0.0) -> Record:
        """Return the record after a refused launch.

        Args:
            cause: The cause that AWS has reported.
            now_unix_seconds: The current time.
            shortest_hours: Time that requests in all other places take, so that those places are tried first.
        """
        seen, faded = self._look(now_unix_seconds), self.at(now_unix_seconds)
        first = max(shortest_hours, REFUSAL_HOURS.get(cause, REFUSAL_HOURS[Cause.UNKNOWN]))
        longest = max(shortest_hours, LONGEST_REFUSAL_HOURS.get(cause, LONGEST_REFUSAL_HOURS[Cause.UNKNOWN]))
        hours = min(first * 2.0 ** min(self.refusals, 16), longest)
        return replace(
            faded,
            unavailable_hours=faded.unavailable_hours + seen,
            looked_unix_seconds=now_unix_seconds,
            refusals=self.refusals + 1,
            refused_until_unix_seconds=now_unix_seconds + hours * HOUR,
            cause=cause,
        )

    def launched(self, now_unix_seconds: float) -> Record:
        """Return the record after a successful launch."""
        seen, faded = self._look(now_unix_seconds), self.at(now_unix_seconds)
        return replace(
            faded,
            available_hours=faded.available_hours + seen,
            looked_unix_seconds=now_unix_seconds,
            refusals=0,
            refused_until_unix_seconds=0.0,
            cause="",
        )

    def ran(self, now_unix_seconds: float) -> Record:
        """Return the record after the place's instances have run since the latest observation."""
        if self.looked_unix_seconds is None:
            return self.launched(now_unix_seconds)
        hours, faded = max(0.0, now_unix_seconds - self.looked_unix_seconds) / HOUR, self.at(now_unix_seconds)
        return replace(
            faded,
            available_hours=faded.available_hours + hours,
            run_hours=faded.run_hours + hours,
            looked_unix_seconds=now_unix_seconds,
            refusals=0,
        )

    def interrupted(self, now_unix_seconds: float) -> Record:
        """Return the record after an interruption, which also counts as a refusal."""
        after = self.ran(now_unix_seconds).refused(Cause.CAPACITY, now_unix_seconds)
        return replace(after, interruptions=after.interruptions + 1.0)

    def availability(self, assumed: float) -> float:
        """Return the probability that a launch succeeds, as the mean of a Beta distribution.

        Args:
            assumed: The probability before any observation, which counts as `PRIOR_AVAILABILITY_HOURS`.
        """
        seen = self.available_hours + self.unavailable_hours
        return (assumed * PRIOR_AVAILABILITY_HOURS + self.available_hours) / (PRIOR_AVAILABILITY_HOURS + seen)

    def lifetime_hours(self) -> float:
        """Return the expected lifetime of an instance, for exponential lifetimes with a Gamma prior on their rate."""
        return (PRIOR_LIFETIME_HOURS * PRIOR_INTERRUPTIONS + self.run_hours) / (
            PRIOR_INTERRUPTIONS + self.interruptions
        )

    def is_refused(self, now_unix_seconds: float) -> bool:
        """Return True while the latest refusal is in effect."""
        return now_unix_seconds < self.refused_until_unix_seconds

    def is_firm(self, now_unix_seconds: float) -> bool:
        """Return True while a refusal for a cause in FIRM is in effect."""
        return self.cause in FIRM and self.is_refused(now_unix_seconds)

    def _look(self, now_unix_seconds: float) -> float:
        """Return the number of hours that an observation at this time represents."""
        if self.looked_unix_seconds is None:
            return LOOK_HOURS
        return min(LOOK_HOURS, max(0.0, now_unix_seconds - self.looked_unix_seconds) / HOUR)


@dataclass(frozen=True)
class Offer:
    """A place with its current price and its record.

    Attributes:
        usd_per_hour: Current price of one node, or the sum for all nodes; the same for all offers.
        score: Spot placement score, 1 to 10, or None. For fewer than three types, AWS always returns a low score, so
            it is not used.
    """

    place: Place
    usd_per_hour: float
    record: Record = Record()
    score: int | None = None

    def at(self, now_unix_seconds: float) -> Offer:
        """Return the offer with its record decayed to a later time."""
        return replace(self, record=self.record.at(now_unix_seconds))

    def availability(self, assumed: float) -> float:
        """Return the probability that a launch succeeds. A score replaces the assumed value."""
        return self.record.availability(assumed if self.score is None else self.score / MAX_SCORE)
