"""The clock thread: fires scheduled rules when they are due."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from localcloud.functions.errors import InvalidSchedule
from localcloud.functions.schedules import Cron, Rate, parse_schedule

_logger = logging.getLogger(__name__)

LONGEST_WAIT_SECONDS = 1.0
"""How late a rule that was put past this service (straight into moto) may be noticed."""


@dataclass(frozen=True)
class ScheduledRule:
    """A rule with a schedule, as it stands now."""

    arn: str
    expression: str


@dataclass
class _Entry:
    schedule: Rate | Cron | None
    expression: str
    created_seconds: float
    next_seconds: float | None


class ScheduleBook:
    """Remembers since when each rule counts and when it fires next. Pure: the caller says what time it is.

    A rule counts from when it is first seen, from a change of its expression, or from being enabled again.
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def due(self, rules: Iterable[ScheduledRule], now_seconds: float) -> list[tuple[ScheduledRule, float]]:
        """Return the enabled rules that are due, each with the time for which it was due.

        A rule that was due several times since the last call fires once.
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
        """Return how long until the next rule is due; None when none will be."""
        times = [entry.next_seconds for entry in self._entries.values() if entry.next_seconds is not None]
        return max(0.0, min(times) - now_seconds) if times else None


def _begin(rule: ScheduledRule, now_seconds: float) -> _Entry:
    try:
        schedule = parse_schedule(rule.expression)
    except InvalidSchedule as error:  # put straight into moto, which checks less
        _logger.error("%s never fires: %s", rule.arn, error)
        return _Entry(None, rule.expression, now_seconds, None)
    return _Entry(schedule, rule.expression, now_seconds, schedule.next_after(now_seconds, now_seconds))


class SteadyTime:
    """Unix time that never jumps: the wall clock at the start, plus what the monotonic clock has counted since."""

    def __init__(self) -> None:
        self._offset_seconds = time.time() - time.monotonic()

    def __call__(self) -> float:
        """Return Unix seconds."""
        return time.monotonic() + self._offset_seconds


class ScheduleClock:
    """Runs a ScheduleBook in a thread."""

    def __init__(
        self,
        rules: Callable[[], Iterable[ScheduledRule]],
        fire: Callable[[ScheduledRule, float], None],
        now: Callable[[], float] | None = None,
    ) -> None:
        """Start the thread; `fire` is called with the rule and the time it was due."""
        self._rules = rules
        self._fire = fire
        self._now = now or SteadyTime()
        self._book = ScheduleBook()
        self._changed = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="event-schedules", daemon=True)
        self._thread.start()

    def rules_changed(self) -> None:
        """Look at the rules again at once."""
        self._changed.set()

    def close(self) -> None:
        """End the thread."""
        self._closed = True
        self._changed.set()
        self._thread.join(5)

    def _run(self) -> None:
        while not self._closed:
            self._changed.clear()
            try:
                for rule, due_seconds in self._book.due(self._rules(), self._now()):
                    self._fire(rule, due_seconds)
            except Exception:  # a thread's top level: one bad rule must not stop all schedules
                _logger.exception("schedules: a round failed")
            next_seconds = self._book.seconds_to_next(self._now())
            wait_seconds = LONGEST_WAIT_SECONDS if next_seconds is None else min(next_seconds, LONGEST_WAIT_SECONDS)
            self._changed.wait(wait_seconds)
