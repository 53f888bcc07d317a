"""A fleet's instances on a trace, launched as soon as there is capacity, or when the run controller requests them."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.goodput.traces import Trace
from stacks.functions.run_controller import policy

CONTROLLER_PERIOD_SECONDS = 60.0
"""Period of the run controller's schedule."""


@dataclass
class Machine:
    """An instance.

    Attributes:
        launched_seconds: time of the launch.
        lost_seconds: time of the loss, or of the trace's end if the instance is still running then.
        outlives: whether it is still running when the trace ends.
    """

    launched_seconds: float
    lost_seconds: float = 0.0
    outlives: bool = False


@dataclass
class _Fleet:
    """Instances so far. A trace does not identify the lost instance, so it is assumed to be the oldest."""

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


def launched_at_once(trace: Trace, nodes: int) -> list[Machine]:
    """Return the instances of a fleet of up to ``nodes`` nodes, each launched as soon as there is capacity."""
    fleet = _Fleet()
    for now, count in trace.changes():
        while len(fleet.running) > count:
            fleet.lose(now)
        while len(fleet.running) < min(count, nodes):
            fleet.launch(now)
    return fleet.close(trace.seconds)


def launched_by_controller(trace: Trace, nodes: int, min_nodes: int, gang_timeout_seconds: float) -> list[Machine]:
    """Return the instances of a fleet in one zone, sized by the run controller's policy.

    Instances launch as soon as there is capacity for the desired size. The controller runs once per minute and at each
    loss.
    """
    settings = policy.Settings(("subnet",), False, gang_timeout_seconds, boot_failure_limit=1 << 30)
    run = policy.Run("run", "digest", nodes, min_nodes)
    state, desired = policy.ControllerState(), 0
    fleet = _Fleet()
    changes = dict(trace.changes())
    ticks = (number * CONTROLLER_PERIOD_SECONDS for number in range(int(trace.seconds // CONTROLLER_PERIOD_SECONDS)))
    count = 0
    for now in sorted({*changes, *ticks}):
        count = changes.get(now, count)
        while len(fleet.running) > count:
            fleet.lose(now)
        instances = tuple(policy.Instance(str(id(machine)), "InService") for machine in fleet.running)
        current = policy.FleetState(desired, nodes, ("subnet",), "1", instances)
        heard_from = frozenset(instance.instance_id for instance in instances)
        decision = policy.decide(policy.Situation(now, settings, run, None, current, heard_from, frozenset(), state))
        state = decision.state
        for action in decision.actions:
            if isinstance(action, policy.Resize):
                desired = action.desired
        while len(fleet.running) > desired:
            fleet.lose(now)
        while len(fleet.running) < min(count, desired):
            fleet.launch(now)
    return fleet.close(trace.seconds)
