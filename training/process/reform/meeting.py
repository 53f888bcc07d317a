"""The store at which the ranks of the next generation meet. Its first rank hosts it.

Every wait here ends at a limit, and as soon as the supervisor hands over a later generation, because the ranks of the
earlier one may not exist any more.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from training.errors import PeerError
from training.process.reform.connections import Connection, tcp_connections
from training.process.reform.handover import Handover
from training.process.store import gang_store

POLL_SECONDS = 0.01
CONNECT_SECONDS = 0.5
"""Limit for one attempt to connect to the host."""
OPERATION_LIMIT = timedelta(seconds=10)
"""Limit for one operation on the store."""
_READY, _GO = "ready/", "go"


class MeetingPlace:
    """This rank's connection to the newest generation's store.

    Args:
        is_superseded: returns True if a later generation than this one has been handed over.

    Attributes:
        connections: connections of this process to the store. As its host, this rank waits for values that another
            rank should set; if that rank has died, only the end of these connections releases it.
    """

    def __init__(self, is_superseded: Callable[[int], bool]) -> None:
        self._is_superseded = is_superseded
        self._open: tuple[int, Any] | None = None
        self.connections: frozenset[Connection] = frozenset()

    def store(self, handover: Handover, rank: int, deadline: float) -> Any:
        """Return the store of a generation: host it as rank 0, or connect to its host.

        Args:
            handover: the generation.
            rank: this process's rank in it.
            deadline: limit in seconds of `time.monotonic()`.

        Raises:
            PeerError: The store cannot be hosted, or is not there in time.
        """
        if self._open is None or self._open[0] != handover.generation:
            if rank != 0:
                self._await_host(handover, deadline)
            before = tcp_connections()
            store = gang_store(handover.master_address, handover.master_port, rank == 0, OPERATION_LIMIT)
            self._open, self.connections = (handover.generation, store), tcp_connections() - before
        return self._open[1]

    def are_ready(self, handover: Handover, joining: range) -> bool:
        """As rank 0, return True if all ranks that join are ready.

        Raises:
            PeerError: The store cannot be hosted.
        """
        store = self.store(handover, 0, time.monotonic() + OPERATION_LIMIT.total_seconds())
        return all(store.check([f"{_READY}{rank}"]) for rank in joining)

    def go(self, handover: Handover, deadline: float) -> None:
        """As rank 0, report to the ranks that join that the change has begun."""
        self.store(handover, 0, deadline).set(_GO, "")

    def await_change(self, handover: Handover, rank: int, deadline: float) -> None:
        """As a rank that joins, report that it is ready, and wait until the change begins.

        Raises:
            PeerError: The host has ended, or the change does not begin in time.
        """
        try:
            store = self.store(handover, rank, deadline)
            store.set(f"{_READY}{rank}", "")
            while not store.check([_GO]):
                self._continue(handover, deadline)
        except RuntimeError as error:
            raise PeerError(f"the first rank of generation {handover.generation} has ended ({error})") from error

    def _await_host(self, handover: Handover, deadline: float) -> None:
        """Wait until the host listens. The store's own client would wait without noticing a later generation."""
        while True:
            try:
                with socket.create_connection((handover.master_address, handover.master_port), CONNECT_SECONDS):
                    return
            except OSError:
                self._continue(handover, deadline)

    def _continue(self, handover: Handover, deadline: float) -> None:
        if self._is_superseded(handover.generation):
            raise PeerError(f"a later generation replaces {handover.generation}")
        if time.monotonic() > deadline:
            raise PeerError(f"the ranks of generation {handover.generation} did not meet in time")
        time.sleep(POLL_SECONDS)
