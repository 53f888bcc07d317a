from __future__ import annotations

from bootstrap.fetch.window import LEAST, Window


def rounds(window: Window, seconds: float, count: int, each_bytes: float, most_bytes: float) -> float:
    """Let a network of so many bytes a second, in all and for each connection, answer; return the time after it."""
    for _ in range(count):
        rate = min(window.size * each_bytes, most_bytes)
        for _ in range(int(window.size)):
            seconds += 1e6 / rate
            window.came(1_000_000, seconds)
    return seconds


def test_requests_grow_while_each_connection_keeps_its_rate() -> None:
    window = Window(16, 256)
    rounds(window, 0.0, 12, each_bytes=85e6, most_bytes=1e12)
    assert window.size == 256


def test_requests_stay_where_more_of_them_bring_nothing() -> None:
    window = Window(16, 256)
    rounds(window, 0.0, 50, each_bytes=85e6, most_bytes=1.4e9)
    assert window.size <= 32


def test_a_burst_of_refusals_halves_once_and_requests_grow_again() -> None:
    window = Window(64, 64)
    now = rounds(window, 0.0, 3, each_bytes=85e6, most_bytes=1e12)
    for _ in range(10):
        window.refused(now)
    assert window.size == 32
    for second in range(1, 9):
        window.refused(now + 2 * second)
    assert window.size == LEAST
    rounds(window, now + 20, 30, each_bytes=85e6, most_bytes=1e12)
    assert window.size == 64
