"""The control records that supervisors share through the checkpoint bucket, as types.

Format: docs/architecture.md, section 4. How they are read and written is in `control`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from bootstrap.errors import ControlStoreError

NodeState = Literal["ready", "training", "draining", "finished"]
GenerationOutcome = Literal["finished", "stopped", "failed", "lost_peer", "bad_configuration"]
Verdict = Literal["finished", "failed", "bad_configuration"]


@dataclass(frozen=True)
class Member:
    """A node of a generation."""

    instance_id: str
    address: str


@dataclass(frozen=True)
class GenerationRecord:
    """One gang: `members` in rank order; the first is the master."""

    generation: int
    run_digest: str
    members: tuple[Member, ...]
    master_address: str
    master_port: int
    created_by: str

    def rank_of(self, instance_id: str) -> int | None:
        """Return the node's rank, or None when it is no member."""
        for rank, member in enumerate(self.members):
            if member.instance_id == instance_id:
                return rank
        return None


@dataclass(frozen=True)
class Heartbeat:
    """What a node says of itself.

    `outcome` is that of `generation` once this node's part in it has ended; `port` is where it answers pings (0:
    nowhere).
    """

    instance_id: str
    address: str
    sequence: int
    state: NodeState
    generation: int
    step: int
    run_digest: str
    joined_unix_seconds: float
    outcome: GenerationOutcome | None = None
    port: int = 0


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended, for the run document of this digest."""

    run: str
    run_digest: str
    outcome: Verdict
    step: int
    message: str


def to_text(record: GenerationRecord | Heartbeat | RunOutcome) -> str:
    """Return the record as JSON."""
    return json.dumps(asdict(record))


def generation_from_text(text: str, source: str) -> GenerationRecord:
    """Decode a generation record; raises ControlStoreError."""
    value = _mapping(text, source)
    try:
        return GenerationRecord(
            generation=int(value["generation"]),
            run_digest=str(value["run_digest"]),
            members=tuple(Member(str(each["instance_id"]), str(each["address"])) for each in value["members"]),
            master_address=str(value["master_address"]),
            master_port=int(value["master_port"]),
            created_by=str(value["created_by"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable(source, error) from error


def heartbeat_from_text(text: str, source: str) -> Heartbeat:
    """Decode a heart-beat; raises ControlStoreError."""
    value = _mapping(text, source)
    try:
        return Heartbeat(
            instance_id=str(value["instance_id"]),
            address=str(value["address"]),
            sequence=int(value["sequence"]),
            state=value["state"],
            generation=int(value["generation"]),
            step=int(value["step"]),
            run_digest=str(value["run_digest"]),
            joined_unix_seconds=float(value["joined_unix_seconds"]),
            outcome=value.get("outcome"),
            port=int(value.get("port", 0)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable(source, error) from error


def run_outcome_from_text(text: str, source: str) -> RunOutcome:
    """Decode a run outcome; raises ControlStoreError."""
    value = _mapping(text, source)
    try:
        return RunOutcome(
            run=str(value["run"]),
            run_digest=str(value["run_digest"]),
            outcome=value["outcome"],
            step=int(value["step"]),
            message=str(value["message"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable(source, error) from error


def _mapping(text: str, source: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise _unreadable(source, error) from error
    if not isinstance(value, dict):
        raise _unreadable(source, TypeError("not an object"))
    return value


def _unreadable(source: str, error: Exception) -> ControlStoreError:
    return ControlStoreError(f"{source}: cannot be read ({type(error).__name__}: {error})")
