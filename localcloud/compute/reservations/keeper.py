"""The one thread that ends what a capacity block or an interruptible reservation no longer gives room to."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from localcloud.api import ApiError
from localcloud.compute.instance import Reason
from localcloud.compute.inventory import Inventory
from localcloud.compute.reservations.model import BLOCK_ENDS_EARLY_SECONDS, Reservation, ReservationStore

_logger = logging.getLogger(__name__)
_BLOCK_END = Reason("Server.CapacityBlockExpired", "Server.CapacityBlockExpired: the capacity block ends")


class ReservationKeeper:
    """Wakes when a capacity block is about to end."""

    def __init__(self, store: ReservationStore, inventory: Inventory, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._inventory = inventory
        self._clock = clock
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reservations", daemon=True)

    def start(self) -> None:
        """Begin to watch the reservations."""
        self._thread.start()

    def close(self) -> None:
        """Stop."""
        self._closed.set()
        self._store.wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._closed.is_set():
            self._store.wake.wait(self._seconds_to_next_end())
            self._store.wake.clear()
            for instance_id in self._due():
                try:
                    self._inventory.terminate([instance_id], _BLOCK_END)
                except ApiError:
                    _logger.exception("%s: cannot be ended with its capacity block", instance_id)

    def _due(self) -> list[str]:
        now = self._clock()
        live = {one.id for one in self._inventory.all() if one.is_live}
        with self._store.lock:
            ended = [one for one in self._blocks() if (one.ends or 0.0) - BLOCK_ENDS_EARLY_SECONDS <= now]
            return sorted(live & {instance_id for one in ended for instance_id in one.used})

    def _blocks(self) -> list[Reservation]:
        return [one for one in self._store.reservations.values() if one.kind == "capacity-block" and one.used]

    def _seconds_to_next_end(self) -> float | None:
        now = self._clock()
        with self._store.lock:
            ends = [(one.ends or 0.0) - BLOCK_ENDS_EARLY_SECONDS for one in self._blocks()]
        return min((end - now for end in ends if end > now), default=None)
