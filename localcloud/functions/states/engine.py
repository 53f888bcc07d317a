"""Runs executions: enters states, starts tasks and map runs, retries, and redrives from the state that failed.

All changes happen under one lock. Tasks run elsewhere: `Ports.invoke` starts one, and its end is reported to the
engine. `tick` handles the times at which retries are due and tasks time out.

Sources (2026-11): https://states-language.net/spec.html and
https://docs.aws.amazon.com/step-functions/latest/dg/redrive-executions.html (a redrive keeps the definition, the input
and the history, and resets the retries) and .../redrive-map-run.html (it restarts the unsuccessful children).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from localcloud.functions.states.choices import choose
from localcloud.functions.states.definition import INVOKE_WITH_TOKEN
from localcloud.functions.states.map_runs import MapPorts, MapRuns
from localcloud.functions.states.model import UNSUCCESSFUL, Attempt, Execution, Machine, StateFailed, new_token, text_of
from localcloud.functions.states.paths import PathNotFound, fill, follow, place

PAYLOAD_BYTES = 256 * 1024
"""Maximum size of a state's input or output, and the maximum number of events in a history below. Source (2026-11):
https://docs.aws.amazon.com/step-functions/latest/dg/service-quotas.html"""
HISTORY_EVENTS = 25_000
NEVER = float("inf")


class Ports(MapPorts, Protocol):
    """What executions use: functions, objects, permissions and events."""

    def invoke(self, attempt: Attempt, parameters: Mapping[str, Any]) -> None:
        """Start a task. Its end is reported with `Engine.returned` or `Engine.failed`."""

    def changed(self, execution: Execution) -> None:
        """An execution has started, ended or been redriven."""


class TokenClosed(Exception):
    """The task with this token has ended."""


class UnknownToken(Exception):
    """No task has this token."""


class NotRedrivable(Exception):
    """The execution cannot be redriven. The message states the reason."""


class Engine:
    """The executions of a cloud.

    Args:
        ports: What executions use.
        now: Returns the Unix time.
        retry_seconds: Returns the wait before a retry for the wait that the definition requests.
        prefix: Start of the ARNs, up to and including the account's colon.
    """

    def __init__(
        self,
        ports: Ports,
        now: Callable[[], float],
        *,
        retry_seconds: Callable[[float], float] = lambda seconds: seconds,
        prefix: str = "arn:aws:states:us-east-1:123456789012:",
    ) -> None:
        self._ports = ports
        self._now = now
        self._retry_seconds = retry_seconds
        self._prefix = prefix
        self.lock = threading.RLock()
        self._work: deque[Callable[[], None]] = deque()
        self._is_draining = False
        self._maps = MapRuns(self, ports, now, prefix)
        self.map_runs = self._maps.runs  # by ARN, also after their state has ended
        self.executions: dict[str, Execution] = {}
        self._tokens: dict[str, Attempt] = {}
        self._waiting: set[str] = set()  # executions with a deadline, by ARN

    # Requests --------------------------------------------------------------------------------------------------------

    def start(self, machine: Machine, name: str, data: Any) -> Execution:
        """Start an execution."""
        arn = f"{self._prefix}execution:{machine.name}:{name}"
        definition = machine.definition
        execution = Execution(arn, name, machine, definition["States"], definition["StartAt"], data, data, self._now())
        with self.lock:
            self.begin(execution)
            self._drain()
        return execution

    def stop(self, execution: Execution, error: str | None, cause: str | None) -> None:
        """Abort an execution and its children. An execution that has ended does not change."""
        with self.lock:
            if execution.status == "RUNNING":
                self.end(execution, "ABORTED", error, cause)
                self._drain()

    def redrive(self, execution: Execution) -> None:
        """Continue an unsuccessful execution from the state that failed.

        Raises:
            NotRedrivable: The execution is running, has succeeded or belongs to a map run.
        """
        with self.lock:
            if execution.status not in UNSUCCESSFUL or execution.parent is not None:
                raise NotRedrivable(f"Execution is {execution.status} and cannot be redriven")
            self.resume(execution)
            self._drain()

    def succeed(self, token: str, output: Any) -> None:
        """Complete a task. Raises TokenClosed or UnknownToken."""
        with self.lock:
            attempt = self._open(token)
            self._close(attempt)
            self._work.append(lambda: self._task_succeeded(attempt, output))
            self._drain()

    def fail(self, token: str, error: str, cause: str) -> None:
        """Fail a task. Raises TokenClosed or UnknownToken."""
        with self.lock:
            self._fail(self._open(token), error, cause)
            self._drain()

    def heartbeat(self, token: str) -> None:
        """Restart the heartbeat time of a task. Raises TokenClosed or UnknownToken."""
        with self.lock:
            attempt = self._open(token)
            seconds = self._state(attempt.execution).get("HeartbeatSeconds")
            attempt.heartbeat_deadline = self._now() + seconds if seconds else NEVER

    def returned(self, attempt: Attempt, output: Mapping[str, Any]) -> None:
        """The function of a task has returned. A task with a token continues to wait."""
        with self.lock:
            if not attempt.is_open:
                return
            if attempt.has_token:
                attempt.execution.note("TaskSubmitted", self._now(), taskSubmittedEventDetails=dict(_RESOURCE))
            else:
                self._close(attempt)
                self._work.append(lambda: self._task_succeeded(attempt, output))
                self._drain()

    def failed(self, attempt: Attempt, error: str, cause: str) -> None:
        """The function of a task has failed."""
        with self.lock:
            if attempt.is_open:
                self._fail(attempt, error, cause)
                self._drain()

    def tick(self) -> None:
        """Start due retries and time out tasks."""
        with self.lock:
            now = self._now()
            for execution in [self.executions[arn] for arn in self._waiting]:
                attempt = execution.attempt
                if execution.wake is not None and execution.wake <= now:
                    execution.wake = None
                    self._work.append(lambda one=execution: self._run(one))  # type: ignore[misc]
                elif attempt is not None and min(attempt.deadline, attempt.heartbeat_deadline) <= now:
                    self._time_out(attempt)
            self._drain()
            self._waiting = {arn for arn in self._waiting if _due(self.executions[arn]) != NEVER}

    # Executions ------------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        if self._is_draining:
            return
        self._is_draining = True
        try:
            while self._work:
                self._work.popleft()()
        finally:
            self._is_draining = False

    def _state(self, execution: Execution) -> Mapping[str, Any]:
        state: Mapping[str, Any] = execution.states[execution.state]
        return state

    def begin(self, execution: Execution) -> None:
        """Start an execution; for map runs."""
        self.executions[execution.arn] = execution
        details = {"input": text_of(execution.input), "roleArn": execution.role_arn}
        execution.note("ExecutionStarted", self._now(), executionStartedEventDetails=details)
        self._ports.changed(execution)
        self._work.append(lambda: self._enter(execution, execution.state, execution.data))

    def _enter(self, execution: Execution, name: str, data: Any) -> None:
        if execution.status != "RUNNING":
            return
        execution.state, execution.data, execution.retries, execution.map_run = name, data, {}, None
        kind = self._state(execution)["Type"]
        details = {"name": name, "input": text_of(data)}
        execution.note(f"{kind}StateEntered", self._now(), stateEnteredEventDetails=details)
        self._run(execution)

    def _run(self, execution: Execution) -> None:
        """Run the current state."""
        if execution.status != "RUNNING":
            return
        state = self._state(execution)
        with self._failure_handled(execution):
            if len(execution.history) > HISTORY_EVENTS:
                raise StateFailed("States.Runtime", f"The execution reached {HISTORY_EVENTS} history events")
            path, context = state.get("InputPath", "$"), execution.context()
            data = {} if path is None else follow(path, execution.data, context)
            self._run_kind(execution, state, data, context)

    @contextmanager
    def _failure_handled(self, execution: Execution) -> Iterator[None]:
        """Retry the current state if it fails, or fail the execution."""
        try:
            yield
        except PathNotFound as error:
            self.end(execution, "FAILED", "States.Runtime", str(error))
        except StateFailed as error:
            self.retry_or_end(execution, error.error, error.cause)

    def _run_kind(self, execution: Execution, state: Mapping[str, Any], data: Any, context: Mapping[str, Any]) -> None:
        kind = state["Type"]
        if kind == "Pass":
            default = fill(state["Parameters"], data, context) if "Parameters" in state else data
            self.leave(execution, state.get("Result", default))
        elif kind == "Choice":
            self._choose(execution, state, data, context)
        elif kind == "Succeed":
            self.leave(execution, data)
        elif kind == "Fail":
            self.end(execution, "FAILED", state.get("Error"), state.get("Cause"))
        elif kind == "Task":
            self._start_task(execution, state, data)
        else:
            self._maps.start(execution, state, data, context)

    def _choose(self, execution: Execution, state: Mapping[str, Any], data: Any, context: Mapping[str, Any]) -> None:
        chosen = choose(state, data, context)
        if chosen is None:
            raise StateFailed("States.NoChoiceMatched", f"No choice of {execution.state} matches")
        self._exit(execution, data)
        self._work.append(lambda: self._enter(execution, chosen, data))

    def leave(self, execution: Execution, result: Any) -> None:
        """Finish the current state with a result, or handle its failure."""
        with self._failure_handled(execution):
            output = self._output(execution, result)
            self._exit(execution, output)
            state = self._state(execution)
            if state.get("End") or state["Type"] == "Succeed":
                self.end(execution, "SUCCEEDED", None, None, output)
            else:
                self._work.append(lambda: self._enter(execution, state["Next"], output))

    def _output(self, execution: Execution, result: Any) -> Any:
        """Return the output of the current state. Raises PathNotFound or StateFailed."""
        state, context = self._state(execution), execution.context()
        if "ResultSelector" in state:
            result = fill(state["ResultSelector"], result, context)
        output = place(state.get("ResultPath", "$"), execution.data, result)
        path = state.get("OutputPath", "$")
        output = {} if path is None else follow(path, output, context)
        if len(text_of(output).encode()) > PAYLOAD_BYTES:
            limit = f"The state returned a result with a size exceeding {PAYLOAD_BYTES} bytes"
            raise StateFailed("States.DataLimitExceeded", limit)
        return output

    def _exit(self, execution: Execution, output: Any) -> None:
        kind = self._state(execution)["Type"]
        details = {"name": execution.state, "output": text_of(output)}
        execution.note(f"{kind}StateExited", self._now(), stateExitedEventDetails=details)

    def end(self, execution: Execution, status: Any, error: str | None, cause: str | None, output: Any = None) -> None:
        """End an execution with a status."""
        now = self._now()
        execution.status, execution.stopped, execution.output = status, now, output
        execution.error, execution.cause, execution.wake = error, cause, None
        if execution.attempt is not None:
            self._close(execution.attempt)
        if execution.map_run is not None and execution.map_run.status == "RUNNING":
            self._maps.end(execution.map_run, "ABORTED" if status == "ABORTED" else "FAILED")
        name = status.capitalize()
        given = {"output": text_of(output)} if status == "SUCCEEDED" else _given(error, cause)
        execution.note(f"Execution{name}", now, **{f"execution{name}EventDetails": given})
        self._ports.changed(execution)
        if execution.parent is not None and status != "ABORTED":
            parent = execution.parent
            self._work.append(lambda: self._maps.child_ended(parent, execution))

    def resume(self, execution: Execution) -> None:
        """Redrive an execution."""
        now = self._now()
        execution.status, execution.stopped, execution.error, execution.cause = "RUNNING", None, None, None
        execution.redrives, execution.redriven, execution.retries = execution.redrives + 1, now, {}
        details = {"redriveCount": execution.redrives}
        execution.note("ExecutionRedriven", now, executionRedrivenEventDetails=details)
        self._ports.changed(execution)
        run = execution.map_run
        if run is None:
            self._work.append(lambda: self._run(execution))
        else:
            self._work.append(lambda: self._maps.resume(execution, run))

    def retry_or_end(self, execution: Execution, error: str, cause: str) -> None:
        """Schedule a retry of the current state, or fail the execution."""
        for number, retrier in enumerate(self._state(execution).get("Retry", [])):
            if not _is_caught(error, retrier["ErrorEquals"]):
                continue
            count = execution.retries.get(number, 0)
            if count < retrier.get("MaxAttempts", 3):
                execution.retries[number] = count + 1
                wanted = retrier.get("IntervalSeconds", 1) * retrier.get("BackoffRate", 2.0) ** count
                wanted = min(wanted, retrier.get("MaxDelaySeconds", wanted))
                execution.wake = self._now() + self._retry_seconds(wanted)
                self._waiting.add(execution.arn)
                return
            break
        self.end(execution, "FAILED", error, cause)

    # Tasks -----------------------------------------------------------------------------------------------------------

    def _start_task(self, execution: Execution, state: Mapping[str, Any], data: Any) -> None:
        now, token = self._now(), new_token(execution)
        has_token = state["Resource"] == INVOKE_WITH_TOKEN
        context = execution.context(token if has_token else None)
        parameters = fill(state["Parameters"], data, context)
        limit, beat = state.get("TimeoutSeconds"), state.get("HeartbeatSeconds")
        attempt = Attempt(execution, token, has_token, now + limit if limit else NEVER, now + beat if beat else NEVER)
        execution.attempt = self._tokens[token] = attempt
        scheduled = {**_RESOURCE, "region": self._prefix.split(":")[3], "parameters": text_of(parameters)}
        execution.note("TaskScheduled", now, taskScheduledEventDetails=scheduled)
        execution.note("TaskStarted", now, taskStartedEventDetails=dict(_RESOURCE))
        if _due(execution) != NEVER:
            self._waiting.add(execution.arn)
        self._ports.invoke(attempt, parameters)

    def _open(self, token: str) -> Attempt:
        attempt = self._tokens.get(token)
        if attempt is None:
            raise UnknownToken(token)
        if not attempt.is_open:
            raise TokenClosed(token)
        return attempt

    def _close(self, attempt: Attempt) -> None:
        attempt.is_open = False
        attempt.execution.attempt = None

    def _task_succeeded(self, attempt: Attempt, output: Any) -> None:
        execution = attempt.execution
        if execution.status != "RUNNING":
            return
        details = {**_RESOURCE, "output": text_of(output)}
        execution.note("TaskSucceeded", self._now(), taskSucceededEventDetails=details)
        self.leave(execution, output)

    def _fail(self, attempt: Attempt, error: str, cause: str) -> None:
        self._close(attempt)
        details = {**_RESOURCE, **_given(error, cause)}
        attempt.execution.note("TaskFailed", self._now(), taskFailedEventDetails=details)
        self._work.append(lambda: self.retry_or_end(attempt.execution, error, cause))

    def _time_out(self, attempt: Attempt) -> None:
        self._close(attempt)
        error = "States.Timeout" if attempt.deadline <= self._now() else "States.HeartbeatTimeout"
        details = {**_RESOURCE, **_given(error, None)}
        attempt.execution.note("TaskTimedOut", self._now(), taskTimedOutEventDetails=details)
        self._work.append(lambda: self.retry_or_end(attempt.execution, error, ""))


_RESOURCE = {"resourceType": "lambda", "resource": "invoke"}


def _given(error: str | None, cause: str | None) -> dict[str, str]:
    return {name: text for name, text in (("error", error), ("cause", cause)) if text is not None}


def _due(execution: Execution) -> float:
    attempt = execution.attempt
    waits = [] if execution.wake is None else [execution.wake]
    waits += [] if attempt is None else [attempt.deadline, attempt.heartbeat_deadline]
    return min(waits, default=NEVER)


def _is_caught(error: str, names: list[str]) -> bool:
    """Return True if a retrier handles an error. States.TaskFailed matches every error except timeouts."""
    return error in names or "States.ALL" in names or ("States.TaskFailed" in names and error != "States.Timeout")
