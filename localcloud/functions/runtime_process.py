"""The program that each function process runs: loads the handler once, then runs invocations.

The parent handles timeouts, logs and credentials. It starts this file by path instead of as a module, and the file
uses only the standard library. The function therefore cannot import the embedded cloud.

There are two processes: a guardian, which leads the process group, and a forked worker, which runs the function. The
guardian holds the read end of a pipe to which the parent never writes. When the guardian reads end of file, the parent
has exited, so the guardian kills the process group. A thread in the worker could not guarantee this, since the function
may hold the interpreter's lock.

Protocol: the parent writes one JSON object per line to the request pipe and reads responses from the response pipe.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import logging
import os
import queue
import resource
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

PR_SET_PDEATHSIG = 1  # linux/prctl.h
LOG_BOUNDARY = "\x1e"

Handler = Callable[[Any, "Context"], Any]


class LoadError(Exception):
    """The handler cannot be loaded. `kind` is the error type that AWS reports."""

    def __init__(self, kind: str, message: str, trace: list[str]) -> None:
        super().__init__(message)
        self.kind = kind
        self.trace = trace


class Context:
    """The context object, which is the handler's second argument.

    Source: https://docs.aws.amazon.com/lambda/latest/dg/python-context.html (read 2026-11).
    """

    def __init__(self, message: dict[str, Any]) -> None:
        self.aws_request_id: str = message["request_id"]
        self.invoked_function_arn: str = message["invoked_function_arn"]
        self.function_name = os.environ["AWS_LAMBDA_FUNCTION_NAME"]
        self.function_version = os.environ["AWS_LAMBDA_FUNCTION_VERSION"]
        self.memory_limit_in_mb = os.environ["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"]
        self.log_group_name = os.environ["AWS_LAMBDA_LOG_GROUP_NAME"]
        self.log_stream_name = os.environ["AWS_LAMBDA_LOG_STREAM_NAME"]
        self.client_context: Any = message.get("client_context")
        self.identity = None
        self._deadline_seconds = time.monotonic() + float(message["timeout_seconds"])

    def get_remaining_time_in_millis(self) -> int:
        """Return the milliseconds left until the timeout, or 0 if it has passed."""
        return max(0, int((self._deadline_seconds - time.monotonic()) * 1000))

    def log(self, message: object) -> None:
        """Write a message to the function's log without adding a newline."""
        sys.stdout.write(str(message))


class RequestFilter(logging.Filter):
    """Adds the request ID of the running invocation to each log record."""

    request_id = ""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add `aws_request_id` and let the record pass."""
        record.aws_request_id = RequestFilter.request_id
        return True


def guard(life_descriptor: int) -> None:
    """Fork the worker and return in it. The calling process waits here until the worker or the parent exits."""
    guardian_pid = os.getpid()
    worker_alive, held_by_worker = os.pipe()
    worker_pid = os.fork()
    if worker_pid == 0:
        os.close(life_descriptor)
        os.close(worker_alive)
        if sys.platform == "linux":  # the worker must not outlive the guardian
            ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guardian_pid:
            os._exit(1)
        return
    os.close(held_by_worker)
    ready, _, _ = select.select([life_descriptor, worker_alive], [], [])
    if life_descriptor in ready:
        os.killpg(0, signal.SIGKILL)
    _, status = os.waitpid(worker_pid, 0)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(guardian_pid, number)
    os._exit(os.waitstatus_to_exitcode(status))


def read_requests(descriptor: int, requests: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Queue each request line. Runs in a thread so that the parent's writes never block on the handler."""
    with os.fdopen(descriptor, "r", encoding="utf-8") as stream:
        for line in stream:
            requests.put(json.loads(line))


def load_handler(name: str, task_root: str) -> Handler:
    """Import the handler named by Lambda's `Handler` setting, `module.function`.

    Raises:
        LoadError: The name is malformed, the import failed, or the function does not exist.
    """
    module_name, dot, attribute = name.rpartition(".")
    if not dot or not module_name or not attribute:
        raise LoadError("Runtime.MalformedHandlerName", f"Bad handler '{name}': expected MODULE.FUNCTION", [])
    try:
        module = importlib.import_module(module_name.replace("/", "."))
    except ImportError as error:
        raise LoadError("Runtime.ImportModuleError", f"Unable to import module '{module_name}': {error}", []) from error
    except SyntaxError as error:
        where = f"{error.filename} line {error.lineno}"
        message = f"Syntax error in module '{module_name}': {error.msg} ({where})"
        raise LoadError("Runtime.UserCodeSyntaxError", message, []) from error
    except Exception as error:  # an exception in the function's module becomes the response
        trace = own_frames(error.__traceback__, task_root)
        raise LoadError(type(error).__name__, str(error), trace) from error
    found = getattr(module, attribute, None)
    if not callable(found):
        raise LoadError("Runtime.HandlerNotFound", f"Handler '{attribute}' missing on module '{module_name}'", [])
    return found  # type: ignore[no-any-return]


def own_frames(trace: TracebackType | None, task_root: str) -> list[str]:
    """Return the formatted frames, starting with the first frame in the function's package."""
    frames = traceback.extract_tb(trace)
    first = next((i for i, frame in enumerate(frames) if frame.filename.startswith(task_root)), 0)
    return traceback.format_list(frames[first:])


def describe_error(kind: str, message: str, request_id: str | None, trace: list[str]) -> dict[str, Any]:
    """Return the error payload in the format of Lambda's Python runtime."""
    described: dict[str, Any] = {"errorMessage": message, "errorType": kind}
    if request_id is not None:
        described["requestId"] = request_id
    described["stackTrace"] = trace
    return described


class JsonFormatter(logging.Formatter):
    """Formats each record as one line of JSON, with the keys of Lambda's JSON log format."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for a log record."""
        line: dict[str, Any] = {
            "timestamp": self.formatTime(record, "%Y-%m-%dT%H:%M:%SZ"),
            "level": record.levelname,
            "message": record.getMessage(),
            "logger": record.name,
            "requestId": RequestFilter.request_id,
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["errorType"] = record.exc_info[0].__name__
            line["errorMessage"] = str(record.exc_info[1])
            line["stackTrace"] = traceback.format_tb(record.exc_info[2])
        return json.dumps(line, default=str)


def log_error(error: dict[str, Any]) -> None:
    """Write an error and its stack trace to the function's log."""
    if os.environ["AWS_LAMBDA_LOG_FORMAT"] == "JSON":
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        sys.stdout.write(json.dumps({"timestamp": now, "level": "ERROR", **error}) + "\n")
        return
    lines = [f"[ERROR] {error['errorType']}: {error['errorMessage']}"]
    if error["stackTrace"]:
        lines += ["Traceback (most recent call last):", *(frame.rstrip("\n") for frame in error["stackTrace"])]
    sys.stdout.write("\n".join(lines) + "\n")


def answer(handler: Handler, message: dict[str, Any], task_root: str) -> dict[str, Any]:
    """Run an invocation and return the response message."""
    request_id = message["request_id"]
    error: dict[str, Any] | None = None
    payload = "null"
    try:
        result = handler(json.loads(message["payload"]), Context(message))
    except Exception as raised:  # noqa: BLE001 - a handler's exception becomes a response: FunctionError "Unhandled"
        frames = own_frames(raised.__traceback__, task_root)
        error = describe_error(type(raised).__name__, str(raised), request_id, frames)
    else:
        try:
            payload = json.dumps(result)
        except (TypeError, ValueError, RecursionError) as raised:
            text = f"Unable to marshal response: {raised}"
            error = describe_error("Runtime.MarshalError", text, request_id, [])
    if error is not None:
        log_error(error)
        payload = json.dumps(error)
    peak_kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "type": "result",
        "request_id": request_id,
        "failed": error is not None,
        "payload": payload,
        "peak_memory_mib": peak_kibibytes // 1024,
    }


def mark_log_boundary(tag: str) -> None:
    """Mark the end of an invocation's or the initialization's output for the parent's log reader."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.write(1, f"{LOG_BOUNDARY}{tag}\n".encode())


def prepare_logging() -> None:
    """Configure the root logger as on Lambda."""
    sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    sys.stderr.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    handler = logging.StreamHandler(sys.stdout)
    is_json = os.environ["AWS_LAMBDA_LOG_FORMAT"] == "JSON"
    text = "[%(levelname)s]\t%(asctime)s.%(msecs)03dZ\t%(aws_request_id)s\t%(message)s"
    formatter = JsonFormatter() if is_json else logging.Formatter(text, "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    handler.addFilter(RequestFilter())
    root = logging.getLogger()
    root.addHandler(handler)
    level = os.environ["AWS_LAMBDA_LOG_LEVEL"] or ("INFO" if is_json else "WARNING")
    root.setLevel({"TRACE": "DEBUG", "WARN": "WARNING", "FATAL": "CRITICAL"}.get(level, level))


def send(descriptor: int, message: dict[str, Any]) -> None:
    """Write a complete message."""
    data = memoryview((json.dumps(message) + "\n").encode())
    while data:
        data = data[os.write(descriptor, data) :]


def main() -> int:
    """Serve invocations. Return the exit status if the handler cannot be loaded."""
    request_descriptor, response_descriptor, life_descriptor = (int(argument) for argument in sys.argv[1:4])
    for descriptor in (request_descriptor, response_descriptor, life_descriptor):
        os.set_inheritable(descriptor, False)  # child processes of the function must not keep the pipes open
    guard(life_descriptor)
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=read_requests, args=(request_descriptor, requests), daemon=True).start()
    task_root = os.environ["LAMBDA_TASK_ROOT"]
    own_directory = str(Path(__file__).parent)
    sys.path[:] = [task_root, *(entry for entry in sys.path if entry not in ("", own_directory))]
    sys.argv[:] = [os.environ["_HANDLER"]]
    prepare_logging()
    try:
        handler = load_handler(os.environ["_HANDLER"], task_root)
    except LoadError as error:
        described = describe_error(error.kind, str(error), None, error.trace)
        log_error(described)
        mark_log_boundary("init")
        send(response_descriptor, {"type": "init_error", "payload": json.dumps(described)})
        return 1
    mark_log_boundary("init")
    send(response_descriptor, {"type": "ready"})
    while True:
        message = requests.get()
        RequestFilter.request_id = message["request_id"]
        response = answer(handler, message, task_root)
        mark_log_boundary(message["request_id"])
        send(response_descriptor, response)


if __name__ == "__main__":
    sys.exit(main())
