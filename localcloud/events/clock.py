"""Fires scheduled rules when they are due."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from localcloud.control_loop import ControlLoop
from localcloud.events.schedules import Cron, InvalidSchedule, Rate, parse_schedule

_logger = logging.getLogger(__name__)

MAX_WAIT_SECONDS = 1.0
"""Maximum delay before a rule that was added directly to moto is detected."""


@dataclass(frozen=True)
class ScheduledRule:
    """A rule's current schedule."""

    arn: str
    expression: str


@dataclass
class _Entry:
    schedule: Rate | Cron | None
    expression: str
    created_seconds: float
    next_seconds: float | None


class ScheduleBook:
    """Tracks when each rule's schedule started and when the rule fires next. The caller supplies the current time.

    A schedule starts when its rule first appears, when its expression changes, or when the rule is re-enabled.
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def due(self, rules: Iterable[ScheduledRule], now_seconds: float) -> list[tuple[ScheduledRule, float]]:
        """Return the `rules` that are due, each with the time at which it was due. `rules` contains all enabled rules.

        A rule that has become due several times since the last call is returned once.
        """
        present = {rule.arn: rule for rule in rules}
        self._entries = {arn: entry for arn, entry in self._entries.items() if arn in present}
        fired = []
        for rule in present.values():
            entry = self._entries.get(rule.arn)
            if entry is None or entry.expression != rule.expression:
                self._entries[rule.arn] = _begin(rule, now_seconds)
            elif entry.schedule is not None and entry.next_seconds is not None and entry.next_seconds <= now_seconds:
                fired.append((rule, entry.next_seconds))
                entry.next_seconds = entry.schedule.next_after(now_seconds, entry.created_seconds)
        return fired

    def seconds_to_next(self, now_seconds: float) -> float | None:
        """Return the seconds until the next rule is due, or None if no rule will become due."""
        times = [entry.next_seconds for entry in self._entries.values() if entry.next_seconds is not None]
        return max(0.0, min(times) - now_seconds) if times else None


def _begin(rule: ScheduledRule, now_seconds: float) -> _Entry:
    try:
        schedule = parse_schedule(rule.expression)
    except InvalidSchedule as error:  # added directly to moto, which validates less strictly
        _logger.error("%s never fires: %s", rule.arn, error)
        return _Entry(None, rule.expression, now_seconds, None)
    return _Entry(schedule, rule.expression, now_seconds, schedule.next_after(now_seconds, now_seconds))


class SteadyTime:
    """Unix time that never jumps: the wall clock at creation plus the monotonic time elapsed since then."""

    def __init__(self) -> None:
        self._offset_seconds = time.time() - time.monotonic()

    def __call__(self) -> float:
        """Return Unix seconds."""
        return time.monotonic() + self._offset_seconds


class ScheduleClock:
    """Fires the rules in a ScheduleBook from `loop`'s thread.

    Args:
        rules: Function that returns the enabled rules that have a schedule.
        fire: Function that receives a rule and the time at which it was due.
        now: Function that returns the time in Unix seconds, in place of the clock.
    """

    def __init__(
        self,
        rules: Callable[[], Iterable[ScheduledRule]],
        fire: Callable[[ScheduledRule, float], None],
        now: Callable[[], float] | None = None,
    ) -> None:
        self._rules = rules
        self._now = now or SteadyTime()
        self.book = ScheduleBook()
        self.loop = ControlLoop("event-schedules", self._due, lambda due: fire(*due), self._seconds_to_next)
        self.loop.start()

    def _due(self) -> list[tuple[ScheduledRule, float]]:
        return self.book.due(self._rules(), self._now())

    def _seconds_to_next(self) -> float:
        seconds = self.book.seconds_to_next(self._now())
        return MAX_WAIT_SECONDS if seconds is None else min(seconds, MAX_WAIT_SECONDS)
