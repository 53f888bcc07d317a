"""The results of the policies, and the requirements that the run controller's policy must meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.spot_economics.adversary import TICKS, Worst
from benchmarks.spot_economics.decision import Measured
from benchmarks.spot_economics.omniscient import Bounds

ALL_ZONES = "all zones"
ALL_REGIONS = "all regions, with copies"
MAX_RATIO = 1.10
"""Maximum mean cost of the controller in all zones together, over the least cost in hindsight."""
MAX_SECONDS = 0.1
MAX_BYTES = 64_000_000


@dataclass(frozen=True)
class Result:
    """The results of one policy in one group of zones, over all windows.

    Attributes:
        ratio: Mean cost over the mean lower bound of the least cost in hindsight.
        worst_ratio: Largest ratio of a window.
        missed: Number of windows in which the run ended after its deadline.
        avoidable: Number of these windows in which On-Demand Instances alone would have met the deadline.
        starts: Mean number of launched instances.
        transfers: Mean number of moves to another region than that of the newest checkpoint.
        transfer_usd: Mean price of these moves, which the cost includes.
    """

    policy: str
    mean_usd: float
    worst_usd: float
    ratio: float
    worst_ratio: float
    missed: int
    avoidable: int
    on_demand_hours: float
    spot_hours: float
    starts: float
    transfers: float
    transfer_usd: float


@dataclass(frozen=True)
class Group:
    """The results of all policies in one group of zones.

    Attributes:
        least: Mean of the least cost in hindsight, which never includes copies between regions.
        copies: True if a move to another region includes copies of the checkpoint and the dataset.
    """

    name: str
    least: Bounds
    results: tuple[Result, ...]
    copies: bool = False

    def of(self, policy: str) -> Result:
        """Return a policy's results."""
        return next(each for each in self.results if each.policy == policy)


@dataclass(frozen=True)
class Requirement:
    """A measured value and its limit."""

    name: str
    value: float
    limit: float

    @property
    def is_met(self) -> bool:
        """Return True if the value is at most the limit."""
        return self.value <= self.limit

    def line(self) -> str:
        """Return the requirement as a line of text."""
        verdict = "met" if self.is_met else "NOT met"
        return f"  {verdict:8}{self.name}: {self.value:.4g}, at most {self.limit:.4g}"


def requirements(groups: Sequence[Group], adversarial: Sequence[Worst], decision: Measured) -> list[Requirement]:
    """Return all requirements with their measured values."""
    found = []
    for group in groups:
        own, published = group.of("controller"), group.of("uniform progress")
        if group.name in (ALL_ZONES, ALL_REGIONS):
            found.append(Requirement(f"{group.name}: mean cost over the least in hindsight", own.ratio, MAX_RATIO))
        if group.copies:
            name = f"{group.name}: mean cost over that of eager failover"
            found.append(Requirement(name, own.mean_usd / group.of("eager failover").mean_usd, 1.0))
        elif group.name != ALL_ZONES:
            name = f"{group.name}: mean cost over that of uniform progress"
            found.append(Requirement(name, own.mean_usd / published.mean_usd, 1.0))
        found.append(Requirement(f"{group.name}: deadlines missed that On-Demand meets", own.avoidable, 0))
    for worst in adversarial:
        if worst.bound is not None:
            # A decision takes effect at the next tick, so up to three ticks cost K instead of 1.
            limit = worst.bound + worst.price_ratio * 3.0 / TICKS
            name = f"{worst.policy}, K = {worst.price_ratio:g}: adversarial ratio (bound {worst.bound:.3f} and 3 ticks)"
            found.append(Requirement(name, worst.ratio, limit))
    places = f"a decision for {decision.places} places"
    found.append(Requirement(f"{places}: slowest, in seconds", decision.slowest_seconds, MAX_SECONDS))
    found.append(Requirement(f"{places}: memory of the process, in bytes", decision.peak_bytes, MAX_BYTES))
    return found
