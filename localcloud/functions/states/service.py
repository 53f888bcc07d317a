"""Step Functions' API. Executions run with their state machine's role, which IAM checks for each call."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from localcloud.api import ApiError, Call, Clients, EventBus, Handler, Principal, Service
from localcloud.control_loop import ControlLoop
from localcloud.functions.sessions import RoleSessions
from localcloud.functions.states.definition import InvalidDefinition, decode
from localcloud.functions.states.engine import PAYLOAD_BYTES, Engine, NotRedrivable, TokenClosed, UnknownToken
from localcloud.functions.states.model import Execution, Machine
from localcloud.functions.states.ports import CloudPorts
from localcloud.functions.states.views import date, described, described_run, event_page, listed

POLL_SECONDS = 0.5
LONGEST_RETRY_SECONDS = 2.0
"""AWS waits as long as the Retry field requires. The embedded cloud does not wait longer than this."""
FUNCTION_SECONDS = 900.0
"""Maximum duration of a function. Source (2026-11):
https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html"""
WORKERS = 32
UNSUPPORTED = ("loggingConfiguration", "tracingConfiguration", "encryptionConfiguration", "publish")
"""Parameters of state machines."""


class StatesService(Service):
    """api.Service for state machines, executions, map runs and task tokens.

    Args:
        clients: Clients of this cloud.
        sessions: Role sessions started for states.amazonaws.com.
        bus: Receives the changes of executions' statuses.
        authorise: Checks a call of a principal. Raises ApiError if it is denied.
        authenticate: Returns the principal of an access key and a session token.
    """

    name = "stepfunctions"

    def __init__(
        self,
        clients: Clients,
        sessions: RoleSessions,
        bus: EventBus,
        authorise: Callable[[Call], None],
        authenticate: Callable[[str, str | None], Principal],
    ) -> None:
        self._lock = threading.Lock()
        self._machines: dict[str, Machine] = {}
        self._prefix = f"arn:aws:states:{clients.region}:{clients.account}:"
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="states")
        ports = CloudPorts(clients, sessions, bus, authorise, authenticate, self._pool)
        self.engine = Engine(
            ports, time.time, retry_seconds=lambda wanted: min(wanted, LONGEST_RETRY_SECONDS), prefix=self._prefix
        )
        ports.engine = self.engine
        self._loop = ControlLoop("states", lambda: [self.engine], Engine.tick, lambda: POLL_SECONDS)
        self._loop.start()

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers, keyed by operation name."""
        return {
            "CreateStateMachine": self._create,
            "UpdateStateMachine": self._update,
            "DescribeStateMachine": self._describe_machine,
            "DeleteStateMachine": self._delete,
            "ListStateMachines": self._list_machines,
            "TagResource": self._tag,
            "UntagResource": self._untag,
            "ListTagsForResource": self._tags,
            "StartExecution": self._start,
            "StopExecution": self._stop,
            "RedriveExecution": self._redrive,
            "DescribeExecution": lambda call: described(self._execution(call)),
            "ListExecutions": self._list_executions,
            "GetExecutionHistory": self._history,
            "ListMapRuns": self._list_runs,
            "DescribeMapRun": self._describe_run,
            "SendTaskSuccess": self._send_success,
            "SendTaskFailure": self._send_failure,
            "SendTaskHeartbeat": self._send_heartbeat,
        }

    def close(self) -> None:
        """Stop the timers. Running tasks are abandoned."""
        self._loop.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    # State machines --------------------------------------------------------------------------------------------------

    def _create(self, call: Call) -> Mapping[str, Any]:
        p = call.parameters
        _refuse(p)
        if p.get("type", "STANDARD") != "STANDARD":
            raise ApiError("StateMachineTypeNotSupported", "The embedded cloud supports only STANDARD state machines.")
        arn = f"{self._prefix}stateMachine:{p['name']}"
        machine = Machine(
            *(arn, str(p["name"]), str(p["definition"]), _decoded(str(p["definition"])), str(p["roleArn"])),
            *(time.time(), str(uuid.uuid4()), {tag["key"]: tag["value"] for tag in p.get("tags", [])}),
        )
        with self._lock:
            known = self._machines.get(arn)
            if known is not None and (known.text, known.role_arn) != (machine.text, machine.role_arn):
                raise ApiError("StateMachineAlreadyExists", f"State Machine Already Exists: '{arn}'")
            machine = self._machines.setdefault(arn, machine)
        return {"stateMachineArn": arn, "creationDate": date(machine.created)}

    def _update(self, call: Call) -> Mapping[str, Any]:
        p = call.parameters
        _refuse(p)
        with self._lock:
            old = self._machine(str(p["stateMachineArn"]))
            text, role = str(p.get("definition", old.text)), str(p.get("roleArn", old.role_arn))
            # Running executions keep the object with which they started.
            self._machines[old.arn] = replace(
                old, text=text, definition=_decoded(text), role_arn=role, revision_id=str(uuid.uuid4())
            )
            return {"updateDate": date(time.time()), "revisionId": self._machines[old.arn].revision_id}

    def _describe_machine(self, call: Call) -> Mapping[str, Any]:
        machine = self._machine(str(call.parameters["stateMachineArn"]))
        return {
            "stateMachineArn": machine.arn,
            "name": machine.name,
            "status": "ACTIVE",
            "definition": machine.text,
            "roleArn": machine.role_arn,
            "type": "STANDARD",
            "creationDate": date(machine.created),
            "revisionId": machine.revision_id,
        }

    def _delete(self, call: Call) -> Mapping[str, Any]:
        arn = str(call.parameters["stateMachineArn"])
        with self._lock:
            self._machines.pop(arn, None)
        # AWS deletes a state machine after its executions have ended, and stops those of a Standard workflow.
        for execution in [each for each in self.engine.executions.values() if each.machine.arn == arn]:
            if execution.parent is None:
                self.engine.stop(execution, None, "The state machine was deleted")
        return {}

    def _list_machines(self, call: Call) -> Mapping[str, Any]:
        with self._lock:
            machines = list(self._machines.values())
        names = ("stateMachineArn", "name", "type", "creationDate")
        return {
            "stateMachines": [
                dict(zip(names, (each.arn, each.name, "STANDARD", date(each.created)), strict=True))
                for each in machines
            ]
        }

    def _machine(self, arn: str) -> Machine:
        if arn not in self._machines:
            raise ApiError("StateMachineDoesNotExist", f"State Machine Does Not Exist: '{arn}'")
        return self._machines[arn]

    def _tag(self, call: Call) -> Mapping[str, Any]:
        machine = self._machine(str(call.parameters["resourceArn"]))
        machine.tags.update({tag["key"]: tag["value"] for tag in call.parameters["tags"]})
        return {}

    def _untag(self, call: Call) -> Mapping[str, Any]:
        machine = self._machine(str(call.parameters["resourceArn"]))
        for key in call.parameters["tagKeys"]:
            machine.tags.pop(key, None)
        return {}

    def _tags(self, call: Call) -> Mapping[str, Any]:
        machine = self._machine(str(call.parameters["resourceArn"]))
        return {"tags": [{"key": key, "value": value} for key, value in machine.tags.items()]}

    # Executions ------------------------------------------------------------------------------------------------------

    def _start(self, call: Call) -> Mapping[str, Any]:
        p = call.parameters
        machine = self._machine(str(p["stateMachineArn"]))
        text = str(p.get("input", "{}"))
        try:
            data = json.loads(text)
        except ValueError as error:
            raise ApiError("InvalidExecutionInput", f"Invalid State Machine Execution Input: '{error}'") from error
        if len(text.encode()) > PAYLOAD_BYTES:
            raise ApiError("InvalidExecutionInput", f"The input has more than {PAYLOAD_BYTES} bytes")
        name = str(p.get("name") or uuid.uuid4())
        with self._lock:
            known = self.engine.executions.get(f"{self._prefix}execution:{machine.name}:{name}")
            if known is not None and (known.input != data or known.status != "RUNNING"):
                raise ApiError("ExecutionAlreadyExists", f"Execution Already Exists: '{known.arn}'")
            execution = known or self.engine.start(machine, name, data)
        return {"executionArn": execution.arn, "startDate": date(execution.started)}

    def _stop(self, call: Call) -> Mapping[str, Any]:
        execution = self._execution(call)
        self.engine.stop(execution, call.parameters.get("error"), call.parameters.get("cause"))
        return {"stopDate": date(execution.stopped or time.time())}

    def _redrive(self, call: Call) -> Mapping[str, Any]:
        execution = self._execution(call)
        try:
            self.engine.redrive(execution)
        except NotRedrivable as error:
            raise ApiError("ExecutionNotRedrivable", str(error)) from error
        return {"redriveDate": date(execution.redriven or time.time())}

    def _execution(self, call: Call) -> Execution:
        arn = str(call.parameters["executionArn"])
        if arn not in self.engine.executions:
            raise ApiError("ExecutionDoesNotExist", f"Execution Does Not Exist: '{arn}'")
        return self.engine.executions[arn]

    def _list_executions(self, call: Call) -> Mapping[str, Any]:
        p = call.parameters
        wanted, run_arn = p.get("statusFilter"), p.get("mapRunArn")
        if run_arn is None:
            self._machine(str(p["stateMachineArn"]))
        with self.engine.lock:
            found = [
                each
                for each in self.engine.executions.values()
                if (each.parent.arn == run_arn if each.parent else each.machine.arn == p.get("stateMachineArn"))
                and wanted in (None, each.status)
            ]
        return listed(sorted(found, key=lambda each: -each.started), p.get("maxResults"), p.get("nextToken"))

    def _history(self, call: Call) -> Mapping[str, Any]:
        execution = self._execution(call)
        with self.engine.lock:
            return event_page(execution, call.parameters)

    def _list_runs(self, call: Call) -> Mapping[str, Any]:
        execution = self._execution(call)
        with self.engine.lock:
            runs = [run for run in self.engine.map_runs.values() if run.parent is execution]
        names = ("executionArn", "mapRunArn", "stateMachineArn", "startDate")
        values = [(execution.arn, run.arn, execution.machine.arn, date(run.started)) for run in runs]
        return {"mapRuns": [dict(zip(names, each, strict=True)) for each in values]}

    def _describe_run(self, call: Call) -> Mapping[str, Any]:
        arn = str(call.parameters["mapRunArn"])
        with self.engine.lock:
            if arn not in self.engine.map_runs:
                raise ApiError("ResourceNotFound", f"Resource not found: '{arn}'")
            return described_run(self.engine.map_runs[arn])

    # Task tokens -----------------------------------------------------------------------------------------------------

    def _send_success(self, call: Call) -> Mapping[str, Any]:
        try:
            output = json.loads(str(call.parameters["output"]))
        except ValueError as error:
            raise ApiError("InvalidOutput", f"Invalid Output: {error}") from error
        return _with_token(lambda: self.engine.succeed(str(call.parameters["taskToken"]), output))

    def _send_failure(self, call: Call) -> Mapping[str, Any]:
        p = call.parameters
        error, cause = str(p.get("error", "")), str(p.get("cause", ""))
        return _with_token(lambda: self.engine.fail(str(p["taskToken"]), error, cause))

    def _send_heartbeat(self, call: Call) -> Mapping[str, Any]:
        return _with_token(lambda: self.engine.heartbeat(str(call.parameters["taskToken"])))


def _with_token(send: Callable[[], None]) -> Mapping[str, Any]:
    try:
        send()
    except TokenClosed:
        raise ApiError("TaskTimedOut", "Task Timed Out: 'Provided task does not exist anymore'") from None
    except UnknownToken:
        raise ApiError("InvalidToken", "Invalid Token: 'Invalid token'") from None
    return {}


def _decoded(text: str) -> Mapping[str, Any]:
    try:
        return decode(text)
    except InvalidDefinition as error:
        raise ApiError("InvalidDefinition", f"Invalid State Machine Definition: '{error}'") from error


def _refuse(parameters: Mapping[str, Any]) -> None:
    for name in UNSUPPORTED:
        if parameters.get(name):
            raise ApiError("ValidationException", f"{name} is not supported by the embedded cloud")
