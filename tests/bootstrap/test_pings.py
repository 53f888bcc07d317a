"""Pings between supervisors: real sockets on the loop-back interface."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from functools import partial

import pytest

from bootstrap.supervise.pings import Pings
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


def test_a_peer_that_stops_to_answer_is_known_since_its_first_missing_answer(us: Pings, them: Pings) -> None:
    us.follow({"i-you": ("127.0.0.1", them.port)})
    wait(lambda: us._asked["i-you"].answered)
    began = time.monotonic()
    them.stop()
    wait(lambda: silence(us) > 5 * INTERVAL_SECONDS)
    since = us.unanswered_since("i-you")
    assert since is not None and since > began - 2 * INTERVAL_SECONDS


def test_a_peer_that_answers_again_is_not_held_to_have_been_silent(us: Pings, them: Pings) -> None:
    port = them.port
    us.follow({"i-you": ("127.0.0.1", port)})
    wait(lambda: us._asked["i-you"].answered)
    them.stop()
    wait(lambda: silence(us) > 4 * INTERVAL_SECONDS)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as back:
        back.bind(("127.0.0.1", port))
        question, sender = back.recvfrom(128)
        back.sendto(question.replace(b"?", b"!", 1), sender)
        wait(lambda: silence(us) < 3 * INTERVAL_SECONDS)


def test_who_never_answered_is_not_called_silent(us: Pings) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as deaf:
        deaf.bind(("127.0.0.1", 0))
        us.follow({"i-you": deaf.getsockname()})
        for _ in range(3):
            deaf.recvfrom(128)
        assert us.unanswered_since("i-you") is None
    assert us.unanswered_since("i-nobody") is None


def test_an_answer_counts_for_the_peer_that_was_asked_only(us: Pings) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        us.follow({"i-you": other.getsockname()})
        _, sender = other.recvfrom(128)
        for answer in (b"trainstack!", b"trainstack!0123456789abcdef", b"\xff" * 1000, b""):
            other.sendto(answer, sender)
        other.recvfrom(128)
        other.recvfrom(128)
        assert not us._asked["i-you"].answered


def test_a_peer_at_another_port_is_a_new_one_and_one_that_is_left_out_is_forgotten(us: Pings, them: Pings) -> None:
    us.follow({"i-you": ("127.0.0.1", them.port)})
    wait(lambda: us._asked["i-you"].answered)
    us.follow({"i-you": ("127.0.0.1", 1), "i-odd": ("no address", 7), "i-far": ("127.0.0.1", 70_000)})
    wait(lambda: us._asked["i-far"].since is not None)
    time.sleep(3 * INTERVAL_SECONDS)  # in which an answer would have come
    assert us.unanswered_since("i-you") is None  # it was never heard there
    us.follow({})
    assert us.unanswered_since("i-you") is None
    us.follow({"i-you": ("127.0.0.1", them.port)})
    wait(lambda: us._asked["i-you"].answered)  # what could not be asked has stopped nothing


def test_an_address_that_is_not_this_machines_leaves_it_to_the_heart_beats(caplog: pytest.LogCaptureFixture) -> None:
    pings = Pings("192.0.2.77")
    pings.start()
    assert pings.port == 0
    assert "judged by heart-beats alone" in caplog.text
    pings.stop()
