"""The embedded cloud's Lambda service. moto stores the function records, and this service runs functions as processes.

The gateway authorizes Invoke calls.
"""

from __future__ import annotations

import base64
import json
import logging
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localcloud.api import ApiError, Call, Clients, CredentialIssuer, Handler, Observer, Service
from localcloud.functions.asynchronous import (
    LOCAL_RETRY_DELAYS_SECONDS,
    MAXIMUM_RETRY_ATTEMPTS,
    AsynchronousQueue,
    QueuedInvocation,
    Verdict,
)
from localcloud.functions.configuration import ConfigurationOperations
from localcloud.functions.definition import FunctionDefinition, FunctionRegistry
from localcloud.functions.errors import PackageRefused, SandboxFailed, Throttled
from localcloud.functions.event_sources import EventSourceMappings
from localcloud.functions.invocation import FunctionAnswer, Launcher, run_invocation
from localcloud.functions.logs import LogShipper
from localcloud.functions.pool import FunctionPool
from localcloud.functions.sessions import RoleSessions
from localcloud.journal import RecordLog

_logger = logging.getLogger(__name__)

DEFAULT_CONCURRENCY = 4
"""Maximum processes for a function without reserved concurrency. Further calls wait; AWS would scale out."""
WAIT_FOR_PLACE_SECONDS = 900.0
SYNCHRONOUS_LIMIT_BYTES = 6 * 1024 * 1024
ASYNCHRONOUS_LIMIT_BYTES = 1024 * 1024
"""Payload limits: https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html (read 2026-11)."""


@dataclass(frozen=True)
class InvocationResult:
    """The response to an invocation, in the format of the Invoke API.

    `payload` is JSON text, or empty for Event and DryRun. `log_tail` is the last 4 KB of the invocation's log.
    """

    status_code: int
    request_id: str
    executed_version: str
    payload: bytes = b""
    function_error: str | None = None
    log_tail: str = ""


class FunctionService(Service):
    """Handles Lambda's Invoke by running processes under the functions' roles."""

    name = "lambda"

    def __init__(
        self,
        clients: Clients,
        credentials: CredentialIssuer,
        state_directory: Path,
        *,
        retry_delays_seconds: Sequence[float] = LOCAL_RETRY_DELAYS_SECONDS,
        invoked: Callable[[str, bool], None] = lambda name, failed: None,
    ) -> None:
        """Create the service. `invoked` receives the name of each invoked function, and whether it failed."""
        self._clients = clients
        self._directory = state_directory.absolute() / "functions"
        self._directory.mkdir(parents=True, exist_ok=True)
        self._retry_delays_seconds = tuple(retry_delays_seconds)
        self._invoked = invoked
        self.records = RecordLog(state_directory / "records.jsonl")
        self.registry = FunctionRegistry(clients.account, clients.region)
        self._sessions = RoleSessions(clients, credentials)
        self._shipper = LogShipper()
        self._launcher = Launcher(clients, self._sessions, self.registry, self._shipper, state_directory.absolute())
        self._configuration = ConfigurationOperations(clients, self._sessions, self.registry, self._forget)
        self.event_sources = EventSourceMappings(
            self._sessions,
            self._configuration.define,
            self._invoke_for_source,
            self.records,
            endpoint_url=clients.endpoint_url,
            arn_prefix=f"arn:aws:lambda:{clients.region}:{clients.account}",
        )
        self._lock = threading.Lock()
        self._pools: dict[str, FunctionPool] = {}
        self._queues: dict[str, AsynchronousQueue] = {}
        self._closed = False

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers, keyed by operation. moto handles the other operations."""
        return {
            "Invoke": self._invoke_call,
            **self._configuration.operations(),
            **self.event_sources.operations(),
        }

    def observers(self) -> Mapping[tuple[str, str], Observer]:
        """Return the observers for messages that event sources read."""

        def message_sent(call: Call, answer: Mapping[str, Any]) -> None:
            self.event_sources.wake(str(call.parameters["QueueUrl"]).rpartition("/")[2])

        return {("sqs", operation): message_sent for operation in ("SendMessage", "SendMessageBatch")}

    def http(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Handle `GET processes`, which returns {function name: [process IDs]}."""
        if (method, path.strip("/")) != ("GET", "processes"):
            return 404, b""
        with self._lock:
            pools = dict(self._pools)
        return 200, json.dumps({name: pool.pids() for name, pool in pools.items()}).encode()

    def close(self) -> None:
        """Kill all function processes and ship their output."""
        with self._lock:
            self._closed = True
            pools, queues = list(self._pools.values()), list(self._queues.values())
        for queue in queues:
            queue.close()
        for pool in pools:
            pool.close()
        self.event_sources.close()
        self._shipper.close()

    def flush_logs(self, deadline_seconds: float = 5.0) -> bool:
        """Wait until CloudWatch Logs has accepted or rejected all function output written so far."""
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
        """Invoke a function given by name or ARN. `payload` is a JSON value.

        Raises:
            ApiError: The function does not exist, is not supported or is throttled, or the payload is too large.
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
            raise ApiError("RequestTooLargeException", f"payload of {size_bytes} bytes exceeds {limit_bytes}", 413)
        if invocation_type == "Event":
            queued = QueuedInvocation(definition.name, self.registry.split(function, qualifier)[1], payload, request_id)
            self._queue(definition.name).put(queued)
            return InvocationResult(202, request_id, definition.version)
        # As on AWS, calls that exceed the function's reserved concurrency are throttled immediately.
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
            answer = run_invocation(warm, request_id, payload, client_context)
        finally:
            pool.release(warm)
        self._invoked(definition.name, answer.failed)
        return answer

    def _invoke_for_source(self, definition: FunctionDefinition, payload: str) -> bool:
        """Invoke a function for an event source. Return True if it succeeded."""
        try:
            answer = self._run(definition, str(uuid.uuid4()), payload, None, WAIT_FOR_PLACE_SECONDS)
        except Throttled:
            return False
        except (PackageRefused, SandboxFailed) as error:
            raise ApiError("ServiceException", f"{definition.name}: {error}", 500) from error
        return not answer.failed

    def _run_queued(self, queued: QueuedInvocation) -> Verdict:
        try:
            definition = self._configuration.define(queued.function, queued.qualifier)
            answer = self._run(definition, queued.request_id, queued.payload, None, WAIT_FOR_PLACE_SECONDS)
        except (ApiError, PackageRefused, SandboxFailed, Throttled) as error:
            if self._closed:
                return "done"
            self.records.append(
                "function_not_run", function=queued.function, request_id=queued.request_id, reason=str(error)
            )
            _logger.error("%s: cannot run event %s: %s", queued.function, queued.request_id, error)
            return "done"
        if self._closed:  # the invocation was aborted, so ignore its outcome
            return "done"
        if not answer.failed:
            return "done"
        if queued.attempt < MAXIMUM_RETRY_ATTEMPTS:
            return "retry"
        failure = json.loads(answer.payload)
        self.records.append(
            "function_failed",
            function=definition.name,
            request_id=queued.request_id,
            attempts=queued.attempt + 1,
            error_type=failure.get("errorType"),
            error_message=failure.get("errorMessage"),
        )
        _logger.error("%s: dropped event %s: %s", definition.name, queued.request_id, failure.get("errorMessage"))
        return "done"

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

    def _concurrency(self, name: str) -> int:
        reserved = self.registry.reserved_concurrency(name)
        return DEFAULT_CONCURRENCY if reserved is None else reserved

    def _queue_width(self, name: str) -> int:
        try:
            return self._concurrency(name)
        except ApiError:  # the function has been deleted: one thread suffices to drop the queued events
            return 1

    def _pool(self, name: str) -> FunctionPool:
        with self._lock:
            if self._closed:
                raise Throttled(f"{name}: the embedded cloud is closing")
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
    """Return the bytes of a blob parameter, which may be bytes, text or a stream."""
    content = blob.read() if hasattr(blob, "read") else blob
    return content.encode() if isinstance(content, str) else bytes(content)
