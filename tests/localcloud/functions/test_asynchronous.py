"""Asynchronous invocations: retries, concurrency, logs, and shutdown of the cloud."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
from botocore.exceptions import ClientError

from localcloud.api import ApiError

COUNTING = """
def handler(event, context):
    with open(event["path"], "a") as file:
        file.write(context.aws_request_id + "\\n")
    if len(open(event["path"]).readlines()) <= event["failures"]:
        raise RuntimeError("not yet")
    return "done"
"""
WAITING = """
import os, time
def handler(event, context):
    open(event["started"], "a").write("x")
    while not os.path.exists(event["release"]):
        time.sleep(0.02)
    return os.getpid()
"""


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_event_is_retried_twice_with_the_same_request_id(cloud) -> None:
    cloud.create("counting", COUNTING)
    path = cloud.state / "attempts"
    result = cloud.functions.invoke("counting", {"path": str(path), "failures": 99}, invocation_type="Event")
    assert (result.status_code, result.payload) == (202, b"")
    failed = cloud.wait_for(lambda: cloud.records("function_failed"), "the event to be dropped")
    assert lines(path) == [result.request_id] * 3
    assert failed[0]["attempts"] == 3 and failed[0]["error_message"] == "not yet"


def test_retries_end_with_success(cloud) -> None:
    cloud.create("counting", COUNTING)
    path = cloud.state / "attempts"
    cloud.functions.invoke("counting", {"path": str(path), "failures": 1}, invocation_type="Event")
    cloud.wait_for(lambda: len(lines(path)) == 2, "the second attempt")
    cloud.wait_for(lambda: cloud.log("counting").count("REPORT ") == 2, "the end of the second attempt")
    assert cloud.records("function_failed") == []


def test_calls_above_reserved_concurrency_are_throttled(cloud) -> None:
    cloud.create("waiting", WAITING)
    cloud.call("PutFunctionConcurrency", FunctionName="waiting", ReservedConcurrentExecutions=1)
    started, release = cloud.state / "started", cloud.state / "release"
    event = {"started": str(started), "release": str(release)}
    answers: list[Any] = []
    caller = threading.Thread(target=lambda: answers.append(cloud.functions.invoke("waiting", event)))
    caller.start()
    try:
        cloud.wait_for(started.exists, "the first invocation to start")
        with pytest.raises(ApiError) as refusal:
            cloud.functions.invoke("waiting", event)
        assert (refusal.value.code, refusal.value.status) == ("TooManyRequestsException", 429)
        cloud.functions.invoke("waiting", event, invocation_type="Event")  # queued
    finally:
        release.touch()
        caller.join(20)
    assert answers[0].function_error is None
    cloud.wait_for(lambda: len(started.read_text()) == 2, "the queued event to start")


def test_concurrent_invocations_have_separate_processes(cloud) -> None:
    cloud.create("waiting", WAITING)
    started, release = cloud.state / "started", cloud.state / "release"
    event = {"started": str(started), "release": str(release)}
    pids: list[int] = []
    callers = [
        threading.Thread(target=lambda: pids.append(json.loads(cloud.functions.invoke("waiting", event).payload)))
        for _ in range(2)
    ]
    for caller in callers:
        caller.start()
    try:
        cloud.wait_for(lambda: started.exists() and len(started.read_text()) == 2, "both to start")
    finally:
        release.touch()
        for caller in callers:
            caller.join(20)
    assert len(set(pids)) == 2


def test_output_is_sent_to_cloudwatch_logs_with_the_functions_role(cloud) -> None:
    cloud.create("talking", "import logging\ndef handler(e, c):\n    print('one')\n    logging.error('two')\n")
    cloud.functions.invoke("talking", {})
    assert cloud.functions.flush_logs()
    logs = cloud.clients.direct("logs")
    messages = [e["message"] for e in logs.filter_log_events(logGroupName="/aws/lambda/talking")["events"]]
    assert messages[0].startswith("START RequestId: ")
    assert messages[1] == "one"
    assert messages[2].startswith("[ERROR]\t") and messages[2].endswith("\ttwo")
    assert messages[3].startswith("END RequestId: ") and messages[4].startswith("REPORT RequestId: ")
    assert cloud.log("talking").splitlines() == messages


def test_custom_log_group_is_used(cloud) -> None:
    cloud.create("grouped", "def handler(e, c):\n    return c.log_group_name\n", LoggingConfig={"LogGroup": "/mine"})
    assert json.loads(cloud.functions.invoke("grouped", {}).payload) == "/mine"
    assert cloud.functions.flush_logs()
    assert cloud.clients.direct("logs").describe_log_streams(logGroupName="/mine")["logStreams"]
    configuration = cloud.call("GetFunctionConfiguration", FunctionName="grouped")
    assert configuration["LoggingConfig"]["LogGroup"] == "/mine"


def test_json_log_format(cloud) -> None:
    source = """
import logging
def handler(event, context):
    logging.info("seen")
    logging.debug("unseen")
    raise ValueError("no")
"""
    cloud.create("json", source, LoggingConfig={"LogFormat": "JSON", "ApplicationLogLevel": "INFO"})
    request_id = cloud.functions.invoke("json", {}).request_id
    start, seen, error, report = [json.loads(line) for line in cloud.log("json").splitlines()]
    assert (start["type"], start["record"]["requestId"]) == ("platform.start", request_id)
    assert (seen["level"], seen["message"], seen["requestId"]) == ("INFO", "seen", request_id)
    assert (error["level"], error["errorType"], error["errorMessage"]) == ("ERROR", "ValueError", "no")
    assert (report["type"], report["record"]["status"]) == ("platform.report", "error")


def test_function_without_permission_to_write_logs_still_runs(cloud, monkeypatch) -> None:
    class Refusing:
        class exceptions:
            ResourceNotFoundException = KeyError

        def create_log_stream(self, **_: Any) -> None:
            raise ClientError({"Error": {"Code": "AccessDeniedException", "Message": "no"}}, "CreateLogStream")

    monkeypatch.setattr("localcloud.functions.sessions.RoleSessions.client", lambda *_: Refusing())
    cloud.create("silent", "def handler(e, c):\n    print('printed')\n    return 1\n")
    assert json.loads(cloud.functions.invoke("silent", {}).payload) == 1
    assert cloud.functions.flush_logs()
    assert "printed" in cloud.log("silent")
    assert cloud.clients.direct("logs").describe_log_groups()["logGroups"] == []


def test_deletion_of_a_function_ends_its_processes(cloud) -> None:
    cloud.create("deleted", "import os\ndef handler(e, c):\n    return os.getpid()\n")
    pid = json.loads(cloud.functions.invoke("deleted", {}).payload)
    cloud.call("DeleteFunction", FunctionName="deleted")
    cloud.wait_for(lambda: not psutil.pid_exists(pid), "the process to end")
    with pytest.raises(ApiError):
        cloud.functions.invoke("deleted", {})


def test_close_ends_running_functions(cloud) -> None:
    cloud.create("waiting", WAITING)
    started = cloud.state / "started"
    event = {"started": str(started), "release": str(cloud.state / "never")}
    cloud.functions.invoke("waiting", event, invocation_type="Event")
    cloud.wait_for(started.exists, "the function to start")
    pids = [pid for found in json.loads(cloud.functions.http("GET", "processes", b"")[1]).values() for pid in found]
    cloud.functions.close()
    assert pids and not any(psutil.pid_exists(pid) for pid in pids)
    assert cloud.records("function_failed") == cloud.records("function_not_run") == []


DAEMON = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from moto.server import ThreadedMotoServer
from conftest import Cloud, FakeIssuer, MotoClients
from localcloud.functions.service import FunctionService
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
clients, issuer, state = MotoClients(f"http://{host}:{port}"), FakeIssuer(), Path(sys.argv[2])
cloud = Cloud(clients, issuer, state, FunctionService(clients, issuer, state))
cloud.create("busy", sys.stdin.read())
cloud.functions.invoke("busy", {"path": str(state / "pids")})
"""
BUSY = """
import json, os, subprocess, time
def handler(event, context):
    child = subprocess.Popen(["sleep", "600"])
    with open(event["path"] + ".new", "w") as file:
        json.dump([os.getpid(), child.pid], file)
    os.rename(event["path"] + ".new", event["path"])
    time.sleep(600)
"""


def test_no_function_process_outlives_a_killed_cloud(cloud) -> None:
    here = Path(__file__).parent
    daemon = subprocess.Popen(
        [sys.executable, "-c", DAEMON, str(here), str(cloud.state)],
        stdin=subprocess.PIPE,
        cwd=here.parents[2],
        env={**os.environ, "PYTHONPATH": str(here.parents[2])},
    )
    try:
        assert daemon.stdin is not None
        daemon.stdin.write(BUSY.encode())
        daemon.stdin.close()
        path = cloud.state / "pids"
        cloud.wait_for(path.exists, "the function to start")
        pids = json.loads(path.read_text())
        assert all(psutil.pid_exists(pid) for pid in pids)
    finally:
        daemon.send_signal(signal.SIGKILL)
        daemon.wait()
    cloud.wait_for(lambda: not any(alive(pid) for pid in pids), "the runtime and its child to end")


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_ended_processes_leave_no_descriptors_or_scratch_folders(cloud) -> None:
    cloud.create("exits", "import os\ndef handler(e, c):\n    os._exit(1)\n")
    cloud.functions.invoke("exits", {})
    before = num_pipes()
    for _ in range(5):
        cloud.functions.invoke("exits", {})
    assert num_pipes() == before
    assert not list((cloud.state / "functions" / "exits").glob("scratch-*"))


def num_pipes() -> int:
    return sum("pipe:[" in os.path.realpath(entry) for entry in Path("/proc/self/fd").iterdir())
