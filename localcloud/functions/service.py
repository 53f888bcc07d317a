"""The Lambda service of the local cloud: moto keeps the records, functions run here as processes.

Not here: event rules and schedules (`bus`), and who may call Invoke (the gateway's IAM).
"""

from __future__ import annotations

import base64
import json
import logging
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from localcloud.api import ApiError, Call, Clients, CredentialIssuer, Handler, Observer
from localcloud.functions.asynchronous import (
    LOCAL_RETRY_DELAYS_SECONDS,
    AsynchronousQueue,
    QueuedInvocation,
    Verdict,
)
from localcloud.functions.configuration import ConfigurationOperations
from localcloud.functions.definition import FunctionDefinition, FunctionRegistry
from localcloud.functions.destinations import invocation_record, send_to_destination
from localcloud.functions.errors import PackageRefused, SandboxFailed, Throttled
from localcloud.functions.invocation import FunctionAnswer, Launcher, run_invocation
from localcloud.functions.logs import LogShipper
from localcloud.functions.pool import FunctionPool
from localcloud.functions.records import RecordLog
from localcloud.functions.sessions import RoleSessions

_logger = logging.getLogger(__name__)

DEFAULT_CONCURRENCY = 4
"""Processes of a function that reserves no concurrency; further calls wait in line, where AWS would scale out."""
WAIT_FOR_PLACE_SECONDS = 900.0
SYNCHRONOUS_LIMIT_BYTES = 6 * 1024 * 1024
ASYNCHRONOUS_LIMIT_BYTES = 1024 * 1024
"""Payload bounds: https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html (read 2026-11)."""


@dataclass(frozen=True)
class InvocationResult:
    """The answer to an invocation, as the Invoke API gives it.

    `payload` is JSON text, empty for Event and DryRun; `log_tail` the last 4 KB of the invocation's log.
    """

    status_code: int
    request_id: str
    executed_version: str
    payload: bytes = b""
    function_error: str | None = None
    log_tail: str = ""


class FunctionService:
    """Answers Lambda's Invoke with real processes under the functions' own roles."""

    name = "lambda"

    def __init__(
        self,
        clients: Clients,
        credentials: CredentialIssuer,
        state_directory: Path,
        *,
        retry_delays_seconds: Sequence[float] = LOCAL_RETRY_DELAYS_SECONDS,
    ) -> None:
        self._clients = clients
        self._directory = state_directory.absolute() / "functions"
        self._directory.mkdir(parents=True, exist_ok=True)
        self._retry_delays_seconds = tuple(retry_delays_seconds)
        self.records = RecordLog(state_directory)
        self.registry = FunctionRegistry(clients.account, clients.region)
        self._sessions = RoleSessions(clients, credentials)
        self._shipper = LogShipper()
        self._launcher = Launcher(clients, self._sessions, self.registry, self._shipper, state_directory.absolute())
        self._configuration = ConfigurationOperations(clients, self._sessions, self.registry, self._forget)
        self._lock = threading.Lock()
        self._pools: dict[str, FunctionPool] = {}
        self._queues: dict[str, AsynchronousQueue] = {}
        self._closed = False

    def operations(self) -> Mapping[str, Handler]:
        """Return the Lambda operations that this service answers; moto answers the others."""
        return {"Invoke": self._invoke_call, "InvokeAsync": self._invoke_async_call, **self._configuration.operations()}

    def observers(self) -> Mapping[tuple[str, str], Observer]:
        """Return nothing: no call to moto is of interest."""
        return {}

    def http(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Answer GET processes: {function name: [process ids]}."""
        if (method, path.strip("/")) != ("GET", "processes"):
            return 404, b""
        with self._lock:
            pools = dict(self._pools)
        return 200, json.dumps({name: pool.pids() for name, pool in pools.items()}).encode()

    def close(self) -> None:
        """Kill all function processes and ship what they wrote."""
        with self._lock:
            self._closed = True
            pools, queues = list(self._pools.values()), list(self._queues.values())
        for queue in queues:
            queue.close()
        for pool in pools:
            pool.close()
        self._shipper.close()

    def flush_logs(self, deadline_seconds: float = 5.0) -> bool:
        """Wait until CloudWatch Logs has (or has refused) all that functions wrote so far."""
        return self._shipper.flush(deadline_seconds)

    def invoke(
        self,
        function: str,
        payload: object,
        *,
        invocation_type: str = "RequestResponse",
        qualifier: str | None = None,
        client_context: object = None,
    ) -> InvocationResult:
        """Invoke a function given by name or ARN; `payload` is a JSON value.

        Raises:
            ApiError: the function does not exist, cannot run here, is throttled, or the payload is too large.
        """
        return self._invoke(function, qualifier, json.dumps(payload), invocation_type, client_context)

    def _invoke(
        self, function: str, qualifier: str | None, payload: str, invocation_type: str, client_context: object
    ) -> InvocationResult:
        definition = self._configuration.define(function, qualifier)
        request_id = str(uuid.uuid4())
        if invocation_type == "DryRun":
            return InvocationResult(204, request_id, definition.version)
        limit_bytes = ASYNCHRONOUS_LIMIT_BYTES if invocation_type == "Event" else SYNCHRONOUS_LIMIT_BYTES
        size_bytes = len(payload.encode())
        if size_bytes > limit_bytes:
            raise ApiError("RequestTooLargeException", f"{size_bytes} bytes payload: at most {limit_bytes}", 413)
        if invocation_type == "Event":
            queued = QueuedInvocation(definition.name, self.registry.split(function, qualifier)[1], payload, request_id)
            self._queue(definition.name).put(queued)
            return InvocationResult(202, request_id, definition.version)
        # A reservation is the user's own bound, so going over it is throttled at once, as on AWS.
        reserved = self.registry.reserved_concurrency(definition.name)
        wait_seconds = WAIT_FOR_PLACE_SECONDS if reserved is None else 0.0
        try:
            answer = self._run(definition, request_id, payload, client_context, wait_seconds)
        except Throttled as error:
            raise ApiError("TooManyRequestsException", f"Rate Exceeded. {error}", 429) from error
        except (PackageRefused, SandboxFailed) as error:
            raise ApiError("ServiceException", f"{definition.name}: {error}", 500) from error
        return InvocationResult(
            200,
            request_id,
            definition.version,
            answer.payload.encode(),
            "Unhandled" if answer.failed else None,
            answer.log_tail,
        )

    def _run(
        self,
        definition: FunctionDefinition,
        request_id: str,
        payload: str,
        client_context: object,
        wait_seconds: float,
    ) -> FunctionAnswer:
        pool = self._pool(definition.name)
        warm = pool.acquire(definition, self._concurrency(definition.name), wait_seconds)
        try:
            return run_invocation(warm, request_id, payload, client_context)
        finally:
            pool.release(warm)

    def _run_queued(self, queued: QueuedInvocation) -> Verdict:
        policy = self._configuration.retry_policy(queued.function)
        age_seconds = queued.age_seconds()
        try:
            definition = self._configuration.define(queued.function, queued.qualifier)
            if age_seconds > policy.event_age_seconds:
                self._give_up(definition, queued, "EventAgeExceeded", '{"errorMessage": "the event is too old"}')
                return "done"
            answer = self._run(definition, queued.request_id, queued.payload, None, WAIT_FOR_PLACE_SECONDS)
        except (ApiError, PackageRefused, SandboxFailed, Throttled) as error:
            if self._closed:
                return "done"
            self.records.append(
                "function_not_run", function=queued.function, request_id=queued.request_id, reason=str(error)
            )
            _logger.error("%s: event %s cannot be run: %s", queued.function, queued.request_id, error)
            return "done"
        if self._closed:  # whatever it answered, it was cut off
            return "done"
        if not answer.failed:
            self._send_outcome(definition, queued, "OnSuccess", "Success", answer.payload)
            return "done"
        if queued.attempt < policy.attempts:
            return "retry"
        self._give_up(definition, queued, "RetriesExhausted", answer.payload)
        return "done"

    def _give_up(self, definition: FunctionDefinition, queued: QueuedInvocation, condition: str, payload: str) -> None:
        error = json.loads(payload)
        self.records.append(
            "function_failed",
            function=definition.name,
            request_id=queued.request_id,
            condition=condition,
            attempts=queued.attempt + 1,
            error_type=error.get("errorType"),
            error_message=error.get("errorMessage"),
        )
        _logger.error("%s: gave up event %s: %s", definition.name, queued.request_id, error.get("errorMessage"))
        self._send_outcome(definition, queued, "OnFailure", condition, payload)

    def _send_outcome(
        self, definition: FunctionDefinition, queued: QueuedInvocation, kind: str, condition: str, response: str
    ) -> None:
        failed = kind == "OnFailure"
        body = invocation_record(
            definition.arn,
            queued.request_id,
            condition,
            queued.attempt + 1,
            queued.payload,
            response,
            "Unhandled" if failed else None,
        )
        targets = [(arn, body) for arn in self._configuration.destinations(definition.name, kind)]
        dead_letter = self._configuration.dead_letter_arn(definition.name) if failed else None
        if dead_letter is not None:
            targets.append((dead_letter, queued.payload))
        for arn, text in targets:
            try:
                send_to_destination(
                    self._clients,
                    lambda service: self._sessions.client(service, definition.role_arn, definition.name),
                    arn,
                    text,
                )
            except (ApiError, ClientError, BotoCoreError) as error:
                self.records.append("function_outcome_lost", function=definition.name, target=arn, reason=str(error))
                _logger.error("%s: outcome cannot be sent to %s: %s", definition.name, arn, error)

    def _invoke_call(self, call: Call) -> Mapping[str, Any]:
        parameters = call.parameters
        try:
            text = _bytes_of(parameters.get("Payload") or b"{}").decode()
            json.loads(text)
        except ValueError as error:
            raise ApiError(
                "InvalidRequestContentException", f"Could not parse request body into json: {error}"
            ) from error
        context = parameters.get("ClientContext")
        invocation_type = parameters.get("InvocationType", "RequestResponse")
        result = self._invoke(
            parameters["FunctionName"],
            parameters.get("Qualifier"),
            text,
            invocation_type,
            json.loads(base64.b64decode(context)) if context else None,
        )
        answer: dict[str, Any] = {"StatusCode": result.status_code, "Payload": result.payload}
        if invocation_type == "RequestResponse":
            answer["ExecutedVersion"] = result.executed_version
        if result.function_error is not None:
            answer["FunctionError"] = result.function_error
        if parameters.get("LogType") == "Tail" and result.log_tail:
            answer["LogResult"] = base64.b64encode(result.log_tail.encode()).decode()
        return answer

    def _invoke_async_call(self, call: Call) -> Mapping[str, Any]:
        payload = json.loads(_bytes_of(call.parameters["InvokeArgs"]))
        result = self.invoke(call.parameters["FunctionName"], payload, invocation_type="Event")
        return {"Status": result.status_code}

    def _concurrency(self, name: str) -> int:
        reserved = self.registry.reserved_concurrency(name)
        return DEFAULT_CONCURRENCY if reserved is None else reserved

    def _queue_width(self, name: str) -> int:
        try:
            return self._concurrency(name)
        except ApiError:  # deleted meanwhile: one thread is enough to drop what waits
            return 1

    def _pool(self, name: str) -> FunctionPool:
        with self._lock:
            if self._closed:
                raise Throttled(f"{name}: the local cloud is closing")
            return self._pools.setdefault(name, FunctionPool(self._launcher.start))

    def _queue(self, name: str) -> AsynchronousQueue:
        with self._lock:
            if name not in self._queues:
                self._queues[name] = AsynchronousQueue(
                    self._run_queued, lambda: self._queue_width(name), self._retry_delays_seconds
                )
            return self._queues[name]

    def _forget(self, name: str) -> None:
        with self._lock:
            pool, queue = self._pools.pop(name, None), self._queues.pop(name, None)
        if queue is not None:
            queue.close()
        if pool is not None:
            pool.close()


def _bytes_of(blob: Any) -> bytes:
    """Return the bytes of a blob parameter, which may come as bytes, text or a stream."""
    content = blob.read() if hasattr(blob, "read") else blob
    return content.encode() if isinstance(content, str) else bytes(content)
