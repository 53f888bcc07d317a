"""The parts that the ranks of a gang send to rank 0 through the store.

Every node of a run can write below `parts/`. The name of each part therefore contains a mark that only this gang can
compute, and rank 0 reads no other object. An object with a part's name and other contents is set aside: it is reported
once, and rank 0 continues to wait for the part.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import blake3
from pydantic import ValidationError

from training.checkpoint.chunk_listing import existing
from training.checkpoint.manifest import PartMessage
from training.checkpoint.storage.backend import Backend
from training.errors import NotFoundError

logger = logging.getLogger(__name__)

PARTS_PREFIX = "parts/"
MAX_LISTED_PARTS = 10_000
"""Maximum number of keys in a listing under `parts/`, where every node of the run can write."""
MAX_REPORTS = 100
"""Maximum number of objects to report, because a node can replace an object any number of times."""
MARK_DIGITS = 32


@dataclass(frozen=True)
class PartSetAside:
    """An object that rank 0 found in place of a part.

    Attributes:
        step: optimizer steps completed in the state being saved.
        url: the object's URL.
        message: the reason why it is not a part.
    """

    step: int
    url: str
    message: str


class Parts:
    """The parts of a gang's saves.

    Args:
        backend: the checkpoint store.
        fence: sequence number of the gang's fence.
        secret: text that only the gang's ranks know; the same on all ranks.

    Attributes:
        report: called for each object that is set aside.
    """

    def __init__(self, backend: Backend, fence: int, secret: str) -> None:
        self._backend = backend
        self._folder = f"{PARTS_PREFIX}{fence:08d}/"
        self._secret = secret
        self._set_aside: set[tuple[str, bytes]] = set()
        self.report: Callable[[PartSetAside], None] = lambda found: None

    def key(self, serial: int, rank: int) -> str:
        """Return the key of a rank's part of a save."""
        name = f"{self._folder}{serial:06d}/{rank:05d}"
        mark = blake3.blake3(f"{self._secret}/{name}".encode()).hexdigest()[:MARK_DIGITS]
        return f"{name}-{mark}.json"

    def send(self, serial: int, rank: int, message: PartMessage) -> None:
        """Write a rank's part, or the error that ended its save."""
        self._backend.put(self.key(serial, rank), message.model_dump_json().encode())

    def received(self, serial: int, step: int, ranks: Iterable[int]) -> Mapping[int, PartMessage]:
        """Return the parts of these ranks that are in the store, by rank."""
        waiting = {self.key(serial, rank): rank for rank in ranks}
        found: dict[int, PartMessage] = {}
        for key in self._existing(serial, waiting):
            message = self._read(key, step)
            if message is not None:
                found[waiting[key]] = message
        return found

    def stale(self) -> list[str]:
        """Return the keys of the parts that rank 0 has gathered, or that no rank will gather; the oldest first.

        The next call returns those that do not fit in a listing.
        """
        listed = self._backend.keys(PARTS_PREFIX, MAX_LISTED_PARTS)
        return [key for key in listed if key < self._folder or key.startswith(self._folder)]

    def _existing(self, serial: int, waiting: Mapping[str, int]) -> list[str]:
        """Return the keys that exist. If other objects fill the listing, look up each key."""
        listed = self._backend.keys(f"{self._folder}{serial:06d}/", MAX_LISTED_PARTS)
        found = waiting.keys() & listed
        if len(listed) == MAX_LISTED_PARTS:
            found |= existing(self._backend, sorted(waiting.keys() - found))
        return sorted(found)

    def _read(self, key: str, step: int) -> PartMessage | None:
        try:
            content = self._backend.get(key)
        except NotFoundError:
            return None
        try:
            return PartMessage.model_validate_json(content)
        except ValidationError as error:
            self._report(key, content, step, error)
        return None

    def _report(self, key: str, content: bytes, step: int, error: ValidationError) -> None:
        identity = key, blake3.blake3(content).digest()
        if identity in self._set_aside or len(self._set_aside) == MAX_REPORTS:
            return
        self._set_aside.add(identity)
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        found = PartSetAside(step, f"{self._backend.url}/{key}", f"{place}: {first['msg']}" if place else first["msg"])
        logger.warning("%s: not a part of a save (%s); waiting for the part", found.url, found.message)
        self.report(found)
