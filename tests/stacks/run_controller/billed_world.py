"""A random history of instances with its true bill, and AWS's reports about it at any time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from stacks.functions.run_controller.ledger.machines import HOUR, Market, Sighting

TYPES = {"g6.xlarge": 0.8048, "g5.xlarge": 1.006, "p5.4xlarge": 6.88}
ZONES = ("us-east-1a", "us-east-1b")
VISIBLE_SECONDS = 3600.0
"""Time for which EC2 describes a terminated instance."""
NOTICE_SECONDS = 120.0
QUEUE_SECONDS = 600.0
"""Time for which the controller's queue keeps events."""
DAY = 24 * HOUR


@dataclass(frozen=True)
class Life:
    """The true history of an instance: its times, its end, and whether its group had detached it before."""

    instance_id: str
    instance_type: str
    zone: str
    market: Market
    start: float
    end: float
    ending: str

    @property
    def is_detached(self) -> bool:
        """Whether the controller detached the instance at its notice, so that no scaling activity reports its end."""
        return self.ending == "reclaimed with notice"

    @property
    def is_reclaimed(self) -> bool:
        """Whether EC2 interrupted the instance."""
        return self.ending.startswith("reclaimed")


class World:
    """One or more days of instances and spot prices, generated from a seed."""

    def __init__(
        self, seed: int, *, days: float = 1.0, machines: int = 60, types: Sequence[str] = tuple(TYPES)
    ) -> None:
        draw = random.Random(seed)
        self.start, self.seconds = 1_790_000_000.0 + draw.random() * HOUR, days * DAY
        self.end = self.start + self.seconds
        self.prices = {(kind, zone): self._history(draw, kind) for kind in types for zone in ZONES}
        self.lives = [self._life(draw, number, types) for number in range(machines)]
        self.lost_events = {life.instance_id for life in self.lives if draw.random() < 0.1}

    def _history(self, draw: random.Random, kind: str) -> list[tuple[float, float]]:
        moment, changes = self.start - DAY, []
        while moment < self.end:
            changes.append((moment, round(TYPES[kind] * draw.uniform(0.3, 0.7), 4)))
            moment += draw.uniform(0.3, 6) * HOUR
        return changes

    def _life(self, draw: random.Random, number: int, types: Sequence[str]) -> Life:
        start = self.start + draw.random() * self.seconds * 0.95
        lifetime = draw.choice(
            (draw.uniform(5, 59), draw.uniform(60, 3599), draw.uniform(0.2, 2.5) * HOUR, self.seconds)
        )
        market: Market = "spot" if draw.random() < 0.85 else "on_demand"
        endings = ["by its owner", "by itself"]
        if market == "spot":
            endings += ["reclaimed with notice", "reclaimed with notice", "reclaimed"]
        end = min(start + lifetime, self.end - 60.0)
        ending = draw.choice(endings)
        if ending == "reclaimed with notice" and end - start < NOTICE_SECONDS:
            ending = "reclaimed"
        return Life(
            f"i-{number:017x}", draw.choice(types), draw.choice(ZONES), market, start, max(end, start + 5), ending
        )

    def price(self, life: Life, moment: float) -> float:
        """Return the price of an instance-hour that starts at `moment`."""
        if life.market != "spot":
            return TYPES[life.instance_type]
        return next(usd for since, usd in reversed(self.prices[life.instance_type, life.zone]) if since <= moment)

    def bill(self, life: Life) -> float:
        """Return AWS's charge for an instance."""
        if life.is_reclaimed and life.end - life.start < HOUR:
            return 0.0
        left, moment, usd = max(life.end - life.start, 60.0), life.start, 0.0
        while left > 0:
            usd += self.price(life, moment) * min(left, HOUR) / HOUR
            left, moment = left - HOUR, moment + HOUR
        return usd

    def described(self, now: float) -> list[Sighting]:
        """Return EC2's description. Only a termination by the owner has a time."""
        return [
            Sighting(
                life.instance_id,
                life.instance_type,
                life.zone,
                life.market,
                launched_unix_seconds=life.start,
                live_unix_seconds=now if life.end > now else None,
                gone_unix_seconds=None if life.end > now else life.end if life.ending == "by its owner" else now,
                reclaimed=life.is_reclaimed and life.end <= now,
                is_from_ec2=True,
            )
            for life in self.lives
            if life.start <= now < life.end + VISIBLE_SECONDS
        ]

    def activities(self, since: float, now: float) -> list[Sighting]:
        """Return a group's scaling activities, which do not state types, and end half a minute late."""
        launched = [
            Sighting(life.instance_id, zone=life.zone, launched_unix_seconds=life.start - 1.0)
            for life in self.lives
            if since <= life.start <= now
        ]
        ended = [
            Sighting(life.instance_id, gone_unix_seconds=life.end + 30.0)
            for life in self.lives
            if since <= life.end + 30.0 <= now and not life.is_detached
        ]
        return launched + ended

    def history(self, since: float, now: float) -> list[Sighting]:
        """Return a fleet's history, which states types and zones."""
        launched = [
            Sighting(life.instance_id, life.instance_type, life.zone, launched_unix_seconds=life.start)
            for life in self.lives
            if since <= life.start <= now
        ]
        ended = [
            Sighting(life.instance_id, gone_unix_seconds=life.end) for life in self.lives if since <= life.end <= now
        ]
        return launched + ended

    def events(self, since: float, now: float) -> list[Sighting]:
        """Return the notices and state changes that the queue delivers. Some are lost."""
        oldest = max(since, now - QUEUE_SECONDS)
        changes = [
            Sighting(life.instance_id, gone_unix_seconds=life.end)
            for life in self.lives
            if oldest < life.end <= now and life.instance_id not in self.lost_events
        ]
        notices = [
            Sighting(life.instance_id, gone_unix_seconds=life.end)
            for life in self.lives
            if life.is_detached and oldest < life.end - NOTICE_SECONDS <= now and life.end <= now
        ]
        return changes + notices
