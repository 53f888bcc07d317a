"""Types and decoders for the control records that supervisors share through the control bucket.

Format: docs/architecture.md, section 4. `control` reads and writes the records. Every node in the fleet may write any
record except other nodes' heartbeats. Therefore, each field has a rule, and decoding raises ControlStoreError if a
record violates one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Literal, TypeVar

from bootstrap.documents.decoding import Between, Matches, decode_record
from bootstrap.errors import ControlStoreError, DocumentError

NodeState = Literal["ready", "training", "draining", "finished"]
GenerationOutcome = Literal["finished", "stopped", "failed", "lost_peer", "bad_configuration", "killed"]
Verdict = Literal["finished", "failed", "bad_configuration"]

MAX_GENERATION = 99_999_999
"""The names of generation records have eight digits."""
MAX_RECORD_BYTES = 256 * 1024
"""A generation with 2,000 members takes about 120 KiB."""
MAX_MESSAGE_CHARACTERS = 16384

INSTANCE_ID = r"i-[0-9a-z-]{1,40}"
USER_ID = rf"[\w-]{{1,128}}:{INSTANCE_ID}"
"""The user id of a node's role session: `<role id>:<instance id>`."""
_OCTET = r"(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_InstanceId = Annotated[str, Matches(INSTANCE_ID, "must be an instance id, such as i-0123456789abcdef0")]
# A host name would require a DNS lookup for each ping, which can block the pings to all peers.
_Address = Annotated[str, Matches(rf"({_OCTET}\.){{3}}{_OCTET}", "must be an IPv4 address")]
_Digest = Annotated[str, Matches(r"[0-9a-zA-Z]{0,64}", "must be a digest of at most 64 letters and digits")]
_Generation = Annotated[int, Between(0, MAX_GENERATION)]
_Counter = Annotated[int, Between(0, 2**53)]
_UnixSeconds = Annotated[float, Between(0, 253402300799)]  # up to the year 9999
_Text = Annotated[str, Matches(rf"(?s).{{0,{MAX_MESSAGE_CHARACTERS}}}", f"at most {MAX_MESSAGE_CHARACTERS} characters")]

T = TypeVar("T")


@dataclass(frozen=True)
class Member:
    """A member of a generation."""

    instance_id: _InstanceId
    address: _Address


@dataclass(frozen=True)
class GenerationRecord:
    """A generation, with its `members` in rank order. The first member is the master.

    Attributes:
        survivors: Number of members, first in rank order, whose trainers continue from memory. 0: all trainers start
            from the newest checkpoint.
        planned: Whether all trainers of the preceding generation can take part in the change.
    """

    generation: _Generation
    run_digest: _Digest
    members: tuple[Member, ...]
    master_address: _Address
    master_port: Annotated[int, Between(1, 65535)]
    created_by: _InstanceId
    survivors: _Counter = 0
    planned: bool = False

    def rank_of(self, instance_id: str) -> int | None:
        """Return the rank of a node, or None if it is not a member."""
        for rank, member in enumerate(self.members):
            if member.instance_id == instance_id:
                return rank
        return None


@dataclass(frozen=True)
class Heartbeat:
    """A node's heartbeat.

    `outcome` is set after this node's part in `generation` has ended. `port` is the port for pings, or 0 if there is
    none.
    """

    instance_id: _InstanceId
    address: _Address
    sequence: _Counter
    state: NodeState
    generation: _Generation
    step: _Counter
    run_digest: _Digest
    joined_unix_seconds: _UnixSeconds
    outcome: GenerationOutcome | None = None
    port: Annotated[int, Between(0, 65535)] = 0


@dataclass(frozen=True)
class RunOutcome:
    """The outcome of the run document with this digest."""

    run: _Text
    run_digest: _Digest
    outcome: Verdict
    step: _Counter
    message: _Text


@dataclass(frozen=True)
class Checkpoint:
    """A durable checkpoint. The time is None if an earlier generation saved it."""

    step: _Counter
    unix_seconds: _UnixSeconds | None


@dataclass(frozen=True)
class RunStatus:
    """A generation's progress. Values that the trainer has not reported yet are None.

    Attributes:
        members: Instance ids in rank order.
        step_seconds: Time per step, excluding pauses for saves.
        mfu: Model FLOPs utilization, from 0 to 1.
        unix_seconds: Time at which the status was written.
        ended: Whether the generation has ended, so that no newer status of it follows.
        metrics: Bits per byte of the last validation, and the metrics that a pipeline step's function returned.
    """

    run: _Text
    run_digest: _Digest
    generation: _Generation
    members: tuple[_InstanceId, ...]
    step: _Counter | None
    steps_total: _Counter | None
    loss: float | None
    validation_loss: float | None
    tokens_per_second: float | None
    step_seconds: float | None
    mfu: float | None
    checkpoint: Checkpoint | None
    unix_seconds: _UnixSeconds
    ended: bool = False
    metrics: Mapping[str, float] | None = None


def to_text(record: GenerationRecord | Heartbeat | RunOutcome | RunStatus) -> str:
    """Return the record as JSON."""
    return json.dumps(asdict(record))


def generation_from_bytes(content: bytes, source: str) -> GenerationRecord:
    """Decode a generation record. Raises ControlStoreError."""
    record = _decoded(GenerationRecord, content, source)
    members = {member.instance_id for member in record.members}
    if not members or len(members) != len(record.members):
        raise ControlStoreError(f"{source}: members: must contain at least one instance, and each instance only once")
    if record.survivors > len(record.members):
        raise ControlStoreError(f"{source}: survivors: {record.survivors}: must be at most the number of members")
    if source.rpartition("/")[2] != f"{record.generation:08d}.json":
        raise ControlStoreError(f"{source}: generation: {record.generation}: must be the number in the object's name")
    return record


def heartbeat_from_bytes(content: bytes, source: str) -> Heartbeat:
    """Decode a heartbeat. Raises ControlStoreError."""
    beat = _decoded(Heartbeat, content, source)
    if source.rpartition(":")[2] != f"{beat.instance_id}.json":
        raise ControlStoreError(f"{source}: instance_id: {beat.instance_id}: must be the id in the object's name")
    return beat


def run_outcome_from_bytes(content: bytes, source: str) -> RunOutcome:
    """Decode a run outcome. Raises ControlStoreError."""
    return _decoded(RunOutcome, content, source)


def run_status_from_bytes(content: bytes, source: str) -> RunStatus:
    """Decode a run's status. Raises ControlStoreError."""
    return _decoded(RunStatus, content, source)


def _decoded(cls: type[T], content: bytes, source: str) -> T:
    if len(content) > MAX_RECORD_BYTES:
        raise ControlStoreError(f"{source}: {len(content)} bytes: must have at most {MAX_RECORD_BYTES}")
    try:
        return decode_record(cls, content, source)
    except DocumentError as error:
        raise ControlStoreError(f"{source}: {error.problems[0]}") from error
