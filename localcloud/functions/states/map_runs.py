"""Map states with distributed processing: each item has a child execution with its own history.

Sources (2026-11): https://docs.aws.amazon.com/step-functions/latest/dg/state-map-distributed.html and
https://docs.aws.amazon.com/step-functions/latest/dg/redrive-map-run.html
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from localcloud.functions.states.model import UNSUCCESSFUL, Execution, MapRun, StateFailed
from localcloud.functions.states.paths import fill

MAP_CONCURRENCY = 10_000


class MapPorts(Protocol):
    """What map runs use."""

    def items(self, execution: Execution, bucket: str, key: str) -> list[Any]:
        """Return the items of a map run. Raises StateFailed."""

    def may_run_map(self, execution: Execution, *, is_redrive: bool) -> None:
        """Check that the execution's role may start or redrive child executions. Raises StateFailed."""


class Executions(Protocol):
    """Changes executions; the engine."""

    def begin(self, execution: Execution) -> None:
        """Start an execution."""

    def resume(self, execution: Execution) -> None:
        """Redrive an execution."""

    def end(self, execution: Execution, status: Any, error: str | None, cause: str | None, output: Any = None) -> None:
        """End an execution."""

    def leave(self, execution: Execution, result: Any) -> None:
        """Finish the current state with a result, or handle its failure."""

    def retry_or_end(self, execution: Execution, error: str, cause: str) -> None:
        """Handle the failure of the current state."""


class MapRuns:
    """Starts, ends and redrives map runs. The engine holds its lock."""

    def __init__(self, engine: Executions, ports: MapPorts, now: Callable[[], float], prefix: str) -> None:
        self._engine = engine
        self._ports = ports
        self._now = now
        self._prefix = prefix
        self.runs: dict[str, MapRun] = {}

    def start(self, execution: Execution, state: Mapping[str, Any], data: Any, context: Mapping[str, Any]) -> None:
        """Start the children of a Map state. Raises StateFailed."""
        now = self._now()
        self._ports.may_run_map(execution, is_redrive=False)
        reader = state["ItemReader"]["Parameters"]
        items = self._ports.items(execution, reader["Bucket"], reader["Key"])
        if "ItemSelector" in state:
            chosen = []
            for index, item in enumerate(items):
                scope = {**context, "Map": {"Item": {"Index": index, "Value": item}}}
                chosen.append(fill(state["ItemSelector"], data, scope))
            items = chosen
        label = state.get("Label") or execution.state.replace(" ", "")
        arn = f"{self._prefix}mapRun:{execution.machine.name}/{label}:{uuid.uuid4()}"
        concurrency = state.get("MaxConcurrency") or MAP_CONCURRENCY
        run = MapRun(arn, label, execution, state, items, deque(range(len(items))), concurrency, started=now)
        execution.map_run = self.runs[arn] = run
        execution.note("MapStateStarted", now, mapStateStartedEventDetails={"length": len(items)})
        execution.note("MapRunStarted", now, mapRunStartedEventDetails={"mapRunArn": arn})
        self._fill(run)

    def _fill(self, run: MapRun) -> None:
        while run.status == "RUNNING" and run.pending and len(run.running) < run.concurrency:
            index = run.pending.popleft()
            run.running.add(index)
            child = run.children.get(index)
            if child is not None:
                self._engine.resume(child)
                continue
            parent, processor, name = run.parent, run.state["ItemProcessor"], str(uuid.uuid4())
            arn = f"{self._prefix}execution:{parent.machine.name}/{run.label}:{name}"
            item = run.items[index]
            child = Execution(
                *(arn, name, parent.machine, processor["States"], processor["StartAt"], item, item),
                *(self._now(), run, index),
            )
            run.children[index] = child
            self._engine.begin(child)
        if run.status == "RUNNING" and not run.running:
            self._succeeded(run)

    def child_ended(self, run: MapRun, child: Execution) -> None:
        """Start the next children, or end the map run."""
        if run.status != "RUNNING" or child.status == "RUNNING":
            return
        run.running.discard(child.index)
        if child.status == "SUCCEEDED":
            self._fill(run)
            return
        # A Map state tolerates no failed child by default.
        self.end(run, "FAILED")
        cause = "The specified tolerated failure threshold was exceeded"
        run.parent.note("MapRunFailed", self._now(), mapRunFailedEventDetails={"error": "", "cause": cause})
        self._engine.retry_or_end(run.parent, "States.ExceedToleratedFailureThreshold", cause)

    def _succeeded(self, run: MapRun) -> None:
        run.status, run.stopped = "SUCCEEDED", self._now()
        run.parent.note("MapRunSucceeded", self._now())
        run.parent.note("MapStateSucceeded", self._now())
        self._engine.leave(run.parent, [run.children[index].output for index in range(len(run.items))])

    def end(self, run: MapRun, status: Any) -> None:
        """End a map run, and abort its running children."""
        run.status, run.stopped = status, self._now()
        for index in sorted(run.running):
            child = run.children[index]
            if child.status == "RUNNING":
                self._engine.end(child, "ABORTED", None, None)
        run.running.clear()

    def resume(self, execution: Execution, run: MapRun) -> None:
        """Redrive the unsuccessful children, and start those that have not started."""
        try:
            self._ports.may_run_map(execution, is_redrive=True)
        except StateFailed as error:
            self._engine.end(execution, "FAILED", error.error, error.cause)
            return
        run.redrives, run.status, run.stopped = run.redrives + 1, "RUNNING", None
        unsuccessful = [index for index, child in run.children.items() if child.status in UNSUCCESSFUL]
        run.pending = deque([*sorted(unsuccessful), *(each for each in run.pending if each not in run.children)])
        details = {"mapRunArn": run.arn, "redriveCount": run.redrives}
        execution.note("MapRunRedriven", self._now(), mapRunRedrivenEventDetails=details)
        self._fill(run)
