"""Decides how large the fleet should be and what to do about an interruption: a pure function of what was seen.

Not here: AWS. `handler` gathers a Situation, carries out the actions and keeps the Memory for the next time. Every
decision starts from what is, not from which event woke the controller, so a lost, late or doubled event changes nothing
but the moment. Standard library only: it runs from its Lambda asset, and serves simulations on spot traces as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Union

Phase = Literal["idle", "running", "giving_up", "waiting", "ended", "protected"]
"""idle: nothing to run; running: the fleet should be whole; giving_up: on the way to zero nodes before the next
attempt; waiting: at zero until there is hope of capacity; ended: the run is over; protected: boots fail, so no more."""

LONGEST_WAIT_SECONDS = 1800.0
_PRESENT_STATES = ("Pending", "Pending:Wait", "Pending:Proceed", "InService")


@dataclass(frozen=True)
class Settings:
    """What the deployment says: candidate subnets in order, and the two limits on wasted money."""

    subnets: tuple[str, ...]
    one_subnet_at_a_time: bool
    gang_timeout_seconds: float
    boot_failure_limit: int


@dataclass(frozen=True)
class Run:
    """What should be trained: the run document in brief."""

    name: str
    digest: str
    nodes: int
    min_nodes: int


@dataclass(frozen=True)
class Outcome:
    """How a run ended: finished, failed (for good) or bad_configuration."""

    run_digest: str
    outcome: str


@dataclass(frozen=True)
class Instance:
    """One member of the group, with its life-cycle state as Auto Scaling names it."""

    instance_id: str
    lifecycle_state: str


@dataclass(frozen=True)
class Group:
    """The fleet as it is.

    `surplus` is what it is asked for beyond `desired`, where that is how a back end replaces a machine that AWS takes;
    None where such a machine can be detached instead (an Auto Scaling group).
    """

    desired: int
    maximum: int
    subnets: tuple[str, ...]
    template_version: str
    instances: tuple[Instance, ...]
    surplus: int | None = None

    def present(self) -> tuple[str, ...]:
        """Return the ids of members that are coming or in service."""
        return tuple(item.instance_id for item in self.instances if item.lifecycle_state in _PRESENT_STATES)

    def in_service(self) -> tuple[str, ...]:
        """Return the ids of members in service."""
        return tuple(item.instance_id for item in self.instances if item.lifecycle_state == "InService")


@dataclass(frozen=True)
class Memory:
    """What the controller knows from last time; it is valid for one run document and one launch template version.

    `attempt` counts gangs that were given up; `paid_in_vain` tells that one of this round had machines, which cost
    money for nothing. `since_unix_seconds` is when the gang became too small, None while it is large enough. `booting`
    are members that have not yet sent a heart-beat; one that leaves like that is a boot failure, unless it is
    `excused` because AWS took it; `last_failure` is what the newest of them reported.
    """

    run_digest: str = ""
    template_version: str = ""
    phase: Phase = "idle"
    attempt: int = 0
    paid_in_vain: bool = False
    since_unix_seconds: float | None = None
    retry_unix_seconds: float | None = None
    boot_failures: int = 0
    booting: tuple[str, ...] = ()
    excused: tuple[str, ...] = ()
    last_failure: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Situation:
    """Everything a decision depends on.

    `heard_from` are instances that have written a heart-beat of this run; `interrupted` those whose interruption notice
    woke the controller; `failures` what instances that vanished while booting reported, with the remedy.
    """

    now_unix_seconds: float
    settings: Settings
    run: Run | None
    outcome: Outcome | None
    group: Group
    heard_from: frozenset[str]
    interrupted: frozenset[str]
    memory: Memory
    failures: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Resize:
    """Set the desired capacity and, where given, the subnets (only ever at zero nodes)."""

    desired: int
    subnets: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Detach:
    """Take an interrupted instance out of the group without decrementing: its replacement is launched at once."""

    instance_id: str


@dataclass(frozen=True)
class Surplus:
    """Ask for `count` machines beyond `desired`, ending none: replacements of interrupted ones that still work."""

    desired: int
    count: int


Action = Union[Resize, Detach, Surplus]


@dataclass(frozen=True)
class Decision:
    """What to do now, in this order, and what to remember."""

    actions: tuple[Action, ...]
    memory: Memory


def decide(situation: Situation) -> Decision:
    """Return what to do about the fleet."""
    run = situation.run
    if run is None:
        return _rest(situation, replace(situation.memory, phase="idle", reason="there is no run document"))
    memory = _count_boot_failures(situation, _for_this_run(situation, run))
    outcome = situation.outcome
    if outcome is not None and outcome.run_digest == run.digest:
        return _rest(situation, replace(memory, phase="ended", reason=f"the run ended: {outcome.outcome}"))
    if memory.boot_failures >= situation.settings.boot_failure_limit:
        reason = (
            f"{memory.boot_failures} nodes ended before their first heart-beat; stopped until the run document or the "
            f"launch template changes. The last: {memory.last_failure}"
        )
        return _rest(situation, replace(memory, phase="protected", reason=reason))
    if memory.phase == "giving_up":
        return _finish_giving_up(situation, run, memory)
    if memory.phase == "waiting":
        return _wait(situation, run, memory)
    return _keep_whole(situation, run, memory)


def _for_this_run(situation: Situation, run: Run) -> Memory:
    """Return the memory, or a new one when it is of another run document or launch template."""
    memory, version = situation.memory, situation.group.template_version
    if (memory.run_digest, memory.template_version) == (run.digest, version):
        return memory
    return Memory(run_digest=run.digest, template_version=version)


def _count_boot_failures(situation: Situation, memory: Memory) -> Memory:
    present = set(situation.group.present())
    excused = set(memory.excused) | situation.interrupted
    heard = situation.heard_from
    failed = [name for name in memory.booting if name not in present and name not in heard and name not in excused]
    last_failure = memory.last_failure
    for name in failed:
        last_failure = situation.failures.get(name, f"{name} left no report; see {system_log(name)}")
    is_whole = memory.phase == "running" and _is_gang(situation, present & heard)
    return replace(
        memory,
        boot_failures=0 if is_whole else memory.boot_failures + len(failed),
        booting=tuple(name for name in memory.booting if name in present and name not in heard),
        excused=tuple(sorted(excused & {item.instance_id for item in situation.group.instances})),
        last_failure="" if is_whole else last_failure,
    )


def system_log(instance_id: str) -> str:
    """Return how a person reads what a machine wrote to its console, which EC2 keeps for an hour after its end."""
    return f"`aws ec2 get-console-output --latest --instance-id {instance_id}`"


def vanished(memory: Memory, group: Group) -> tuple[str, ...]:
    """Return the members that were booting at the last look and are no longer there."""
    present = group.present()
    return tuple(name for name in memory.booting if name not in present)


def _is_gang(situation: Situation, instances: Iterable[str]) -> bool:
    """Tell whether these instances are enough to train."""
    return situation.run is not None and len(set(instances)) >= situation.run.min_nodes


def _rest(situation: Situation, memory: Memory) -> Decision:
    """Take the fleet to zero, or leave it there."""
    actions = () if situation.group.desired == 0 else (Resize(0),)
    quiet = replace(memory, since_unix_seconds=None, retry_unix_seconds=None, booting=(), excused=())
    return Decision(actions, quiet)


def _keep_whole(situation: Situation, run: Run, memory: Memory) -> Decision:
    group, now = situation.group, situation.now_unix_seconds
    target = min(run.nodes, group.maximum)
    if group.desired == 0 and not group.instances:
        return _start(situation, run, memory, _first_subnets(situation))
    lost = _lost(situation, memory)
    actions = _replacements(group, lost, target)
    if group.desired != target:
        # Nodes that leave because the gang shrinks are not boot failures: watch from the next time on.
        memory = replace(memory, phase="running", booting=(), since_unix_seconds=now, reason=f"{target} nodes wanted")
        return Decision((*actions, Resize(target)), memory)
    serving = set(group.in_service()) - set(lost)
    since = None if _is_gang(situation, serving) else _since(memory, now)
    if not group.instances and _tries(situation) == 1:
        # Nothing is paid for: ask on. The gang's patience begins with its first machine.
        memory = replace(
            memory, phase="running", since_unix_seconds=now, booting=(), reason="no capacity yet: asking on"
        )
        return Decision(actions, memory)
    if since is not None and now - since >= situation.settings.gang_timeout_seconds:
        reason = f"fewer than {run.min_nodes} nodes for {now - since:.0f} s: attempt {memory.attempt + 1} given up"
        memory = replace(memory, phase="giving_up", attempt=memory.attempt + 1, since_unix_seconds=None, reason=reason)
        paid = memory.paid_in_vain or bool(group.instances)
        return Decision((*actions, Resize(0)), replace(memory, booting=(), paid_in_vain=paid))
    booting = set(group.present()) - situation.heard_from - set(lost)
    reason = f"{len(serving)} of {run.nodes} nodes in service"
    memory = replace(memory, phase="running", since_unix_seconds=since, booting=tuple(sorted(booting)), reason=reason)
    return Decision(actions, memory)


def _lost(situation: Situation, memory: Memory) -> list[str]:
    """Return the members that AWS takes: those of this notice, and those of earlier ones that could not be detached."""
    known = situation.interrupted if situation.group.surplus is None else situation.interrupted | set(memory.excused)
    return sorted(name for name in situation.group.in_service() if name in known)


def _replacements(group: Group, lost: list[str], target: int) -> tuple[Action, ...]:
    """Return how lost members are replaced while they still work, and how that ends once the others are there."""
    if group.surplus is None:
        return tuple(Detach(name) for name in lost)
    staying = len(set(group.present()) - set(lost))
    wanted = min(len(lost), max(0, target - staying))
    if group.desired != target or wanted == group.surplus:
        return ()
    return (Surplus(target, wanted),)


def _since(memory: Memory, now_unix_seconds: float) -> float:
    return now_unix_seconds if memory.since_unix_seconds is None else memory.since_unix_seconds


def _tries(situation: Situation) -> int:
    """Return how many places there are to try, one after the other."""
    return len(situation.settings.subnets) if situation.settings.one_subnet_at_a_time else 1


def _finish_giving_up(situation: Situation, run: Run, memory: Memory) -> Decision:
    """At zero nodes go to the next subnet; after a round that cost money for nothing, wait first."""
    group, settings = situation.group, situation.settings
    if group.desired != 0:
        return Decision((Resize(0),), memory)
    if group.instances:
        return Decision((), memory)
    tries = _tries(situation)
    if memory.attempt % tries or not memory.paid_in_vain:
        return _start(situation, run, memory, _next_subnets(situation))
    rounds = memory.attempt // tries
    wait_seconds = min(settings.gang_timeout_seconds * 2 ** min(rounds - 1, 16), LONGEST_WAIT_SECONDS)
    reason = f"no capacity in {memory.attempt} attempts: the next one in {wait_seconds:.0f} s"
    retry = situation.now_unix_seconds + wait_seconds
    return Decision((), replace(memory, phase="waiting", retry_unix_seconds=retry, reason=reason))


def _wait(situation: Situation, run: Run, memory: Memory) -> Decision:
    if situation.now_unix_seconds < (memory.retry_unix_seconds or 0.0) or situation.group.instances:
        return Decision(() if situation.group.desired == 0 else (Resize(0),), memory)
    return _start(situation, run, memory, _next_subnets(situation))


def _start(situation: Situation, run: Run, memory: Memory, subnets: tuple[str, ...]) -> Decision:
    target = min(run.nodes, situation.group.maximum)
    memory = replace(
        memory,
        phase="running",
        since_unix_seconds=situation.now_unix_seconds,
        retry_unix_seconds=None,
        booting=(),
        paid_in_vain=memory.paid_in_vain and memory.attempt % _tries(situation) != 0,
        reason=f"attempt {memory.attempt + 1} starts with {target} nodes in {', '.join(subnets)}",
    )
    return Decision((Resize(target, None if subnets == situation.group.subnets else subnets),), memory)


def _first_subnets(situation: Situation) -> tuple[str, ...]:
    """Return where a run starts: where the group is, if that is still a candidate."""
    settings, current = situation.settings, situation.group.subnets
    if not settings.one_subnet_at_a_time:
        return current if set(current) == set(settings.subnets) else settings.subnets
    return current if len(current) == 1 and current[0] in settings.subnets else settings.subnets[:1]


def _next_subnets(situation: Situation) -> tuple[str, ...]:
    """Return where the next attempt goes: the candidate after the group's present one."""
    settings, current = situation.settings, situation.group.subnets
    if not settings.one_subnet_at_a_time or len(current) != 1 or current[0] not in settings.subnets:
        return _first_subnets(situation)
    position = settings.subnets.index(current[0]) + 1
    return (settings.subnets[position % len(settings.subnets)],)
