"""What a supervisor knows when it decides, and what it can decide: the input and the output of `decide`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Union

from bootstrap.documents import SuperviseTimings
from bootstrap.imds import InterruptionNotice
from bootstrap.supervise.peers import Peer
from bootstrap.supervise.records import GenerationOutcome, GenerationRecord, Member, RunOutcome, Verdict


@dataclass(frozen=True)
class Wanted:
    """The run document as it is now, as far as a decision needs it."""

    digest: str
    nodes: int
    min_nodes: int


@dataclass(frozen=True)
class Result:
    """How this node's part in a generation ended; `step` is the last step known to be saved or reached."""

    outcome: GenerationOutcome
    step: int
    message: str


@dataclass(frozen=True)
class Active:
    """The generation that this node takes part in.

    Times are monotonic seconds, except `stop_deadline_unix`, which is what the trainers were told and tells one wish
    from another; `stop_deadline` is that moment, as it was when it was asked for. `seen` holds the members that were
    seen to take part. `result` is there when the trainers are gone.
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


@dataclass(frozen=True)
class Judgement:
    """What this node knows of the run's end from its own part; `mine`: it is the one to record it."""

    verdict: Verdict
    run_digest: str
    step: int
    message: str
    mine: bool
    since: float


@dataclass(frozen=True)
class Situation:
    """Everything that a decision may depend on. Times are monotonic seconds unless the name says unix.

    `noticed_unix` is when the notice was seen, 0 without one; `gpu_fault` is of a GPU that nothing can be saved from.
    """

    now: float
    now_unix: float
    me: Member
    joined_unix_seconds: float
    timings: SuperviseTimings
    wanted: Wanted
    prepared_digest: str | None
    preparation: Literal["idle", "running", "failed"]
    preparation_message: str
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


@dataclass(frozen=True)
class RequestStop:
    """Ask the trainers to agree on a step, save and end; now, or just before the deadline if they can `train_on`."""

    reason: str
    deadline_unix: float
    train_on: bool = False


@dataclass(frozen=True)
class RequestSave:
    """Ask the trainers for an extra checkpoint."""


@dataclass(frozen=True)
class Kill:
    """End the trainers at once; the generation then has this result."""

    outcome: GenerationOutcome
    message: str


@dataclass(frozen=True)
class Conclude:
    """The generation is over for this node."""

    result: Result


@dataclass(frozen=True)
class RecordRunOutcome:
    """Write outcome.json."""

    verdict: Verdict
    step: int
    message: str


@dataclass(frozen=True)
class Prepare:
    """Fetch the code and the dataset of the wanted run document."""


@dataclass(frozen=True)
class Leave:
    """Say good-bye, complete the life-cycle action where there is one, give the machine back, end the supervisor.

    `run_goes_on`: other machines will want what this one has.
    """

    reason: str
    complete_hook: bool
    shut_down: bool
    run_goes_on: bool = False


Action = Union[Start, Elect, RequestStop, RequestSave, Kill, Conclude, RecordRunOutcome, Prepare, Leave]
