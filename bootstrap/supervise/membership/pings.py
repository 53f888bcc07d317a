"""Pings between supervisors: about one datagram per second in each direction, and an additional one after changes.

Heartbeats in S3 determine whether a peer is alive. Missing pongs are additional evidence that only shortens the time
until a silent peer is considered lost (`Peer.is_silent`). For a peer that has never responded, for example because
datagrams are dropped, only its heartbeats matter.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bootstrap.documents.supervisor_limits import MISSING_PING_SECONDS, PING_SECONDS

logger = logging.getLogger(__name__)

_PING, _PONG, _NEWS = b"trainstack?", b"trainstack!", b"trainstack+"
_MAX_BYTES = 128

Address = tuple[str, int]


@dataclass
class _Target:
    """A peer. `since` is the time of the first ping without a pong (monotonic seconds)."""

    address: Address
    token: bytes = field(default_factory=lambda: secrets.token_hex(8).encode())
    since: float | None = None
    answered: bool = False


class Pings:
    """Pings peers over one socket in one thread. The public methods are thread-safe."""

    def __init__(
        self, address: str, interval_seconds: float = PING_SECONDS, on_news: Callable[[], None] = lambda: None
    ) -> None:
        self._interval_seconds = interval_seconds
        self._on_news = on_news
        self._targets: dict[str, _Target] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._socket: socket.socket | None = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        try:
            self._socket.bind((address, 0))
        except OSError as error:
            logger.warning("pings: cannot listen on %s (%s): using only heartbeats", address, error)
            self._socket.close()
            self._socket = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port on which this node responds to pings, or 0 if it does not respond."""
        return int(self._socket.getsockname()[1]) if self._socket is not None else 0

    def start(self) -> None:
        """Start sending pings and responding to them."""
        if self._socket is not None:
            self._thread = threading.Thread(target=self._work, args=(self._socket,), name="pings", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread and close the socket."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def follow(self, peers: Mapping[str, Address]) -> None:
        """Set the peers to ping. A peer with a new address is a new peer."""
        with self._lock:
            self._targets = {
                name: known if (known := self._targets.get(name)) and known.address == address else _Target(address)
                for name, address in peers.items()
            }

    def unanswered_since(self, name: str) -> float | None:
        """Return when a peer stopped responding (monotonic seconds), or None if it responds or has never responded."""
        with self._lock:
            target = self._targets.get(name)
            return target.since if target is not None and target.answered else None

    def tell(self) -> None:
        """Notify all peers to read the control records now. A lost datagram only delays them."""
        with self._lock:
            addresses = [target.address for target in self._targets.values()]
        if self._socket is not None:
            for address in addresses:
                _send(self._socket, _NEWS, address)

    def _work(self, own: socket.socket) -> None:
        next_at = 0.0
        while not self._ended.is_set():
            if time.monotonic() >= next_at:
                self._ping(own)
                next_at = time.monotonic() + self._next_seconds()
            readable, _, _ = select.select([own], [], [], self._interval_seconds / 4)
            if readable:
                self._receive(own)

    def _next_seconds(self) -> float:
        """Return the time until the next pings, which is shorter while a peer has stopped replying."""
        now, share = time.monotonic(), MISSING_PING_SECONDS / PING_SECONDS
        with self._lock:
            is_missing = any(
                target.answered and target.since is not None and now - target.since >= self._interval_seconds * share
                for target in self._targets.values()
            )
        return self._interval_seconds * share if is_missing else self._interval_seconds

    def _ping(self, own: socket.socket) -> None:
        with self._lock:
            targets = list(self._targets.values())
            for target in targets:
                target.since = target.since if target.since is not None else time.monotonic()
        for target in targets:
            _send(own, _PING + target.token, target.address)

    def _receive(self, own: socket.socket) -> None:
        try:
            message, sender = own.recvfrom(_MAX_BYTES)
        except OSError:  # an earlier datagram was rejected: no process listens on that port
            return
        if message.startswith(_PING):
            _send(own, _PONG + message[len(_PING) :], sender)
        elif message == _NEWS:
            with self._lock:
                is_known = any(target.address == sender for target in self._targets.values())
            if is_known:
                self._on_news()
        elif message.startswith(_PONG):
            with self._lock:
                for name, target in self._targets.items():
                    if target.token == message[len(_PONG) :]:
                        if not target.answered:
                            logger.info("pings: %s responds", name)
                        target.since, target.answered = None, True


def _send(own: socket.socket, text: bytes, address: Address) -> None:
    # Without a route, queue space or a valid address and port, there is no pong. A NUL in an address raises ValueError
    # or TypeError.
    with contextlib.suppress(OSError, OverflowError, ValueError, TypeError):
        own.sendto(text, address)
