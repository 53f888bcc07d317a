"""What this node alone has of a save that is not durable yet, and whether the gang can go on from it.

A save to two tiers is stored in the fast one first. When a rank's share is there, the rank leaves a record beside it;
then the share is copied to the durable tier, and when all ranks have done that the log gets its entry. A gang that
starts between the two on the same nodes finds a record of every rank, and loses nothing. Any other gang, and one that
finds anything missing, older or damaged, goes on from the newest checkpoint in the log as ever.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from pydantic import Field, ValidationError

from training.checkpoint.backend import Backend
from training.checkpoint.log import newest_first
from training.checkpoint.manifest import Manifest, PartRecord, Record
from training.checkpoint.tiers import TieredBackend
from training.errors import NotFoundError, StoreError

if TYPE_CHECKING:  # the writer process imports no torch
    from training.distributed import Gang

logger = logging.getLogger(__name__)

_RANK_PREFIX = "near/rank-"


class NearRecord(Record):
    """One rank's share of a save, all of it in the fast tier or known to be in the durable one.

    Attributes:
        epoch: sequence of its gang's fence.
        serial: number of the save in the gang's life.
        manifest: of the checkpoint, without parts.
        part: the share.
    """

    epoch: int = Field(ge=0)
    serial: int = Field(ge=1)
    manifest: Manifest
    part: PartRecord

    @property
    def save(self) -> tuple[int, int, int, int]:
        """What the records of one save have in common."""
        return (self.epoch, self.serial, self.manifest.step, self.manifest.world_size)


def leave_record(backend: TieredBackend, rank: int, record: NearRecord) -> None:
    """Put a rank's record into the fast tier, over the one of its last save; does nothing if the tier does not work."""
    backend.put_near(_key(rank), record.model_dump_json().encode())


def read_record(backend: Backend, rank: int) -> NearRecord | None:
    """A rank's record in this node's fast tier; None if there is none that can be read."""
    if not isinstance(backend, TieredBackend):
        return None
    fast, _ = backend.tiers
    try:
        return NearRecord.model_validate_json(fast.get(_key(rank)))
    except NotFoundError:
        return None
    except (StoreError, ValidationError) as error:
        logger.warning("%s/%s is passed over: %s", fast.url, _key(rank), error)
        return None


def read_records(backend: Backend) -> list[NearRecord]:
    """Records of all ranks that save to this node's fast tier; those that cannot be read are passed over loudly."""
    if not isinstance(backend, TieredBackend):
        return []
    names = [key.removeprefix(_RANK_PREFIX).removesuffix(".json") for key in backend.tiers[0].keys(_RANK_PREFIX)]
    records = [read_record(backend, int(name)) for name in names if name.isdecimal()]
    return [record for record in records if record is not None]


def forget_record(backend: Backend, rank: int) -> None:
    """Remove a rank's record from this node's fast tier."""
    if isinstance(backend, TieredBackend):
        backend.tiers[0].delete([_key(rank)])


def newest_near(gang: Gang, backend: Backend) -> Manifest | None:
    """A checkpoint that only the nodes of this gang have, and that is newer than all in the log; the same on all ranks.

    Call it after the gang's own fence: what an earlier gang is still copying can be committed no more.
    """
    records = gang.gather(read_record(backend, gang.rank))
    whole = [record for record in records if record is not None]
    if len(whole) < gang.world_size or len({record.save for record in whole}) > 1:
        return None
    first = whole[0]
    last = gang.ask_rank_zero(lambda: last_life(backend, own_fences=1))
    if first.manifest.world_size != gang.world_size or first.epoch != last.epoch or first.manifest.step <= last.step:
        return None
    return first.manifest.model_copy(update={"parts": [record.part for record in whole]})


class LastLife(NamedTuple):
    """The gang that wrote last: its fence, and step of the newest checkpoint; -1 for what there is not."""

    epoch: int
    step: int


def last_life(backend: Backend, own_fences: int) -> LastLife:
    """Look into the log, past so many fences of the caller's own."""
    epoch, step, fences = -1, -1, 0
    for entry in newest_first(backend):
        if entry.kind == "fence":
            fences += 1
            if fences == own_fences + 1:
                epoch = entry.sequence
        elif entry.step is not None and step < 0:
            step = entry.step
        if epoch >= 0 and step >= 0:
            break
    return LastLife(epoch, step)


def _key(rank: int) -> str:
    return f"{_RANK_PREFIX}{rank:05d}.json"
