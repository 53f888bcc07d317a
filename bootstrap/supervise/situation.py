"""Input and output of `decide`: a node's situation and its supervisor's actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bootstrap.documents.supervisor_limits import SuperviseTimings
from bootstrap.imds import InterruptionNotice
from bootstrap.supervise.membership.peers import Peer
from bootstrap.supervise.membership.records import GenerationOutcome, GenerationRecord, Member, RunOutcome, Verdict


@dataclass(frozen=True)
class Wanted:
    """The parts of the current run document that `decide` needs."""

    digest: str
    nodes: int
    min_nodes: int


@dataclass(frozen=True)
class Result:
    """Result of this node's part in a generation. `step` is the last step known to be saved or reached."""

    outcome: GenerationOutcome
    step: int
    message: str


@dataclass(frozen=True)
class Active:
    """The generation that this node takes part in. Times are monotonic seconds unless the name contains unix.

    Attributes:
        record: The generation record.
        rank: This node's rank.
        started_at: Time when its trainers were started.
        seen: Members whose heartbeats have named this generation.
        stop_reason: Reason for a requested stop.
        stop_deadline_unix: Deadline passed to the trainers. It identifies the request.
        stop_deadline: The same deadline on the monotonic clock, computed at the time of the request.
        result: Result on this node, or None until the trainers have exited.
        ended_at: Time when the trainers exited.
        is_formed: Whether this node's trainers can switch to another generation in place.
        pending: The record of the generation that the trainers were requested to switch to.
        handed_at: Time of that request.
        changing_since: Time when this node detected that the members have to change.
        fenced_by: The record of a generation that continues without this node, although its trainers are alive. They
            wait for a generation that they can join.
        fenced_at: Time when this node read that record.
        is_blind: Whether the trainers have been asked to wait because this node cannot read the control records.
    """

    record: GenerationRecord
    rank: int
    started_at: float
    seen: frozenset[str] = frozenset()
    stop_reason: str | None = None
    stop_deadline_unix: float | None = None
    stop_deadline: float | None = None
    result: Result | None = None
    ended_at: float | None = None
    is_formed: bool = False
    pending: GenerationRecord | None = None
    handed_at: float = 0.0
    changing_since: float | None = None
    fenced_by: GenerationRecord | None = None
    fenced_at: float = 0.0
    is_blind: bool = False


@dataclass(frozen=True)
class Judgement:
    """This node's conclusion that the run has ended. If `mine`, this node records the outcome."""

    verdict: Verdict
    run_digest: str
    step: int
    message: str
    mine: bool
    since: float


@dataclass(frozen=True)
class Situation:
    """All inputs to a decision. Times are monotonic seconds unless the name contains unix.

    Attributes:
        wanted: The current run document.
        loaded_digest: Digest of the run document whose code and data are on this node.
        loading: Whether loading the wanted run document is idle, running or failed.
        loading_message: Reason that loading failed.
        noticed_unix: Time when this node read the notice, or 0 without a notice.
        scale_in_since_unix: Time when the group started to terminate this instance.
        signalled_since_unix: Time of the first SIGTERM or SIGINT.
        rebalance_pending: Whether a rebalance recommendation is still unhandled.
        observed_at: Time of the last observation of the control records, which produced `peers` and `newest`.
        floor: This node ignores generations up to this number.
        ready_since: Time when this node became ready for a generation.
        recorded: The recorded outcome of the wanted run document.
        judgement: This node's conclusion about the run.
        gpu_fault: A GPU fault after which the trainers cannot save.
        stopped_since_unix: Time when this node read an operator's request to stop the run.
        free_until_unix: AWS does not bill the instance if EC2 interrupts it before this time. None: unknown, or not a
            Spot Instance.
        signal_seconds: Time from SIGTERM until the final save must be complete. None: `SIGNAL_LIMIT_SECONDS`.
        ends_with_run: Whether the node leaves when the run's outcome is recorded, because no controller scales it in.
        restart_generation: Generations up to this number must end, because an operator requested a restart.
        last_generation: Last generation number used by any record, even a damaged one.
        leaves_in_place: Whether this node is leaving, and the others can continue from memory.
    """

    now: float
    now_unix: float
    me: Member
    joined_unix_seconds: float
    timings: SuperviseTimings
    wanted: Wanted
    loaded_digest: str | None
    loading: Literal["idle", "running", "failed"]
    loading_message: str
    notice: InterruptionNotice | None
    noticed_unix: float
    scale_in_since_unix: float | None
    signalled_since_unix: float | None
    rebalance_pending: bool
    peers: tuple[Peer, ...]
    observed_at: float | None
    newest: GenerationRecord | None
    floor: int
    active: Active | None
    ready_since: float | None
    recorded: RunOutcome | None
    judgement: Judgement | None
    gpu_fault: str | None = None
    last_generation: int = 0
    stopped_since_unix: float | None = None
    restart_generation: int = 0
    free_until_unix: float | None = None
    leaves_in_place: bool = False
    signal_seconds: float | None = None
    ends_with_run: bool = False


@dataclass(frozen=True)
class Start:
    """Start the trainers of a generation."""

    record: GenerationRecord
    rank: int


@dataclass(frozen=True)
class Elect:
    """Try to write the record of the next generation, with this node as master."""

    generation: int
    members: tuple[Member, ...]
    survivors: int = 0
    planned: bool = False


@dataclass(frozen=True)
class HandOver:
    """Pass a record to the running trainers, which switch to it in place. `rank` is None if this node leaves."""

    record: GenerationRecord
    rank: int | None


@dataclass(frozen=True)
class Fence:
    """Keep the trainers until they can join another generation: the others continue without this node."""

    record: GenerationRecord


@dataclass(frozen=True)
class Hold:
    """Ask trainers whose collective has failed to wait (or no longer), because this node cannot read the records."""

    is_needed: bool


@dataclass(frozen=True)
class AwaitChange:
    """Record the time at which the members of the generation first needed a change, or that they no longer need one."""

    is_needed: bool = True


@dataclass(frozen=True)
class RequestStop:
    """Request that the trainers agree on a step, save and exit: now or, with `train_on`, just before the deadline."""

    reason: str
    deadline_unix: float
    train_on: bool = False


@dataclass(frozen=True)
class RequestSave:
    """Request an extra checkpoint from the trainers."""


@dataclass(frozen=True)
class Kill:
    """Kill the trainers. The generation ends with this result."""

    outcome: GenerationOutcome
    message: str


@dataclass(frozen=True)
class Conclude:
    """End the generation on this node."""

    result: Result


@dataclass(frozen=True)
class RecordRunOutcome:
    """Write outcome.json."""

    verdict: Verdict
    step: int
    message: str


@dataclass(frozen=True)
class LoadRun:
    """Load the wanted run document's code and dataset."""


@dataclass(frozen=True)
class Leave:
    """Send the last heartbeat, complete the lifecycle action if there is one, shut down, and stop the supervisor.

    `run_continues` states whether other nodes will continue the run. Until `reclaim_unix`, the node waits for EC2 to
    reclaim the instance, and shuts down later if EC2 does not.
    """

    reason: str
    complete_hook: bool
    shut_down: bool
    run_continues: bool = False
    reclaim_unix: float | None = None


Action = (
    Start
    | Elect
    | HandOver
    | Fence
    | Hold
    | AwaitChange
    | RequestStop
    | RequestSave
    | Kill
    | Conclude
    | RecordRunOutcome
    | LoadRun
    | Leave
)
