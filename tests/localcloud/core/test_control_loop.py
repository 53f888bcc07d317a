"""The control loop: rounds, wake-up, deadlines, failures and shutdown."""

from __future__ import annotations

import queue

import pytest

from localcloud.control_loop import MAX_RETRY_SECONDS, ControlLoop, retry_seconds

DEADLINE_SECONDS = 30.0


def test_failure_with_one_item_is_reported_and_the_others_are_reconciled() -> None:
    done: queue.Queue[str] = queue.Queue()
    failed: list[str] = []

    def reconcile(item: str) -> None:
        if item == "bad":
            raise ValueError
        done.put(item)

    loop = ControlLoop("test", lambda: ["bad", "good"], reconcile, lambda: None, failed=failed.append)
    loop.start()
    try:
        assert done.get(timeout=DEADLINE_SECONDS) == "good"
        assert failed == ["bad"]
        loop.wake()
        assert done.get(timeout=DEADLINE_SECONDS) == "good"
    finally:
        loop.close()
    assert loop.is_closed and failed == ["bad", "bad"]


def test_next_round_starts_at_the_deadline() -> None:
    rounds: queue.Queue[int] = queue.Queue()
    loop = ControlLoop("test", lambda: [1], rounds.put, lambda: 0.0)
    loop.start()
    try:
        assert [rounds.get(timeout=DEADLINE_SECONDS) for _ in range(3)] == [1, 1, 1]
    finally:
        loop.close()


def test_close_stops_before_the_next_item() -> None:
    done: list[int] = []

    def reconcile(item: int) -> None:
        done.append(item)
        loop._closed.set()

    loop = ControlLoop("test", lambda: [1, 2], reconcile, lambda: None)
    loop.start()
    loop.close()
    assert done in ([1], [])


@pytest.mark.parametrize(
    ("failures", "seconds"), [(1, 2.0), (2, 4.0), (5, MAX_RETRY_SECONDS), (5000, MAX_RETRY_SECONDS)]
)
def test_retry_pause_doubles_up_to_a_maximum(failures: int, seconds: float) -> None:
    assert retry_seconds(failures) == seconds
