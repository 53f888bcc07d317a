"""Schedule expressions, the schedule book, and the clock that fires schedules."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localcloud.events.clock import ScheduleBook, ScheduleClock, ScheduledRule
from localcloud.events.schedules import InvalidSchedule, Rate, parse_schedule

RULE = ScheduledRule("arn:rule/minute", "rate(1 minute)")


def unix(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("expression", "now", "expected"),
    [
        ("cron(0 10 * * ? *)", "2026-03-01T10:00:00", "2026-03-02T10:00:00"),
        ("cron(0 10 * * ? *)", "2026-03-01T09:59:59", "2026-03-01T10:00:00"),
        ("cron(15 12 * * ? *)", "2026-03-01T00:00:00", "2026-03-01T12:15:00"),
        ("cron(0 18 ? * MON-FRI *)", "2026-11-27T18:00:00", "2026-11-30T18:00:00"),  # a Friday
        ("cron(0 8 1 * ? *)", "2026-01-15T00:00:00", "2026-02-01T08:00:00"),
        ("cron(0/15 * * * ? *)", "2026-01-01T00:16:00", "2026-01-01T00:30:00"),
        ("cron(0/5 8-17 ? * MON-FRI *)", "2026-11-27T17:55:00", "2026-11-30T08:00:00"),
        ("cron(0 9 ? * 2#1 *)", "2026-11-03T00:00:00", "2026-12-07T09:00:00"),  # the first Monday
        ("cron(0 9 ? * 6L *)", "2026-11-01T00:00:00", "2026-11-27T09:00:00"),  # the last Friday
        ("cron(0 0 L * ? *)", "2028-02-01T00:00:00", "2028-02-29T00:00:00"),
        ("cron(0 0 L-2 * ? *)", "2026-11-01T00:00:00", "2026-11-28T00:00:00"),
        ("cron(0 0 3W * ? *)", "2026-10-01T00:00:00", "2026-10-02T00:00:00"),  # the 3rd is a Saturday
        ("cron(0 0 1W * ? *)", "2026-07-31T12:00:00", "2026-08-03T00:00:00"),  # the 1st is a Saturday
        ("cron(30 6 29 2 ? *)", "2026-01-01T00:00:00", "2028-02-29T06:30:00"),
        ("cron(0 22 ? * SUN,WED *)", "2026-11-27T00:00:00", "2026-11-29T22:00:00"),
        ("cron(0 0 1 JAN ? 2030)", "2026-01-01T00:00:00", "2030-01-01T00:00:00"),
    ],
)
def test_next_time_of_a_cron_expression(expression: str, now: str, expected: str) -> None:
    found = parse_schedule(expression).next_after(unix(now), 0.0)
    assert found == unix(expected)


def test_cron_expression_of_past_years_never_fires() -> None:
    assert parse_schedule("cron(0 0 1 1 ? 2020)").next_after(unix("2026-01-01T00:00:00"), 0.0) is None


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("rate(0 minutes)", "positive"),
        ("rate(1 minutes)", "'minute' for 1"),
        ("rate(2 minute)", "'minute' for 1"),
        ("rate(5 seconds)", "must be rate"),
        ("every minute", "must be rate"),
        ("cron(* * * * *)", "six fields"),
        ("cron(0 0 1 * 2 *)", "exactly one of"),
        ("cron(0 0 ? * ? *)", "exactly one of"),
        ("cron(60 0 * * ? *)", "minutes: '60' must be from 0 to 59"),
        ("cron(0 0 * FOO ? *)", "month: 'FOO' is invalid"),
        ("cron(0 0 ? * 8 *)", "day-of-week"),
        ("cron(0 0 0 * ? *)", "day-of-month"),
    ],
)
def test_invalid_expression_is_refused(expression: str, message: str) -> None:
    with pytest.raises(InvalidSchedule, match=message):
        parse_schedule(expression)


@given(st.integers(1, 90), st.sampled_from(["minutes", "hours", "days"]), st.floats(0, 1e9), st.floats(0, 1e7))
def test_rate_fires_at_multiples_of_its_interval(value: int, unit: str, created: float, elapsed: float) -> None:
    rate = Rate(value * {"minutes": 60, "hours": 3600, "days": 86400}[unit])
    following = rate.next_after(created + elapsed, created)
    assert following is not None
    assert created + elapsed < following <= created + elapsed + rate.interval_seconds + 1e-3
    assert (
        abs((following - created) / rate.interval_seconds - round((following - created) / rate.interval_seconds)) < 1e-6
    )


def test_schedule_starts_when_its_rule_is_first_seen() -> None:
    book = ScheduleBook()
    assert book.due([RULE], 1000.0) == []
    assert book.seconds_to_next(1000.0) == 60.0
    assert book.due([RULE], 1059.9) == []
    assert book.due([RULE], 1060.0) == [(RULE, 1060.0)]
    assert book.due([RULE], 1060.1) == []
    assert book.seconds_to_next(1060.1) == pytest.approx(59.9)


def test_missed_times_fire_once() -> None:
    book = ScheduleBook()
    book.due([RULE], 0.0)
    assert book.due([RULE], 1000.0) == [(RULE, 60.0)]
    assert book.seconds_to_next(1000.0) == 20.0


def test_schedule_restarts_after_its_rule_was_disabled() -> None:
    book = ScheduleBook()
    book.due([RULE], 0.0)
    book.due([], 30.0)
    assert book.seconds_to_next(30.0) is None
    book.due([RULE], 40.0)
    assert book.due([RULE], 60.0) == []
    assert book.due([RULE], 100.0) == [(RULE, 100.0)]


def test_schedule_restarts_with_a_changed_expression_and_invalid_one_never_fires() -> None:
    book = ScheduleBook()
    book.due([RULE], 0.0)
    changed = ScheduledRule(RULE.arn, "rate(2 minutes)")
    assert book.due([changed], 60.0) == []
    assert book.due([changed], 180.0) == [(changed, 180.0)]
    assert book.due([ScheduledRule("arn:bad", "rate(1 second)"), changed], 181.0) == []


def test_clock_fires_due_rules() -> None:
    now = [1000.0]
    fired: list[float] = []
    has_fired = threading.Event()

    def fire(rule: ScheduledRule, due_seconds: float) -> None:
        fired.append(due_seconds)
        has_fired.set()

    seen = threading.Event()

    def rules() -> list[ScheduledRule]:
        seen.set()
        return [RULE]

    clock = ScheduleClock(rules, fire, lambda: now[0])
    try:
        assert seen.wait(10)
        seen.clear()
        clock.loop.wake()
        assert seen.wait(10) and fired == []
        now[0] = 1060.5
        clock.loop.wake()
        assert has_fired.wait(10)
        assert fired == [1060.0]
    finally:
        clock.loop.close()
