"""Parses rate(...) and cron(...) schedule expressions and computes when they fire next.

Times are in Unix seconds. Cron fields are in UTC.
Source: https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-scheduled-rule-pattern.html (read 2026-11).
"""

from __future__ import annotations

import calendar
import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

_UNIT_SECONDS = {"minute": 60, "hour": 3600, "day": 86400}
_MONTH_NAMES = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_WEEKDAY_NAMES = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_MONTHS = {name: number for number, name in enumerate(_MONTH_NAMES, 1)}
_WEEKDAYS = {name: number for number, name in enumerate(_WEEKDAY_NAMES, 1)}
_YEAR_LIMIT = 2199


class InvalidSchedule(ValueError):
    """The schedule expression is invalid. The message contains the field and the violated rule."""


@dataclass(frozen=True)
class Rate:
    """Fires every `interval_seconds`, counted from the rule's creation."""

    interval_seconds: int

    def next_after(self, unix_seconds: float, created_unix_seconds: float) -> float | None:
        """Return the first time after `unix_seconds` at which the rule fires."""
        elapsed = max(0.0, unix_seconds - created_unix_seconds)
        return created_unix_seconds + (math.floor(elapsed / self.interval_seconds) + 1) * self.interval_seconds


@dataclass(frozen=True)
class Cron:
    """Fires in the minutes that match all six fields. See `parse_schedule`."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: str
    months: frozenset[int]
    weekdays: str
    years: frozenset[int]

    def next_after(self, unix_seconds: float, created_unix_seconds: float) -> float | None:
        """Return the first matching minute after `unix_seconds`, or None if there is none."""
        start = datetime.fromtimestamp(math.floor(unix_seconds / 60) * 60 + 60, UTC)
        day = start.date()
        while day.year <= max(self.years):
            if day.year not in self.years or day.month not in self.months:
                day = (day.replace(day=1) + timedelta(days=32)).replace(day=1)
                continue
            if self._matches_day(day.year, day.month, day.day):
                earliest = (start.hour, start.minute) if day == start.date() else (0, 0)
                times = ((h, m) for h in sorted(self.hours) for m in sorted(self.minutes) if (h, m) >= earliest)
                found = next(times, None)
                if found is not None:
                    return datetime(day.year, day.month, day.day, *found, tzinfo=UTC).timestamp()
            day += timedelta(days=1)
        return None

    def _matches_day(self, year: int, month: int, day: int) -> bool:
        if self.days != "?":
            return any(_day_of_month(part, year, month, day) for part in self.days.split(","))
        return any(_day_of_week(part, year, month, day) for part in self.weekdays.split(","))


def parse_schedule(expression: str) -> Rate | Cron:
    """Parse `rate(value unit)` or `cron(minutes hours day-of-month month day-of-week year)`.

    Raises:
        InvalidSchedule: The expression is invalid.
    """
    rate = re.fullmatch(r"rate\((\d+) (minute|hour|day)(s?)\)", expression)
    if rate is not None:
        value = int(rate.group(1))
        if value < 1 or (value == 1) == bool(rate.group(3)):
            raise InvalidSchedule(f"{expression}: the value must be positive, with 'minute' for 1, otherwise 'minutes'")
        return Rate(value * _UNIT_SECONDS[rate.group(2)])
    cron = re.fullmatch(r"cron\((.*)\)", expression)
    fields = cron.group(1).upper().split() if cron is not None else []
    if len(fields) != 6:
        raise InvalidSchedule(f"{expression}: must be rate(value unit) or cron() with six fields")
    minutes, hours, days, months, weekdays, years = fields
    if (days == "?") == (weekdays == "?"):
        raise InvalidSchedule(f"{expression}: exactly one of day-of-month and day-of-week must be ?")
    _check_days(expression, days, weekdays)
    return Cron(
        _numbers(expression, "minutes", minutes, 0, 59, {}),
        _numbers(expression, "hours", hours, 0, 23, {}),
        days,
        _numbers(expression, "month", months, 1, 12, _MONTHS),
        weekdays,
        _numbers(expression, "year", years, 1970, _YEAR_LIMIT, {}),
    )


def _numbers(expression: str, field: str, text: str, low: int, high: int, names: dict[str, int]) -> frozenset[int]:
    values: set[int] = set()
    for part in text.split(","):
        span, _, step_text = part.partition("/")
        first_text, dash, last_text = span.partition("-")
        try:
            step = int(step_text) if step_text else 1
            if span == "*":
                first, last = low, high
            else:
                first = names.get(first_text) or int(first_text)
                last = (names.get(last_text) or int(last_text)) if dash else (high if step_text else first)
        except ValueError as error:
            raise InvalidSchedule(f"{expression}: {field}: {part!r} is invalid") from error
        if not low <= first <= high or not low <= last <= high or step < 1:
            raise InvalidSchedule(f"{expression}: {field}: {part!r} must be from {low} to {high}")
        wrapped = range(first, last + 1, step) if first <= last else [*range(first, high + 1), *range(low, last + 1)]
        values.update(wrapped)
    return frozenset(values)


def _check_days(expression: str, days: str, weekdays: str) -> None:
    if days != "?":
        for part in days.split(","):
            if not re.fullmatch(r"L(-\d+)?W?|\d+W", part):
                _numbers(expression, "day-of-month", part, 1, 31, {})
        return
    for part in weekdays.split(","):
        special = re.fullmatch(r"(\w+?)(?:L|#([1-5]))", part)
        if special is not None and special.group(1) in {*_WEEKDAYS, *"1234567"} or part == "L":
            continue
        _numbers(expression, "day-of-week", part, 1, 7, _WEEKDAYS)


def _day_of_month(part: str, year: int, month: int, day: int) -> bool:
    last = calendar.monthrange(year, month)[1]
    special = re.fullmatch(r"(L)(?:-(\d+))?(W)?|(\d+)(W)", part)
    if special is None:
        return day in _numbers("cron", "day-of-month", part, 1, 31, {})
    wanted = last - int(special.group(2) or 0) if special.group(1) else min(int(special.group(4)), last)
    if not (special.group(3) or special.group(5)):
        return day == wanted
    return day == _nearest_workday(year, month, wanted, last)


def _nearest_workday(year: int, month: int, day: int, last: int) -> int:
    weekday = calendar.weekday(year, month, day)
    if weekday == calendar.SATURDAY:
        return day - 1 if day > 1 else day + 2
    if weekday == calendar.SUNDAY:
        return day + 1 if day < last else day - 2
    return day


def _day_of_week(part: str, year: int, month: int, day: int) -> bool:
    today = (calendar.weekday(year, month, day) + 1) % 7 + 1  # 1 is Sunday
    if part == "L":
        return today == _WEEKDAYS["SAT"]
    special = re.fullmatch(r"(\w+?)(?:(L)|#([1-5]))", part)
    if special is None:
        return today in _numbers("cron", "day-of-week", part, 1, 7, _WEEKDAYS)
    wanted = _WEEKDAYS.get(special.group(1)) or int(special.group(1))
    if special.group(2):
        return today == wanted and day + 7 > calendar.monthrange(year, month)[1]
    return today == wanted and (day - 1) // 7 + 1 == int(special.group(3))
