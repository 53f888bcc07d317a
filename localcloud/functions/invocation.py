"""Starts function processes, runs invocations in them, and writes the same log lines as Lambda.

Sources for the log lines (read 2026-11): https://docs.aws.amazon.com/lambda/latest/dg/python-logging.html,
https://docs.aws.amazon.com/lambda/latest/dg/telemetry-schema-reference.html
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from localcloud.api import Clients, Credentials
from localcloud.compute.machines.process_users import function_user
from localcloud.functions.definition import FunctionDefinition, FunctionRegistry
from localcloud.functions.logs import LogShipper, LogStream
from localcloud.functions.packages import unpack
from localcloud.functions.pool import WarmSandbox
from localcloud.functions.sandbox import Outcome, Sandbox
from localcloud.functions.sessions import RoleSessions
from localcloud.state import MARKER, mark_of

LOG_TAIL_BYTES = 4096
RESPONSE_LIMIT_BYTES = 6 * 1024 * 1024
"""Source: https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html (read 2026-11)."""


@dataclass(frozen=True)
class FunctionAnswer:
    """A function's response as JSON text. If `failed` is set, the response is an error object."""

    payload: str
    failed: bool
    log_tail: str


class Launcher:
    """Starts function processes, each with its package, role session, environment and log stream."""

    def __init__(
        self,
        clients: Clients,
        sessions: RoleSessions,
        registry: FunctionRegistry,
        shipper: LogShipper,
        state_directory: Path,
    ) -> None:
        self._clients = clients
        self._sessions = sessions
        self._registry = registry
        self._shipper = shipper
        self._state_directory = state_directory

    def start(self, definition: FunctionDefinition) -> WarmSandbox:
        """Start a process for a function.

        Raises:
            ApiError: Lambda cannot assume the role, or the code was deleted.
            PackageRefused: The package cannot be unpacked.
            SandboxFailed: The process cannot be started.
        """
        credentials = self._sessions.credentials(definition.role_arn, definition.name, definition.timeout_seconds)
        directory = self._state_directory / "functions" / definition.name
        task_root = unpack(self._registry.code(definition), directory)
        identity = uuid.uuid4().hex
        scratch = directory / f"scratch-{identity[:8]}"
        scratch.mkdir(mode=0o700)
        log = self._state_directory / "functions" / f"{definition.name}.log"
        log.touch(mode=0o600)
        user = function_user(definition.name, directory)
        if user is not None:
            # The function can read its package and write to its scratch directory, but cannot read other functions'
            # files.
            os.chown(directory, 0, user)
            directory.chmod(0o750)
            os.chown(scratch, user, user)
        stream = LogStream(
            path=log,
            group=definition.log_group,
            name=f"{time.strftime('%Y/%m/%d', time.gmtime())}/[{definition.version}]{identity}",
            logs_client=lambda: self._sessions.client("logs", definition.role_arn, definition.name),
        )
        environment = self._environment(definition, task_root, credentials, scratch, stream.name)
        lines: list[str] = []

        def write_line(line: str) -> None:
            lines.append(line)
            self._shipper.write(stream, line)

        sandbox = Sandbox(environment, task_root, write_line, lambda: shutil.rmtree(scratch, True), user)
        return WarmSandbox(sandbox, definition, credentials, lines, write_line)

    def _environment(
        self,
        definition: FunctionDefinition,
        task_root: Path,
        credentials: Credentials,
        scratch: Path,
        stream_name: str,
    ) -> Mapping[str, str]:
        region = self._clients.region
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": os.environ.get("LANG", "C.UTF-8"),
            "TZ": "UTC",
            "HOME": str(scratch),
            "TMPDIR": str(scratch),
            "PYTHONDONTWRITEBYTECODE": "1",
            **dict(definition.variables),
            "AWS_ACCESS_KEY_ID": credentials.access_key_id,
            "AWS_SECRET_ACCESS_KEY": credentials.secret_access_key,
            "AWS_SESSION_TOKEN": credentials.session_token,
            "AWS_REGION": region,
            "AWS_DEFAULT_REGION": region,
            "AWS_ENDPOINT_URL": self._clients.endpoint_url,
            # The function must never fall back to credentials or settings of the embedded cloud's user.
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": str(scratch / "aws-config"),
            "AWS_SHARED_CREDENTIALS_FILE": str(scratch / "aws-credentials"),
            "AWS_EXECUTION_ENV": f"AWS_Lambda_{version}",
            "AWS_LAMBDA_FUNCTION_NAME": definition.name,
            "AWS_LAMBDA_FUNCTION_VERSION": definition.version,
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(definition.memory_mib),
            "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand",
            "AWS_LAMBDA_LOG_GROUP_NAME": definition.log_group,
            "AWS_LAMBDA_LOG_STREAM_NAME": stream_name,
            "AWS_LAMBDA_LOG_FORMAT": definition.log_format,
            "AWS_LAMBDA_LOG_LEVEL": definition.log_level,
            "_HANDLER": definition.handler,
            "LAMBDA_TASK_ROOT": str(task_root),
            "LAMBDA_RUNTIME_DIR": str(Path(__file__).parent),
            MARKER: mark_of(self._state_directory),
        }


def run_invocation(warm: WarmSandbox, request_id: str, payload: str, client_context: object) -> FunctionAnswer:
    """Run an invocation in an idle process."""
    definition = warm.definition
    init_seconds: float | None = None
    if not warm.initialized:
        started = time.monotonic()
        failure = warm.sandbox.initialize()
        init_seconds = time.monotonic() - started
        warm.initialized = failure is None
    else:
        failure = None
    first_line = 0 if init_seconds is not None else len(warm.lines)
    for line in start_lines(definition, request_id):
        warm.write_line(line)
    started = time.monotonic()
    request = {
        "type": "invoke",
        "request_id": request_id,
        "invoked_function_arn": definition.invoked_arn,
        "client_context": client_context,
        "payload": payload,
    }
    outcome = failure if failure is not None else warm.sandbox.invoke(request, definition.timeout_seconds)
    duration_seconds = time.monotonic() - started
    answer = _error_of(outcome, request_id, definition) or outcome.payload
    failed = outcome.kind != "succeeded"
    if not failed and len(answer.encode()) > RESPONSE_LIMIT_BYTES:
        failed = True
        answer = json.dumps(
            {
                "errorMessage": "Response payload size exceeded maximum allowed payload size (6291556 bytes).",
                "errorType": "Function.ResponseSizeTooLarge",
            }
        )
    if outcome.kind in ("timed_out", "exited"):
        warm.write_line(json.loads(answer)["errorMessage"])
    for line in end_lines(definition, request_id, InvocationTimes(duration_seconds, init_seconds), outcome):
        warm.write_line(line)
    tail = "\n".join(warm.lines[first_line:]).encode()[-LOG_TAIL_BYTES:].decode(errors="ignore") + "\n"
    warm.lines.clear()
    if failed and not warm.initialized:
        warm.sandbox.close()  # as on AWS, the next invocation loads the handler again
    return FunctionAnswer(answer, failed, tail)


def _error_of(outcome: Outcome, request_id: str, definition: FunctionDefinition) -> str | None:
    if outcome.kind == "timed_out":
        return json.dumps(
            {
                "errorType": "Sandbox.Timedout",
                "errorMessage": f"RequestId: {request_id} Error: Task timed out after "
                f"{definition.timeout_seconds:.2f} seconds",
            }
        )
    if outcome.kind == "exited":
        error = json.loads(outcome.payload)
        message = str(error["errorMessage"])
        if not message.startswith("RequestId:"):
            error["errorMessage"] = f"RequestId: {request_id} {message}"
        return json.dumps(error)
    return None


@dataclass(frozen=True)
class InvocationTimes:
    """The duration of an invocation. `init_seconds` is None in a warm process."""

    duration_seconds: float
    init_seconds: float | None

    @property
    def billed_milliseconds(self) -> int:
        """The billed duration including initialization, rounded up."""
        return math.ceil((self.duration_seconds + (self.init_seconds or 0.0)) * 1000)


def start_lines(definition: FunctionDefinition, request_id: str) -> list[str]:
    """Return the log lines that precede an invocation."""
    if definition.log_format != "JSON":
        return [f"START RequestId: {request_id} Version: {definition.version}"]
    return _platform(definition, "platform.start", {"requestId": request_id, "version": definition.version})


def end_lines(definition: FunctionDefinition, request_id: str, times: InvocationTimes, outcome: Outcome) -> list[str]:
    """Return the log lines that follow an invocation."""
    milliseconds = times.duration_seconds * 1000
    if definition.log_format == "JSON":
        metrics: dict[str, Any] = {
            "durationMs": round(milliseconds, 3),
            "billedDurationMs": times.billed_milliseconds,
            "memorySizeMB": definition.memory_mib,
            "maxMemoryUsedMB": outcome.peak_memory_mib,
        }
        if times.init_seconds is not None:
            metrics["initDurationMs"] = round(times.init_seconds * 1000, 3)
        status = {"succeeded": "success", "timed_out": "timeout"}.get(outcome.kind, "error")
        return _platform(definition, "platform.report", {"requestId": request_id, "metrics": metrics, "status": status})
    parts = [
        f"REPORT RequestId: {request_id}",
        f"Duration: {milliseconds:.2f} ms",
        f"Billed Duration: {times.billed_milliseconds} ms",
        f"Memory Size: {definition.memory_mib} MB",
        f"Max Memory Used: {outcome.peak_memory_mib} MB",
    ]
    if times.init_seconds is not None:
        parts.append(f"Init Duration: {times.init_seconds * 1000:.2f} ms")
    if outcome.kind == "timed_out":
        parts.append("Status: timeout")
    return [f"END RequestId: {request_id}", "\t".join(parts)]


def _platform(definition: FunctionDefinition, kind: str, record: dict[str, Any]) -> list[str]:
    if definition.system_log_level == "WARN":  # start and report records have level INFO
        return []
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return [json.dumps({"time": now, "type": kind, "record": record})]
