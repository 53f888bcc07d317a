"""Replays a gang on a fleet's instances, and accounts for its time.

The gang follows the supervisors' rules. It forms when all nodes are ready, or from the nodes that are ready after the
gang timeout. A loss ends the generation, and the survivors resume immediately. They restart to add nodes only if the
gang becomes complete. With changes in place (`parallel.reform`), the members pause instead, lose no step, and nodes
join as soon as they are ready, or together with nodes that are loading.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from benchmarks.goodput.costs import ChangeCosts
from benchmarks.goodput.machines import Machine
from bootstrap.supervise.decide import NOTICE_MARGIN_SECONDS, NOTICE_SECONDS
from bootstrap.supervise.joins import longest_wait_seconds
from training.loop.last_save import last_save_seconds

LOADING_SECONDS = 5.0
"""Time before a node is ready for which the other supervisors know that it is loading."""
STEP_SECONDS = 1.0
"""Duration of a training step; a gang needs a few steps to agree on its last step."""


@dataclass(frozen=True)
class SavePolicy:
    """A run's save policy.

    Attributes:
        name: name in the table.
        blocked_seconds: training time lost per save, as the blocked time plus the slowdown of steps during the save.
        durable_seconds: time from requesting a save to its commit.
        interval_seconds: function that maps the mean time between losses to the time between saves.
        uses_notice: whether the run saves at the notice.
    """

    name: str
    blocked_seconds: float
    durable_seconds: float
    interval_seconds: Callable[[float], float]
    uses_notice: bool

    @property
    def seconds_before_loss(self) -> float:
        """Time from an instance's last step, or from the notice if two saves take too long, to its termination."""
        reserve_seconds = last_save_seconds(self.durable_seconds, STEP_SECONDS)
        trains_on = 2 * reserve_seconds < NOTICE_SECONDS - NOTICE_MARGIN_SECONDS
        return NOTICE_MARGIN_SECONDS + reserve_seconds if trains_on else NOTICE_SECONDS


@dataclass(frozen=True)
class Conditions:
    """Conditions for a replay.

    Attributes:
        nodes: size of the complete gang.
        min_nodes: minimum size of a gang.
        restart_seconds: time from a launch to the first step, including boot, staging and restore.
        regroup_seconds: time from the end of a generation to the first step of the next one, on running instances.
        gang_timeout_seconds: time that an incomplete gang waits for nodes.
        drop_is_notice: whether a drop in the trace is the notice, so that the two minutes after it count neither as
            available time nor as training. If false, the drop is the termination.
        changes: costs of changes in place; None: every change ends the generation.
    """

    nodes: int
    min_nodes: int
    restart_seconds: float
    regroup_seconds: float
    gang_timeout_seconds: float
    drop_is_notice: bool
    changes: ChangeCosts | None = None


@dataclass
class Account:
    """Node-seconds by use."""

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

    def join(self, machine: int, now: float, loading: int) -> float | None:
        """Add a ready machine; return the time at which to call `admit`, or None.

        Args:
            machine: number of the machine.
            now: time in seconds.
            loading: number of machines that will soon be ready.
        """
        self.ready.add(machine)
        if not self.members:
            # The first ready node has no regroup time: its trainers start with it.
            self._form_if_possible(now, 0.0 if len(self.ready) == 1 else self.conditions.regroup_seconds)
        elif len(self.ready) >= self.conditions.nodes > len(self.members):
            self._end(now, orderly=True)
            self._form_if_possible(now + self.saves.durable_seconds, self.conditions.regroup_seconds)
        return None

    def admit(self, now: float) -> None:
        """Let the ready machines join that have waited for others."""

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
        """End the replay; unsaved steps count as trained."""
        if self.members:
            elapsed = max(0.0, now - self.stepping_since)
            saving = self._saves_begun(elapsed) * self.saves.blocked_seconds
            self.account.saving += saving * len(self.members)
            self.account.trained += max(0.0, elapsed - saving) * len(self.members)

    def _form_if_possible(self, now: float, delay_seconds: float) -> None:
        conditions = self.conditions
        if self.waiting_since is None:
            self.waiting_since = now
        complete = len(self.ready) >= conditions.nodes
        timed_out = now - self.waiting_since >= self._patience_seconds() - 1e-6
        if not self.ready or not (complete or (timed_out and len(self.ready) >= conditions.min_nodes)):
            return
        self.members, self.waiting_since = frozenset(self.ready), None
        self.stepping_since = now + delay_seconds

    def _patience_seconds(self) -> float:
        """Return the time to wait for more nodes: zero for survivors, and the gang timeout for the first gang."""
        return 0.0 if self.survivors else self.conditions.gang_timeout_seconds

    def _saves_begun(self, elapsed: float) -> int:
        return int(elapsed // self.interval_seconds) if math.isfinite(self.interval_seconds) else 0

    def _durable_saves(self, elapsed: float) -> tuple[int, float]:
        """Return the number of durable saves, and the time since the newest of them was requested."""
        durable = self._saves_begun(max(0.0, elapsed - self.saves.durable_seconds))
        return durable, elapsed - durable * self.interval_seconds if durable else elapsed

    def _end(self, now: float, orderly: bool, notice_saves: int = 0) -> None:
        """End a generation. If ``orderly``, save the last step; otherwise, fall back to the newest durable save."""
        elapsed = max(0.0, now - self.stepping_since)
        saving = (self._saves_begun(elapsed) + notice_saves) * self.saves.blocked_seconds
        redone = 0.0
        if not orderly:
            durable, redone = self._durable_saves(elapsed)
            saving = durable * self.saves.blocked_seconds
        self.account.saving += saving * len(self.members)
        self.account.redone += redone * len(self.members)
        self.account.trained += max(0.0, elapsed - redone - saving) * len(self.members)
        self._disband()

    def _disband(self) -> None:
        self.survivors = bool(self.members & self.ready)
        self.members = frozenset()


@dataclass
class _GangInPlace(_Gang):
    """A gang whose members continue from memory when others leave, are lost or join."""

    formed_at: float = 0.0
    joining_since: float | None = None
    trained_since_formed: float = 0.0

    def join(self, machine: int, now: float, loading: int) -> float | None:
        if not self.members:
            return super().join(machine, now, loading)
        self.ready.add(machine)
        if self.joining_since is None:
            self.joining_since = now
        until = self.joining_since + longest_wait_seconds(
            len(self.ready - self.members), len(self.members), self._costs.join_seconds
        )
        if loading and now < until:
            return until
        self.admit(now)
        return None

    def admit(self, now: float) -> None:
        if self.members and self.joining_since is not None:
            self._continue(now, frozenset(self.ready), self._costs.join_seconds)
            self.joining_since = None

    def leave(self, machine: int, now: float) -> None:
        survivors = self.members - {machine}
        if machine not in self.members or len(survivors) < max(1, self.conditions.min_nodes):
            super().leave(machine, now)
            self.joining_since = None if not self.ready - self.members else self.joining_since
            return
        self.ready.discard(machine)
        self.account.losses += 1
        costs = self._costs
        self._continue(now, survivors, costs.leave_seconds if self.saves.uses_notice else costs.loss_seconds)

    def finish(self, now: float) -> None:
        if self.members:
            self._count(now)

    @property
    def _costs(self) -> ChangeCosts:
        assert self.conditions.changes is not None
        return self.conditions.changes

    def _continue(self, now: float, members: frozenset[int], pause_seconds: float) -> None:
        self._count(now)
        self.members = members
        self.stepping_since = max(now, self.stepping_since) + pause_seconds

    def _count(self, now: float) -> None:
        """Account for the time since the last change."""
        elapsed = max(0.0, now - self.stepping_since)
        saving = elapsed * min(1.0, self.saves.blocked_seconds / self.interval_seconds)
        self.account.saving += saving * len(self.members)
        self.account.trained += (elapsed - saving) * len(self.members)
        self.trained_since_formed += (elapsed - saving) * len(self.members)

    def _form_if_possible(self, now: float, delay_seconds: float) -> None:
        super()._form_if_possible(now, delay_seconds)
        if self.members:
            self.formed_at, self.trained_since_formed = self.stepping_since, 0.0

    def _end(self, now: float, orderly: bool, notice_saves: int = 0) -> None:
        """End a generation. Machines leave at their notice, so the save at the notice is the last one."""
        self._count(now)
        if not orderly:
            lasted = max(0.0, now - self.formed_at)
            unsaved = self._durable_saves(lasted)[1]
            redone = self.trained_since_formed * unsaved / lasted if lasted else 0.0
            self.account.trained -= redone
            self.account.redone += redone
        self._disband()


def replay(machines: Iterable[Machine], end_seconds: float, conditions: Conditions, saves: SavePolicy) -> Account:
    """Return how the instances' time is used.

    Args:
        machines: the fleet's instances.
        end_seconds: end of the trace.
        conditions: conditions of the replay.
        saves: save policy.
    """
    fleet = list(machines)
    changes_in_place = conditions.changes is not None and conditions.nodes > 1
    events: list[tuple[float, int, int]] = []  # time, kind (0: leaves, 1: joins, 2: has waited for others), machine
    for number, machine in enumerate(fleet):
        leaves = machine.lost_seconds
        if saves.uses_notice and not conditions.drop_is_notice and not machine.outlives:
            before_loss = saves.seconds_before_loss
            if changes_in_place:  # it leaves at the notice; the others continue
                before_loss = NOTICE_SECONDS
            leaves = max(machine.launched_seconds, leaves - before_loss)
        ready = machine.launched_seconds + conditions.restart_seconds
        if ready < leaves:
            events.append((ready, 1, number))
            if not machine.outlives:
                events.append((leaves, 0, number))
    kind = _GangInPlace if changes_in_place else _Gang
    gang = kind(conditions, saves, saves.interval_seconds(_mean_seconds_between_losses(fleet)))
    joins = sorted(time for time, event, _ in events if event == 1)
    heapq.heapify(events)
    while events:
        timeout = gang.timeout_at()
        if timeout is not None and timeout <= events[0][0]:
            gang.time_out(timeout)
            continue
        now, event, number = heapq.heappop(events)
        if event == 0:
            gang.leave(number, now)
        elif event == 2:
            gang.admit(now)
        else:
            loading = bisect_right(joins, now + LOADING_SECONDS) - bisect_right(joins, now)
            until = gang.join(number, now, loading)
            if until is not None:
                heapq.heappush(events, (until, 2, number))
    timeout = gang.timeout_at()
    if timeout is not None and timeout < end_seconds:
        gang.time_out(timeout)
    gang.finish(end_seconds)
    return gang.account


def _mean_seconds_between_losses(machines: list[Machine]) -> float:
    total = sum(machine.lost_seconds - machine.launched_seconds for machine in machines)
    losses = sum(not machine.outlives for machine in machines)
    return total / losses if losses else math.inf


def notice_suffices(durable_seconds: float) -> bool:
    """Return True if a save that starts at the notice is durable before the termination."""
    return durable_seconds <= NOTICE_SECONDS - NOTICE_MARGIN_SECONDS


def young_interval_seconds(blocked_seconds: float, seconds_between_losses: float) -> float:
    """Return the time between saves that minimizes the lost time, to first order.

    Source: Young 1974, https://doi.org/10.1145/361147.361115.
    """
    return math.sqrt(2.0 * blocked_seconds * seconds_between_losses)
