from __future__ import annotations

from bootstrap.fetch.window import MIN_SIZE, Window


def rounds(window: Window, seconds: float, count: int, each_bytes: float, max_bytes: float) -> float:
    """Simulate rounds of responses with rate limits per connection and in total; return the time after them."""
    for _ in range(count):
        rate = min(window.size * each_bytes, max_bytes)
        for _ in range(int(window.size)):
            seconds += 1e6 / rate
            window.received(1_000_000, seconds)
    return seconds


def test_requests_grow_while_each_connection_keeps_its_rate() -> None:
    window = Window(16, 256)
    rounds(window, 0.0, 12, each_bytes=85e6, max_bytes=1e12)
    assert window.size == 256


def test_a_round_has_as_many_responses_as_requests() -> None:
    window = Window(8, 64)
    window.received(1_000_000, 0.0)  # starts the first round
    for second in range(1, 8):
        window.received(1_000_000, float(second))
    assert window.size == 8
    window.received(1_000_000, 8.0)
    assert window.size == 16


def test_requests_do_not_grow_without_a_speed_up() -> None:
    window = Window(16, 256)
    rounds(window, 0.0, 50, each_bytes=85e6, max_bytes=1.4e9)
    assert window.size <= 32


def test_a_burst_of_refusals_halves_once_and_requests_grow_again() -> None:
    window = Window(64, 64)
    now = rounds(window, 0.0, 3, each_bytes=85e6, max_bytes=1e12)
    for _ in range(10):
        window.refused(now)
    assert window.size == 32
    for second in range(1, 9):
        window.refused(now + 2 * second)
    assert window.size == MIN_SIZE
    rounds(window, now + 20, 30, each_bytes=85e6, max_bytes=1e12)
    assert window.size == 64
