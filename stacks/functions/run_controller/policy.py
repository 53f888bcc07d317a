"""Decides what the fleet should be. Pure: a situation in, actions and the next memory out; no clock, no AWS.

The same function serves the Lambda function and simulations on spot traces.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Mapping, Optional, Sequence, Tuple, Union

FINAL_OUTCOMES = ("finished", "failed", "bad_configuration")


@dataclass(frozen=True)
class Run:
    """The run document, as far as it bears on the fleet."""

    digest: str
    nodes: int
    min_nodes: int


@dataclass(frozen=True)
class Fleet:
    """The group as it is: its size, its machines (id -> life-cycle state), the subnets that it launches into."""

    desired: int
    instances: Mapping[str, str]
    subnets: Tuple[str, ...]

    def in_service(self) -> Tuple[str, ...]:
        """Return the machines that count."""
        return tuple(sorted(one for one, state in self.instances.items() if state == "InService"))


@dataclass(frozen=True)
class Memory:
    """What the controller keeps between its wakings.

    `incomplete_since` is when the gang last stopped being whole; `seen` are machines of the group that have not yet given
    a heart-beat; `released` are machines whose end the controller itself wanted.
    """

    run_digest: str = ""
    attempt: int = 0
    subnet_index: int = 0
    incomplete_since: Optional[float] = None
    is_giving_up: bool = False
    seen: Tuple[str, ...] = ()
    released: Tuple[str, ...] = ()
    boot_failures: int = 0
    stopped_because: Optional[str] = None


@dataclass(frozen=True)
class Settings:
    """How the deployment wants it; times in seconds."""

    subnets: Tuple[str, ...]
    one_subnet_at_a_time: bool
    gang_timeout_seconds: float
    boot_failure_limit: int


@dataclass(frozen=True)
class Situation:
    """All that a decision rests on. `outcome` is (run digest, outcome) of the last run that ended."""

    now: float
    run: Optional[Run]
    outcome: Optional[Tuple[str, str]]
    fleet: Fleet
    heartbeats: Tuple[str, ...] = ()
    interrupted: Tuple[str, ...] = ()
    memory: Memory = field(default_factory=Memory)


@dataclass(frozen=True)
class SetDesired:
    """Make the fleet this large."""

    nodes: int
    reason: str


@dataclass(frozen=True)
class UseSubnets:
    """Launch into these subnets from now on; only decided at zero machines."""

    subnets: Tuple[str, ...]


@dataclass(frozen=True)
class Detach:
    """Take machines out of the group, which launches their replacements at once."""

    instances: Tuple[str, ...]


Action = Union[SetDesired, UseSubnets, Detach]


@dataclass(frozen=True)
class Decision:
    """What to do now, and what to remember."""

    actions: Sequence[Action]
    memory: Memory


def decide(situation: Situation, settings: Settings) -> Decision:
    """Return what the fleet needs now. Deciding twice on the same situation changes nothing more."""
    run, fleet = situation.run, situation.fleet
    memory = _noted(situation, settings)
    if run is None:
        return _at_zero(fleet, memory, "there is no run document")
    if situation.outcome is not None and situation.outcome[0] == run.digest:
        if situation.outcome[1] in FINAL_OUTCOMES:
            return _at_zero(fleet, memory, f"the run has ended: {situation.outcome[1]}")
    if memory.stopped_because is not None:
        return _at_zero(fleet, memory, memory.stopped_because)
    if memory.is_giving_up:
        if fleet.instances:
            return _at_zero(fleet, memory, "the attempt was given up")
        memory = replace(memory, is_giving_up=False, attempt=memory.attempt + 1, incomplete_since=situation.now)
    interrupted = tuple(sorted(set(situation.interrupted) & set(fleet.in_service())))
    if interrupted:
        memory = replace(memory, released=_merged(memory.released, interrupted))
        return Decision([Detach(interrupted)], memory)
    if fleet.desired != run.nodes:
        return _start(situation, settings, memory, run)
    return _held(situation, settings, memory, run)


def _noted(situation: Situation, settings: Settings) -> Memory:
    """Return the memory with what the situation shows: a new run, machines that came, machines that failed to boot."""
    memory = situation.memory
    digest = situation.run.digest if situation.run is not None else ""
    if digest != memory.run_digest:
        memory = Memory(run_digest=digest, subnet_index=memory.subnet_index, seen=memory.seen, released=memory.released)
    present = set(situation.fleet.instances)
    alive = set(situation.heartbeats)
    lost = set(memory.seen) - present - alive - set(memory.released) - set(situation.interrupted)
    failures = memory.boot_failures + len(lost)
    stopped = memory.stopped_because
    if failures >= settings.boot_failure_limit and stopped is None:
        stopped = f"{failures} machines ended before their first heart-beat; mend the image or the config, then deploy"
    return replace(
        memory,
        seen=tuple(sorted(present - alive)),
        released=tuple(sorted(set(memory.released) & present)),
        boot_failures=failures,
        stopped_because=stopped,
    )


def _at_zero(fleet: Fleet, memory: Memory, reason: str) -> Decision:
    memory = replace(memory, incomplete_since=None, released=_merged(memory.released, tuple(fleet.instances)))
    return Decision([SetDesired(0, reason)] if fleet.desired else [], memory)


def _start(situation: Situation, settings: Settings, memory: Memory, run: Run) -> Decision:
    """Size the fleet for the run; a gang that lives in one subnet starts in the one whose turn it is."""
    actions: list[Action] = []
    wanted = settings.subnets
    if settings.one_subnet_at_a_time:
        wanted = (settings.subnets[memory.subnet_index % len(settings.subnets)],)
    if not situation.fleet.instances and situation.fleet.subnets != wanted:
        actions.append(UseSubnets(wanted))
    actions.append(SetDesired(run.nodes, "the run needs its machines"))
    return Decision(actions, replace(memory, incomplete_since=situation.now))


def _held(situation: Situation, settings: Settings, memory: Memory, run: Run) -> Decision:
    """Watch over a fleet of the right size: whole is well; too small for too long is given up."""
    in_service = len(situation.fleet.in_service())
    if in_service >= run.nodes:
        return Decision([], replace(memory, incomplete_since=None))
    since = memory.incomplete_since
    if since is None:
        return Decision([], replace(memory, incomplete_since=situation.now))
    if in_service >= run.min_nodes or situation.now - since < settings.gang_timeout_seconds:
        return Decision([], memory)
    waited = f"{in_service} of {run.nodes} machines after {situation.now - since:.0f} s"
    memory = replace(
        memory,
        is_giving_up=True,
        subnet_index=memory.subnet_index + 1,
        incomplete_since=None,
        released=_merged(memory.released, tuple(situation.fleet.instances)),
    )
    return Decision([SetDesired(0, f"{waited}: trying another zone")], memory)


def _merged(first: Tuple[str, ...], second: Tuple[str, ...]) -> Tuple[str, ...]:
    return tuple(sorted({*first, *second}))
