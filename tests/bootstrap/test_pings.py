"""Pings between supervisors: real sockets on the loopback interface."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from functools import partial

import pytest

from bootstrap.supervise.membership.pings import Pings
from tests.bootstrap import waiting

INTERVAL_SECONDS = 0.05
DEADLINE_SECONDS = 60.0


def started() -> Iterator[Pings]:
    pings = Pings("127.0.0.1", INTERVAL_SECONDS)
    pings.start()
    yield pings
    pings.stop()


us, them = (pytest.fixture(started, name=name) for name in ("us", "them"))
wait = partial(waiting.wait, limit_seconds=DEADLINE_SECONDS)


def silence(pings: Pings, name: str = "i-you") -> float:
    since = pings.unanswered_since(name)
    return time.monotonic() - since if since is not None else 0.0


def test_the_time_without_answers_starts_at_the_first_missing_one(us: Pings, them: Pings) -> None:
    us.follow({"i-you": ("127.0.0.1", them.port)})
    wait(lambda: us._targets["i-you"].answered)
    started_at = time.monotonic()
    them.stop()
    wait(lambda: silence(us) > 5 * INTERVAL_SECONDS)
    since = us.unanswered_since("i-you")
    assert since is not None and since > started_at - 2 * INTERVAL_SECONDS


def test_an_answer_resets_the_time_without_answers(us: Pings, them: Pings) -> None:
    port = them.port
    us.follow({"i-you": ("127.0.0.1", port)})
    wait(lambda: us._targets["i-you"].answered)
    them.stop()
    wait(lambda: silence(us) > 4 * INTERVAL_SECONDS)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as back:
        back.bind(("127.0.0.1", port))
        question, sender = back.recvfrom(128)
        back.sendto(question.replace(b"?", b"!", 1), sender)
        wait(lambda: silence(us) < 3 * INTERVAL_SECONDS)


def test_a_peer_that_never_answered_has_no_time_without_answers(us: Pings) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as deaf:
        deaf.bind(("127.0.0.1", 0))
        us.follow({"i-you": deaf.getsockname()})
        for _ in range(3):
            deaf.recvfrom(128)
        assert us.unanswered_since("i-you") is None
    assert us.unanswered_since("i-unknown") is None


def test_an_answer_counts_only_for_the_pinged_peer(us: Pings) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        us.follow({"i-you": other.getsockname()})
        _, sender = other.recvfrom(128)
        for answer in (b"trainstack!", b"trainstack!0123456789abcdef", b"\xff" * 1000, b""):
            other.sendto(answer, sender)
        other.recvfrom(128)
        other.recvfrom(128)
        assert not us._targets["i-you"].answered


def test_a_peer_at_another_port_is_new_and_a_removed_one_is_forgotten(us: Pings, them: Pings) -> None:
    us.follow({"i-you": ("127.0.0.1", them.port)})
    wait(lambda: us._targets["i-you"].answered)
    us.follow({"i-you": ("127.0.0.1", 1), "i-odd": ("no address", 7), "i-far": ("127.0.0.1", 70_000)})
    wait(lambda: us._targets["i-far"].since is not None)
    time.sleep(3 * INTERVAL_SECONDS)  # enough for a response
    assert us.unanswered_since("i-you") is None  # it has never responded there
    us.follow({})
    assert us.unanswered_since("i-you") is None
    us.follow({"i-you": ("127.0.0.1", them.port)})
    wait(lambda: us._targets["i-you"].answered)  # unreachable peers did not stop the thread


def test_a_foreign_address_falls_back_to_heart_beats(caplog: pytest.LogCaptureFixture) -> None:
    pings = Pings("192.0.2.77")
    pings.start()
    assert pings.port == 0
    assert "using only heartbeats" in caplog.text
    pings.stop()


def test_news_from_a_peer_are_heard(them: Pings) -> None:
    heard: list[bool] = []
    listener = Pings("127.0.0.1", INTERVAL_SECONDS, lambda: heard.append(True))
    listener.start()
    try:
        them.follow({"i-you": ("127.0.0.1", listener.port)})
        them.tell()
        wait(lambda: them._targets["i-you"].answered)
        assert not heard  # the sender is not a peer
        listener.follow({"i-them": ("127.0.0.1", them.port)})
        them.tell()
        wait(lambda: heard)
    finally:
        listener.stop()


def test_pings_follow_each_other_faster_while_an_answer_is_missing(us: Pings, them: Pings) -> None:
    us.follow({"i-you": ("127.0.0.1", them.port)})
    wait(lambda: us._targets["i-you"].answered)
    them.stop()
    wait(lambda: us._next_seconds() == INTERVAL_SECONDS / 4)
    us.follow({})
    assert us._next_seconds() == INTERVAL_SECONDS
