"""Which machines a fleet would have had on a trace: at once when there is capacity, or as the run controller asks."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.goodput.traces import Trace
from stacks.functions.run_controller import policy

CONTROLLER_PERIOD_SECONDS = 60.0
"""The clock that wakes the run controller."""


@dataclass
class Machine:
    """One instance.

    Attributes:
        launched_seconds: when its launch was granted.
        lost_seconds: when the trace no longer has it; the end of the record if it outlives that.
        outlives: whether the record ends before the machine.
    """

    launched_seconds: float
    lost_seconds: float = 0.0
    outlives: bool = False


@dataclass
class _Fleet:
    """Machines so far. The one that is lost is the one that has been there longest: a trace does not say which."""

    running: list[Machine] = field(default_factory=list)
    all: list[Machine] = field(default_factory=list)

    def launch(self, now_seconds: float) -> None:
        machine = Machine(now_seconds)
        self.running.append(machine)
        self.all.append(machine)

    def lose(self, now_seconds: float) -> None:
        self.running.pop(0).lost_seconds = now_seconds

    def close(self, now_seconds: float) -> list[Machine]:
        for machine in self.running:
            machine.lost_seconds, machine.outlives = now_seconds, True
        return self.all


def taken_at_once(trace: Trace, nodes: int) -> list[Machine]:
    """Machines of a fleet of up to ``nodes`` that is given whatever there is, the moment it is there."""
    fleet = _Fleet()
    for now, count in trace.changes():
        while len(fleet.running) > count:
            fleet.lose(now)
        while len(fleet.running) < min(count, nodes):
            fleet.launch(now)
    return fleet.close(trace.seconds)


def taken_by_controller(trace: Trace, nodes: int, min_nodes: int, gang_timeout_seconds: float) -> list[Machine]:
    """Machines of a fleet that the run controller's own policy sizes, with this one zone to choose from.

    The group launches the moment that capacity and a wish for it meet; the controller looks once a minute and at every
    loss.
    """
    settings = policy.Settings(("subnet",), False, gang_timeout_seconds, boot_failure_limit=1 << 30)
    run = policy.Run("run", "digest", nodes, min_nodes)
    memory, desired = policy.Memory(), 0
    fleet = _Fleet()
    changes = dict(trace.changes())
    ticks = (number * CONTROLLER_PERIOD_SECONDS for number in range(int(trace.seconds // CONTROLLER_PERIOD_SECONDS)))
    count = 0
    for now in sorted({*changes, *ticks}):
        count = changes.get(now, count)
        while len(fleet.running) > count:
            fleet.lose(now)
        instances = tuple(policy.Instance(str(id(machine)), "InService") for machine in fleet.running)
        group = policy.Group(desired, nodes, ("subnet",), "1", instances)
        heard_from = frozenset(instance.instance_id for instance in instances)
        decision = policy.decide(policy.Situation(now, settings, run, None, group, heard_from, frozenset(), memory))
        memory = decision.memory
        for action in decision.actions:
            if isinstance(action, policy.Resize):
                desired = action.desired
        while len(fleet.running) > desired:
            fleet.lose(now)
        while len(fleet.running) < min(count, desired):
            fleet.launch(now)
    return fleet.close(trace.seconds)
