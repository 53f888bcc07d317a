"""Synchronous invocations in processes."""

from __future__ import annotations

import base64
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest

from localcloud.api import ApiError
from localcloud.compute.machines import process_users
from localcloud.functions import sandbox
from localcloud.state import mark_of

ECHO = """
import os
def handler(event, context):
    print("got", event)
    return {"event": event, "id": context.aws_request_id, "pid": os.getpid(), "name": context.function_name}
"""


def payload(result: Any) -> Any:
    return json.loads(result.payload)


def test_handler_receives_the_event_and_its_result_is_returned(cloud) -> None:
    cloud.create("echo", ECHO)
    result = cloud.functions.invoke("echo", {"a": [1, "ü"]})
    assert result.status_code == 200 and result.function_error is None
    assert payload(result)["event"] == {"a": [1, "ü"]}
    assert payload(result)["id"] == result.request_id


def test_process_is_reused_between_invocations(cloud) -> None:
    cloud.create("echo", ECHO)
    first, second = (payload(cloud.functions.invoke("echo", {}))["pid"] for _ in range(2))
    assert first == second


def test_exception_of_a_handler_is_a_function_error_with_its_stack_trace(cloud) -> None:
    cloud.create("broken", "def inner():\n    raise KeyError('nope')\n\ndef handler(event, context):\n    inner()\n")
    result = cloud.functions.invoke("broken", {})
    error = payload(result)
    assert (result.status_code, result.function_error) == (200, "Unhandled")
    assert (error["errorType"], error["errorMessage"]) == ("KeyError", "'nope'")
    assert "main.py" in error["stackTrace"][0] and "runtime_process" not in "".join(error["stackTrace"])
    assert "[ERROR] KeyError: 'nope'" in cloud.log("broken")


def test_process_survives_an_exception_of_its_handler(cloud) -> None:
    cloud.create("moody", "import os\ndef handler(event, context):\n    return 1 / event['by'], os.getpid()\n")
    before = payload(cloud.functions.invoke("moody", {"by": 1}))[1]
    assert cloud.functions.invoke("moody", {"by": 0}).function_error == "Unhandled"
    assert payload(cloud.functions.invoke("moody", {"by": 1}))[1] == before


@pytest.mark.parametrize(
    ("source", "handler", "kind", "text"),
    [
        ("import not_there\n", "main.handler", "Runtime.ImportModuleError", "No module named 'not_there'"),
        ("def other(e, c): ...\n", "main.handler", "Runtime.HandlerNotFound", "Handler 'handler' missing"),
        ("def handler(:\n", "main.handler", "Runtime.UserCodeSyntaxError", "line 1"),
        ("def handler(e, c): ...\n", "handler", "Runtime.MalformedHandlerName", "Bad handler 'handler'"),
        ("raise ValueError('at import')\n", "main.handler", "ValueError", "at import"),
        ("def handler(e, c):\n    return {1, 2}\n", "main.handler", "Runtime.MarshalError", "not JSON serializable"),
        ("import os\ndef handler(e, c):\n    os._exit(3)\n", "main.handler", "Runtime.ExitError", "exit status 3"),
        ("import sys\nsys.exit(4)\n", "main.handler", "Runtime.ExitError", "exit status 4"),
        (
            "import os, signal\ndef handler(e, c):\n    os.kill(os.getpid(), signal.SIGSEGV)\n",
            "main.handler",
            "Runtime.ExitError",
            "signal: SIGSEGV",
        ),
        (
            "def handler(e, c):\n    return 'x' * 7_000_000\n",
            "main.handler",
            "Function.ResponseSizeTooLarge",
            "exceeded",
        ),
    ],
)
def test_failures_have_the_error_types_of_lambda(cloud, source: str, handler: str, kind: str, text: str) -> None:
    cloud.create("failing", source, Handler=handler)
    result = cloud.functions.invoke("failing", {})
    error = payload(result)
    assert result.function_error == "Unhandled"
    assert error["errorType"] == kind
    assert text in error["errorMessage"]


def test_function_that_times_out_is_killed_with_its_children(cloud) -> None:
    source = """
import json, os, subprocess, sys, time
def handler(event, context):
    child = subprocess.Popen(["sleep", "600"])
    with open(event["path"], "w") as file:
        json.dump([os.getpid(), child.pid, context.get_remaining_time_in_millis()], file)
    time.sleep(600)
"""
    path = cloud.state / "pids.json"
    cloud.create("slow", source, Timeout=1)
    result = cloud.functions.invoke("slow", {"path": str(path)})
    assert result.function_error == "Unhandled"
    assert payload(result)["errorType"] == "Sandbox.Timedout"
    assert payload(result)["errorMessage"] == f"RequestId: {result.request_id} Error: Task timed out after 1.00 seconds"
    runtime, child, remaining = json.loads(path.read_text())
    assert 0 < remaining <= 1000
    cloud.wait_for(lambda: not is_running(runtime) and not is_running(child), "both processes to end")
    assert "Task timed out after 1.00 seconds" in cloud.log("slow")
    assert "Status: timeout" in cloud.log("slow")


def test_environment_has_lambdas_variables_and_none_of_the_caller(cloud, monkeypatch) -> None:
    source = "import os, sys\ndef handler(e, c):\n    return dict(os.environ), os.getcwd(), sys.path, sys.argv\n"
    cloud.create("env", source, Environment={"Variables": {"MODE": "demo"}}, MemorySize=256)
    monkeypatch.setenv("SECRET_OF_CALLER", "1")
    monkeypatch.setenv("AWS_PROFILE", "production")
    environment, directory, path, arguments = payload(cloud.functions.invoke("env", {}))
    root = environment["LAMBDA_TASK_ROOT"]
    assert environment["MODE"] == "demo"
    assert environment["AWS_ENDPOINT_URL"] == cloud.clients.endpoint_url
    assert environment["AWS_REGION"] == environment["AWS_DEFAULT_REGION"] == "us-east-1"
    assert environment["AWS_SESSION_TOKEN"].startswith("token-")
    assert environment["AWS_LAMBDA_FUNCTION_NAME"] == "env"
    assert environment["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"] == "256"
    assert environment["LOCALCLOUD_MARK"] == mark_of(cloud.state)
    assert root.startswith(str(cloud.state / "functions" / "env")) and directory == root and path[0] == root
    assert not any("localcloud" in entry for entry in path)
    assert not {"SECRET_OF_CALLER", "AWS_PROFILE", "PYTEST_CURRENT_TEST", "VIRTUAL_ENV"} & environment.keys()
    assert arguments == ["main.handler"]


def test_function_runs_with_a_session_of_its_role(cloud) -> None:
    role = cloud.role("worker")
    cloud.create("worker", "import os\ndef handler(e, c):\n    return os.environ['AWS_ACCESS_KEY_ID']\n", Role=role)
    key = payload(cloud.functions.invoke("worker", {}))
    assert (role, "worker", "lambda.amazonaws.com") in cloud.issuer.issued
    assert key.startswith("ASIA")


def test_expiring_session_is_renewed_in_a_new_process(cloud) -> None:
    cloud.issuer.lifetime_seconds = 310  # within the margin once the function's 20 s are added
    cloud.create("renewed", "import os\ndef handler(e, c):\n    return os.getpid(), os.environ['AWS_SESSION_TOKEN']\n")
    first, second = (payload(cloud.functions.invoke("renewed", {})) for _ in range(2))
    assert first[0] != second[0] and first[1] != second[1]


def test_role_that_does_not_trust_lambda_is_refused_at_creation(cloud) -> None:
    role = cloud.role("stranger")
    cloud.issuer.refused_roles.add(role)
    with pytest.raises(ApiError) as refusal:
        cloud.create("stranger", ECHO, Role=role)
    assert refusal.value.code == "InvalidParameterValueException"
    assert "cannot be assumed by Lambda" in refusal.value.message


def test_boto3_is_available(cloud) -> None:
    cloud.create(
        "boto",
        "import boto3\ndef handler(e, c):\n    return boto3.client('sts').get_caller_identity()['Account']\n",
    )
    assert payload(cloud.functions.invoke("boto", {})) == "123456789012"


def test_new_code_and_settings_apply_to_the_next_invocation(cloud) -> None:
    cloud.create("changing", "import os\ndef handler(e, c):\n    return 1, os.environ.get('A'), os.getpid()\n")
    first = payload(cloud.functions.invoke("changing", {}))
    new_source = "import os\ndef handler(e, c):\n    return 2, os.environ.get('A'), os.getpid()\n"
    cloud.call("UpdateFunctionCode", FunctionName="changing", ZipFile=cloud.package(new_source))
    second = payload(cloud.functions.invoke("changing", {}))
    cloud.call("UpdateFunctionConfiguration", FunctionName="changing", Environment={"Variables": {"A": "b"}})
    third = payload(cloud.functions.invoke("changing", {}))
    assert [first[:2], second[:2], third[:2]] == [[1, None], [2, None], [2, "b"]]
    cloud.wait_for(lambda: not is_running(first[2]) and not is_running(second[2]), "the old processes to end")


def test_code_is_loaded_from_s3(cloud) -> None:
    s3 = cloud.clients.direct("s3")
    s3.create_bucket(Bucket="assets")
    s3.put_object(Bucket="assets", Key="code.zip", Body=cloud.package("def handler(e, c):\n    return 'from s3'\n"))
    cloud.create("stored", "", Code={"S3Bucket": "assets", "S3Key": "code.zip"})
    assert payload(cloud.functions.invoke("stored", {})) == "from s3"


def test_versions_and_aliases_keep_their_code(cloud) -> None:
    cloud.create("aged", "def handler(e, c):\n    return 'old', c.function_version, c.invoked_function_arn\n")
    cloud.call("PublishVersion", FunctionName="aged")
    cloud.call("CreateAlias", FunctionName="aged", Name="live", FunctionVersion="1")
    cloud.call(
        "UpdateFunctionCode", FunctionName="aged", ZipFile=cloud.package("def handler(e, c):\n    return 'new'\n")
    )
    arn = "arn:aws:lambda:us-east-1:123456789012:function:aged"
    assert payload(cloud.functions.invoke(f"{arn}:live", {})) == ["old", "1", f"{arn}:1"]
    assert payload(cloud.functions.invoke("aged", {})) == "new"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"Runtime": "nodejs22.x"}, "supports only python3.x runtimes"),
        ({"FileSystemConfigs": [{"Arn": "arn:aws:efs", "LocalMountPath": "/mnt/x"}]}, "FileSystemConfigs: "),
        ({"Layers": ["arn:aws:lambda:us-east-1:1:layer:l:1"]}, "layer:l:1'] is not supported by the embedded cloud"),
        ({"PackageType": "Image", "Code": {"ImageUri": "x"}}, "supports only zip packages"),
        ({"Environment": {"Variables": {"AWS_REGION": "x"}}}, "AWS_REGION"),
        ({"Environment": {"Variables": {"BIG": "x" * 5000}}}, "4KB limit"),
        ({"DeadLetterConfig": {"TargetArn": "arn:aws:sqs:us-east-1:1:x"}}, "DeadLetterConfig: "),
    ],
)
def test_unsupported_settings_are_refused(cloud, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ApiError) as refusal:
        cloud.create("impossible", ECHO, **settings)
    assert refusal.value.code == "InvalidParameterValueException"
    assert text in refusal.value.message


def test_invocation_of_a_missing_function_is_a_404(cloud) -> None:
    with pytest.raises(ApiError) as refusal:
        cloud.functions.invoke("missing", {})
    assert (refusal.value.code, refusal.value.status) == ("ResourceNotFoundException", 404)


def test_invoke_answers_in_the_shape_of_boto3(cloud) -> None:
    cloud.create("echo", ECHO)
    answer = cloud.call(
        "Invoke",
        FunctionName="echo",
        Payload=b'{"n": 1}',
        LogType="Tail",
        ClientContext=base64.b64encode(b'{"custom": {}}').decode(),
    )
    log = base64.b64decode(answer["LogResult"]).decode()
    assert answer["StatusCode"] == 200 and answer["ExecutedVersion"] == "$LATEST" and "FunctionError" not in answer
    assert json.loads(answer["Payload"])["event"] == {"n": 1}
    assert log.startswith("START RequestId: ") and "got {'n': 1}" in log and "REPORT RequestId: " in log
    assert cloud.call("Invoke", FunctionName="echo", InvocationType="DryRun")["StatusCode"] == 204
    with pytest.raises(ApiError) as refusal:
        cloud.call("Invoke", FunctionName="echo", Payload=b"{")
    assert refusal.value.code == "InvalidRequestContentException"


def test_payload_up_to_the_limit_is_accepted_and_a_larger_one_refused(cloud) -> None:
    cloud.create("size", "def handler(e, c):\n    return len(e)\n")
    assert payload(cloud.functions.invoke("size", "x" * 5_000_000)) == 5_000_000
    with pytest.raises(ApiError) as refusal:
        cloud.functions.invoke("size", "x" * 7_000_000)
    assert refusal.value.status == 413


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


LOOK = """
import os
import sys
from pathlib import Path
def handler(event, context):
    found = {"user": os.getuid(), "groups": os.getgroups()}
    Path(os.environ["TMPDIR"], "own").write_text("x")
    for path in event["read"]:
        try:
            found[path] = Path(path).read_text()
        except OSError as error:
            found[path] = type(error).__name__
    try:
        (Path(os.environ["LAMBDA_TASK_ROOT"]) / "main.py").write_text("")
        found["package"] = "changed"
    except OSError as error:
        found["package"] = type(error).__name__
    return found
"""


INTERPRETERS = [path for path in (sys.executable, "/usr/bin/python3") if Path(path).exists()]
REACHABLE = [path for path in INTERPRETERS if process_users.obstacle([Path(path), sandbox.RUNTIME]) is None]


@pytest.mark.skipif(os.geteuid() != 0 or not REACHABLE, reason="no interpreter that another user can start")
def test_function_has_its_own_user_and_reads_no_file_of_the_cloud(
    cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", REACHABLE[0])  # runtime_process.py needs only the standard library
    monkeypatch.setattr(process_users, "obstacle", lambda paths: None)
    for folder in (tmp_path, *tmp_path.parents):  # pytest closes its folders to other users
        if folder.is_relative_to(tempfile.gettempdir()) and folder != Path(tempfile.gettempdir()):
            folder.chmod(0o711)
    cloud.create("other", ECHO)
    cloud.functions.invoke("other", {})
    (package,) = (cloud.state / "functions" / "other").glob("*/main.py")
    secret = cloud.state / "cloud.json"
    secret.touch(mode=0o600)
    read = [str(secret), str(package), str(cloud.state / "functions" / "other.log"), "/proc/1/environ"]
    cloud.create("look", LOOK)
    found = payload(cloud.functions.invoke("look", {"read": read}))
    assert found["user"] in process_users.FUNCTION_USERS
    assert found["groups"] in ([], [found["user"]])
    assert {found[path] for path in [*read, "package"]} == {"PermissionError"}
    assert found["user"] != process_users.function_user("other", cloud.state)
