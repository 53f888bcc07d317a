"""An engine whose tasks run in the test: no functions, no threads, and a clock that the test moves."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from localcloud.functions.states.definition import decode
from localcloud.functions.states.engine import Engine
from localcloud.functions.states.model import Attempt, Execution, Machine


class DryPorts:
    """Keeps the tasks that wait, and the statuses of executions."""

    def __init__(self, items: list[Any]) -> None:
        self.waiting: deque[tuple[Attempt, Mapping[str, Any]]] = deque()
        self.statuses: list[str] = []
        self.stored = items
        self.most_waiting = 0
        self.redrives = 0

    def invoke(self, attempt: Attempt, parameters: Mapping[str, Any]) -> None:
        self.waiting.append((attempt, parameters))
        self.most_waiting = max(self.most_waiting, len(self.waiting))

    def items(self, execution: Execution, bucket: str, key: str) -> list[Any]:
        return self.stored

    def may_run_map(self, execution: Execution, *, is_redrive: bool) -> None:
        self.redrives += is_redrive

    def changed(self, execution: Execution) -> None:
        if execution.parent is None:
            self.statuses.append(execution.status)


class DryEngine:
    """An engine with one state machine."""

    def __init__(self, definition: Mapping[str, Any], items: list[Any] | None = None) -> None:
        self.now = 1_000.0
        self.ports = DryPorts(items or [])
        self.engine = Engine(self.ports, lambda: self.now)
        text = json.dumps(definition)
        arn = "arn:aws:states:us-east-1:123456789012:stateMachine:test"
        self.machine = Machine(arn, "test", text, decode(text), "arn:aws:iam::123456789012:role/test", self.now, "1")

    def start(self, data: Any = None) -> Execution:
        return self.engine.start(self.machine, "one", {} if data is None else data)

    def answer_all(self, answer: Callable[[Attempt, Mapping[str, Any]], None]) -> None:
        """Answer waiting tasks until none waits."""
        while self.ports.waiting:
            answer(*self.ports.waiting.popleft())

    def pass_seconds(self, seconds: float) -> None:
        self.now += seconds
        self.engine.tick()
