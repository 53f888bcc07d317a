"""From a definition to a started process, and one invocation in it with Lambda's log lines around."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from localcloud.api import Clients, Credentials
from localcloud.functions.definition import FunctionDefinition, FunctionRegistry
from localcloud.functions.log_lines import InvocationTimes, end_lines, start_lines
from localcloud.functions.logs import LogShipper, LogStream
from localcloud.functions.packages import Package, unpack
from localcloud.functions.pool import WarmSandbox
from localcloud.functions.sandbox import Outcome, Sandbox
from localcloud.functions.sessions import RoleSessions

LOG_TAIL_BYTES = 4096
RESPONSE_LIMIT_BYTES = 6 * 1024 * 1024
"""Source: https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html (read 2026-11)."""


@dataclass(frozen=True)
class FunctionAnswer:
    """What the function answered: JSON text, and whether it is an error object."""

    payload: str
    failed: bool
    log_tail: str


class Launcher:
    """Starts function processes: package, role session, environment, log stream."""

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
        """Start a process of a function.

        Raises:
            ApiError: the role cannot be assumed by Lambda, or the code is gone.
            PackageRefused: the package cannot be unpacked.
            SandboxFailed: the process cannot be started.
        """
        credentials = self._sessions.credentials(definition.role_arn, definition.name, definition.timeout_seconds)
        code = self._registry.code(definition)
        directory = self._state_directory / "functions" / definition.name
        package = unpack(code.package, code.layers, directory)
        identity = uuid.uuid4().hex
        scratch = directory / f"scratch-{identity[:8]}"
        scratch.mkdir()
        stream = LogStream(
            path=self._state_directory / "functions" / f"{definition.name}.log",
            group=definition.log_group,
            name=f"{time.strftime('%Y/%m/%d', time.gmtime())}/[{definition.version}]{identity}",
            logs_client=lambda: self._sessions.client("logs", definition.role_arn, definition.name),
        )
        environment = self._environment(definition, package, credentials, scratch, stream.name)
        lines: list[str] = []

        def write_line(line: str) -> None:
            lines.append(line)
            self._shipper.write(stream, line)

        sandbox = Sandbox(environment, package.task_root, write_line, on_end=lambda: shutil.rmtree(scratch, True))
        return WarmSandbox(sandbox, definition, credentials, lines, write_line)

    def _environment(
        self,
        definition: FunctionDefinition,
        package: Package,
        credentials: Credentials,
        scratch: Path,
        stream_name: str,
    ) -> Mapping[str, str]:
        region = self._clients.region
        search_path = [str(path) for path in package.python_path()]
        programs = [os.environ.get("PATH", os.defpath)]
        libraries = []
        if package.layers_root is not None:
            programs.insert(0, str(package.layers_root / "bin"))
            libraries = [str(package.layers_root / "lib")]
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return {
            "PATH": os.pathsep.join(programs),
            "LANG": os.environ.get("LANG", "C.UTF-8"),
            "TZ": "UTC",
            "HOME": str(scratch),
            "TMPDIR": str(scratch),
            "PYTHONPATH": os.pathsep.join(search_path),
            "PYTHONDONTWRITEBYTECODE": "1",
            **({"LD_LIBRARY_PATH": os.pathsep.join(libraries)} if libraries else {}),
            **dict(definition.variables),
            "AWS_ACCESS_KEY_ID": credentials.access_key_id,
            "AWS_SECRET_ACCESS_KEY": credentials.secret_access_key,
            "AWS_SESSION_TOKEN": credentials.session_token,
            "AWS_REGION": region,
            "AWS_DEFAULT_REGION": region,
            "AWS_ENDPOINT_URL": self._clients.endpoint_url,
            # The function must never fall back to the credentials or settings of whoever runs the local cloud.
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
            "LAMBDA_TASK_ROOT": str(package.task_root),
            "LAMBDA_RUNTIME_DIR": str(Path(__file__).parent),
            "LOCALCLOUD_STATE": str(self._state_directory),
        }


def run_invocation(warm: WarmSandbox, request_id: str, payload: str, client_context: object) -> FunctionAnswer:
    """Run one invocation in a process that no other invocation uses."""
    definition = warm.definition
    init_seconds: float | None = None
    if not warm.initialised:
        started = time.monotonic()
        failure = warm.sandbox.initialise()
        init_seconds = time.monotonic() - started
        warm.initialised = failure is None
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
    if failed and not warm.initialised:
        warm.sandbox.close()  # a handler that did not load is loaded anew next time, as on AWS
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
