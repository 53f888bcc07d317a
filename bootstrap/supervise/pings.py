"""Asks peers directly whether they are there, and answers them: one datagram each way, about once a second.

What a peer writes to S3 alone tells how it is. An answer that no longer comes is only a second sign that it is gone:
with it a silence counts that is too short to count by itself (`Peer.is_silent`). A peer that never answered, because
something drops datagrams, is judged by its heart-beats alone.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import select
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from bootstrap.documents import PING_SECONDS

logger = logging.getLogger(__name__)

_ASK, _ANSWER = b"trainstack?", b"trainstack!"
_MOST_BYTES = 128

Address = tuple[str, int]


@dataclass
class _Asked:
    """A peer; `since` is when the first question was asked that has no answer yet (monotonic seconds)."""

    address: Address
    token: bytes = field(default_factory=lambda: secrets.token_hex(8).encode())
    since: float | None = None
    answered: bool = False


class Pings:
    """One socket, one thread; the other methods may be called from any thread."""

    def __init__(self, address: str, interval_seconds: float = PING_SECONDS) -> None:
        self._interval_seconds = interval_seconds
        self._asked: dict[str, _Asked] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._socket: socket.socket | None = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        try:
            self._socket.bind((address, 0))
        except OSError as error:
            logger.warning(
                "pings: %s cannot be listened on (%s): peers are judged by heart-beats alone", address, error
            )
            self._socket.close()
            self._socket = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """Where this node answers; 0: nowhere."""
        return int(self._socket.getsockname()[1]) if self._socket is not None else 0

    def start(self) -> None:
        """Begin to ask and to answer."""
        if self._socket is not None:
            self._thread = threading.Thread(target=self._work, args=(self._socket,), name="pings", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Answer no more."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def follow(self, peers: Mapping[str, Address]) -> None:
        """Ask these peers from now on, and no others; a peer at a new address is a new one."""
        with self._lock:
            self._asked = {
                name: known if (known := self._asked.get(name)) and known.address == address else _Asked(address)
                for name, address in peers.items()
            }

    def unanswered_since(self, name: str) -> float | None:
        """Return since when a peer that used to answer does not (monotonic seconds); None: it does, or never did."""
        with self._lock:
            asked = self._asked.get(name)
            return asked.since if asked is not None and asked.answered else None

    def _work(self, own: socket.socket) -> None:
        next_at = 0.0
        while not self._ended.is_set():
            if time.monotonic() >= next_at:
                self._ask(own)
                next_at = time.monotonic() + self._interval_seconds
            readable, _, _ = select.select([own], [], [], self._interval_seconds / 4)
            if readable:
                self._listen(own)

    def _ask(self, own: socket.socket) -> None:
        with self._lock:
            everyone = list(self._asked.values())
            for asked in everyone:
                asked.since = asked.since if asked.since is not None else time.monotonic()
        for asked in everyone:
            _send(own, _ASK + asked.token, asked.address)

    def _listen(self, own: socket.socket) -> None:
        try:
            said, sender = own.recvfrom(_MOST_BYTES)
        except OSError:  # a port that nobody listens on any more says so here
            return
        if said.startswith(_ASK):
            _send(own, _ANSWER + said[len(_ASK) :], sender)
        elif said.startswith(_ANSWER):
            with self._lock:
                for name, asked in self._asked.items():
                    if asked.token == said[len(_ANSWER) :]:
                        if not asked.answered:
                            logger.info("pings: %s answers", name)
                        asked.since, asked.answered = None, True


def _send(own: socket.socket, text: bytes, address: Address) -> None:
    with contextlib.suppress(OSError, OverflowError):  # no route, a full queue, a port of nonsense: no answer then
        own.sendto(text, address)
