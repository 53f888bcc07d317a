"""Replays the life of a gang on a fleet's machines and adds up what of it was training that counted.

The gang follows the rules of the supervisors: it forms when all nodes are there, or with those that are when the gang
time-out has passed; a loss ends the generation, and its survivors go on at once; they grow only to be whole.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from benchmarks.goodput.machines import Machine
from bootstrap.supervise.decide import NOTICE_MARGIN_SECONDS, NOTICE_SECONDS
from training.stopping import last_save_seconds

STEP_SECONDS = 1.0
"""Of a training step: what a gang needs to agree on the last one."""


@dataclass(frozen=True)
class SavePolicy:
    """How a run saves.

    Attributes:
        name: for the table.
        blocked_seconds: training lost per save: the standstill, and what steps take longer meanwhile.
        durable_seconds: from the wish to the commit.
        interval_seconds: from the mean time between losses, in seconds, to the time between two saves.
        uses_notice: whether it saves when the notice comes.
    """

    name: str
    blocked_seconds: float
    durable_seconds: float
    interval_seconds: Callable[[float], float]
    uses_notice: bool

    @property
    def seconds_before_loss(self) -> float:
        """How long before its end a machine stops training; at the notice where that leaves no time for two saves."""
        reserve_seconds = last_save_seconds(self.durable_seconds, STEP_SECONDS)
        trains_on = 2 * reserve_seconds < NOTICE_SECONDS - NOTICE_MARGIN_SECONDS
        return NOTICE_MARGIN_SECONDS + reserve_seconds if trains_on else NOTICE_SECONDS


@dataclass(frozen=True)
class Conditions:
    """What the machines and the gang are given.

    Attributes:
        nodes: of the whole gang.
        min_nodes: fewest that may train.
        restart_seconds: from a granted launch to the first step: boot, staging, restore.
        regroup_seconds: from the end of a generation to the next one's first step, on machines that are up.
        gang_timeout_seconds: how long a gang that is not whole waits for the rest.
        drop_is_notice: whether a drop in the trace is the notice, so that the two minutes in which the machine lives on
            are no available time, and nothing trained in them counts; or the end.
    """

    nodes: int
    min_nodes: int
    restart_seconds: float
    regroup_seconds: float
    gang_timeout_seconds: float
    drop_is_notice: bool


@dataclass
class Account:
    """Node-seconds: what they went into."""

    trained: float = 0.0
    saving: float = 0.0
    redone: float = 0.0
    losses: int = 0


@dataclass
class _Gang:
    conditions: Conditions
    saves: SavePolicy
    interval_seconds: float
    account: Account = field(default_factory=Account)
    ready: set[int] = field(default_factory=set)
    members: frozenset[int] = frozenset()
    stepping_since: float = 0.0
    waiting_since: float | None = None
    survivors: bool = False

    def join(self, machine: int, now: float) -> None:
        self.ready.add(machine)
        if not self.members:
            # The first node to be ready pays no more than its own start: its trainers start with it.
            self._form_if_possible(now, 0.0 if len(self.ready) == 1 else self.conditions.regroup_seconds)
        elif len(self.ready) >= self.conditions.nodes > len(self.members):
            self._end(now, orderly=True)
            self._form_if_possible(now + self.saves.durable_seconds, self.conditions.regroup_seconds)

    def leave(self, machine: int, now: float) -> None:
        self.ready.discard(machine)
        self.survivors = self.survivors and bool(self.ready)
        if machine in self.members:
            self.account.losses += 1
            orderly = self.saves.uses_notice
            trained_on = (
                orderly and not self.conditions.drop_is_notice and self.saves.seconds_before_loss < NOTICE_SECONDS
            )
            self._end(now, orderly, notice_saves=int(trained_on))
            self._form_if_possible(
                now + (self.saves.durable_seconds if orderly else 0.0), self.conditions.regroup_seconds
            )

    def time_out(self, now: float) -> None:
        if not self.members and self.waiting_since is not None:
            self._form_if_possible(now, self.conditions.regroup_seconds)

    def timeout_at(self) -> float | None:
        if self.members or self.waiting_since is None or len(self.ready) < self.conditions.min_nodes:
            return None
        return self.waiting_since + self._patience_seconds()

    def finish(self, now: float) -> None:
        """The record ends here; what is not saved yet is not lost."""
        if self.members:
            elapsed = max(0.0, now - self.stepping_since)
            saving = self._saves_begun(elapsed) * self.saves.blocked_seconds
            self.account.saving += saving * len(self.members)
            self.account.trained += max(0.0, elapsed - saving) * len(self.members)

    def _form_if_possible(self, now: float, delay_seconds: float) -> None:
        conditions = self.conditions
        if self.waiting_since is None:
            self.waiting_since = now
        whole = len(self.ready) >= conditions.nodes
        patient = now - self.waiting_since >= self._patience_seconds() - 1e-6
        if not self.ready or not (whole or (patient and len(self.ready) >= conditions.min_nodes)):
            return
        self.members, self.waiting_since = frozenset(self.ready), None
        self.stepping_since = now + delay_seconds

    def _patience_seconds(self) -> float:
        """Survivors go on at once; the first gang waits to be whole."""
        return 0.0 if self.survivors else self.conditions.gang_timeout_seconds

    def _saves_begun(self, elapsed: float) -> int:
        return int(elapsed // self.interval_seconds) if math.isfinite(self.interval_seconds) else 0

    def _end(self, now: float, orderly: bool, notice_saves: int = 0) -> None:
        """End a generation; ``orderly``: with a save of its last step, otherwise with the newest that is durable."""
        elapsed = max(0.0, now - self.stepping_since)
        saving = (self._saves_begun(elapsed) + notice_saves) * self.saves.blocked_seconds
        redone = 0.0
        if not orderly:
            durable = self._saves_begun(max(0.0, elapsed - self.saves.durable_seconds))
            redone = elapsed - durable * self.interval_seconds if durable else elapsed
            saving = durable * self.saves.blocked_seconds
        self.account.saving += saving * len(self.members)
        self.account.redone += redone * len(self.members)
        self.account.trained += max(0.0, elapsed - redone - saving) * len(self.members)
        self.survivors = bool(self.members & self.ready)
        self.members = frozenset()


def replay(machines: Iterable[Machine], end_seconds: float, conditions: Conditions, saves: SavePolicy) -> Account:
    """Return what the machines' time went into.

    Args:
        machines: of the fleet.
        end_seconds: of the record.
        conditions: of the gang.
        saves: how it saves.
    """
    fleet = list(machines)
    events: list[tuple[float, int, int]] = []
    for number, machine in enumerate(fleet):
        told = machine.lost_seconds
        if saves.uses_notice and not conditions.drop_is_notice and not machine.outlives:
            told = max(machine.launched_seconds, told - saves.seconds_before_loss)
        ready = machine.launched_seconds + conditions.restart_seconds
        if ready < told:
            events.append((ready, 1, number))
            if not machine.outlives:
                events.append((told, 0, number))
    gang = _Gang(conditions, saves, saves.interval_seconds(_mean_seconds_between_losses(fleet)))
    heapq.heapify(events)
    while events:
        timeout = gang.timeout_at()
        if timeout is not None and timeout <= events[0][0]:
            gang.time_out(timeout)
            continue
        now, joins, number = heapq.heappop(events)
        if joins:
            gang.join(number, now)
        else:
            gang.leave(number, now)
    timeout = gang.timeout_at()
    if timeout is not None and timeout < end_seconds:
        gang.time_out(timeout)
    gang.finish(end_seconds)
    return gang.account


def _mean_seconds_between_losses(machines: list[Machine]) -> float:
    lived = sum(machine.lost_seconds - machine.launched_seconds for machine in machines)
    losses = sum(not machine.outlives for machine in machines)
    return lived / losses if losses else math.inf


def notice_suffices(durable_seconds: float) -> bool:
    """Whether a save begun at the notice is durable before the machine is taken."""
    return durable_seconds <= NOTICE_SECONDS - NOTICE_MARGIN_SECONDS


def young_interval_seconds(blocked_seconds: float, seconds_between_losses: float) -> float:
    """Time between saves that loses least, to first order.

    Source: Young 1974, https://doi.org/10.1145/361147.361115.
    """
    return math.sqrt(2.0 * blocked_seconds * seconds_between_losses)
