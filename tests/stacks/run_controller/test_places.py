"""The record of a place: refusal times by cause, availability, lifetime, and the decay of observations."""

from __future__ import annotations

import pytest

from stacks.functions.run_controller.causes import Cause
from stacks.functions.run_controller.places import HOUR, Offer, Place, Record

NOW = 1_000_000.0
PLACE = Place("us-east-1", "us-east-1a", "p3.2xlarge", "spot")


def hours_refused(record: Record, now: float) -> float:
    return (record.refused_until_unix_seconds - now) / HOUR


def test_refusal_doubles_up_to_the_longest() -> None:
    record, found = Record(), []
    for _ in range(6):
        record = record.refused(Cause.CAPACITY, NOW)
        found.append(hours_refused(record, NOW))
    assert found == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.5, 0.5])  # the first is Karpenter's three minutes


def test_refusal_lasts_until_the_other_places_have_been_tried() -> None:
    first = Record().refused(Cause.CAPACITY, NOW, shortest_hours=0.3)
    assert hours_refused(first, NOW) == pytest.approx(0.3)
    assert hours_refused(first.refused(Cause.CAPACITY, NOW, shortest_hours=0.3), NOW) == pytest.approx(0.5)
    assert hours_refused(first.refused(Cause.CAPACITY, NOW, shortest_hours=0.7), NOW) == pytest.approx(0.7)


def test_many_refusals_do_not_overflow() -> None:
    record = Record(refusals=100_000)
    assert hours_refused(record.refused(Cause.QUOTA, NOW), NOW) == pytest.approx(6.0)


@pytest.mark.parametrize(("cause", "hours", "is_firm"), [(Cause.CAPACITY, 0.05, False), (Cause.QUOTA, 0.5, True)])
def test_cause_decides_how_long_and_how_firm_a_refusal_is(cause: Cause, hours: float, is_firm: bool) -> None:
    record = Record().refused(cause, NOW)
    assert hours_refused(record, NOW) == pytest.approx(hours)
    assert record.is_firm(NOW) is is_firm
    assert not record.is_firm(NOW + hours * HOUR)


def test_every_cause_of_too_few_nodes_has_a_duration() -> None:
    for cause in Cause:
        assert Record().refused(cause, NOW).is_refused(NOW)


def test_launch_ends_a_refusal() -> None:
    record = Record().refused(Cause.QUOTA, NOW).refused(Cause.QUOTA, NOW + 60.0).launched(NOW + 120.0)
    assert (record.refusals, record.is_refused(NOW + 120.0), record.cause) == (0, False, "")


def test_availability_is_the_mean_of_a_beta_distribution() -> None:
    assert Record().availability(0.8) == pytest.approx(0.8)
    # The first observation counts for 10 minutes: (0.8 * 6 + 1/6) / (6 + 1/6).
    assert Record().launched(NOW).availability(0.8) == pytest.approx((4.8 + 1 / 6) / (6 + 1 / 6))
    refused = Record().refused(Cause.CAPACITY, NOW)
    assert refused.availability(0.8) == pytest.approx(4.8 / (6 + 1 / 6))


def test_looks_in_quick_succession_count_only_the_time_between_them() -> None:
    record = Record().refused(Cause.CAPACITY, NOW)
    for number in range(1, 11):
        record = record.refused(Cause.CAPACITY, NOW + number * 60.0)
    assert record.unavailable_hours == pytest.approx(1 / 6 + 10 / 60, rel=0.01)


def test_score_replaces_the_assumed_availability() -> None:
    assert Offer(PLACE, 1.0, score=3).availability(0.8) == pytest.approx(0.3)


def test_lifetime_counts_run_time_and_interruptions() -> None:
    assert Record().lifetime_hours() == pytest.approx(1.5)
    lived = Record().launched(NOW).ran(NOW + 60.0).interrupted(NOW + 120.0)
    assert lived.interruptions == 1.0
    assert lived.lifetime_hours() == pytest.approx((1.5 * 4 + 2 / 60) / 5, rel=1e-3)
    assert lived.is_refused(NOW + 120.0)


def test_observations_count_half_after_a_day() -> None:
    record = Record(
        available_hours=2.0, unavailable_hours=4.0, run_hours=6.0, interruptions=8.0, looked_unix_seconds=NOW
    )
    faded = record.at(NOW + 24 * HOUR)
    assert faded.available_hours == pytest.approx(1.0)
    assert faded.unavailable_hours == pytest.approx(2.0)
    assert faded.run_hours == pytest.approx(3.0)
    assert faded.interruptions == pytest.approx(4.0)
    assert record.at(NOW - HOUR) == record


def test_name_identifies_a_place() -> None:
    assert PLACE.name == "us-east-1/us-east-1a/p3.2xlarge/spot"
