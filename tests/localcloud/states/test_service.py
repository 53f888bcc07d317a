"""State machines in a complete embedded cloud, through the gateway and with IAM enforced."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from moto.moto_api._internal.models import moto_api_backend

from localcloud.cloud import LocalCloud
from tests.localcloud.core.conftest import client_of, make_role
from tests.localcloud.functions.conftest import package, wait_for
from tests.localcloud.states.test_engine import INVOKE, WAIT, machine

ACCOUNT, REGION = "123456789012", "us-east-1"
TOKEN_SECONDS = 120.0
MACHINE = f"arn:aws:states:{REGION}:{ACCOUNT}:stateMachine"
PROGRAM = """
import boto3
def handler(event, context):
    if event.get("fails"):
        raise KeyError(event["fails"])
    if "token" in event:
        s3 = boto3.client("s3")
        s3.put_object(Bucket="data", Key=f"tokens/{event['item']}", Body=event["token"].encode())
        return None
    return {"echo": event}
"""


class Setting:
    """A cloud with a bucket, a function and roles."""

    def __init__(self, state: Path) -> None:
        self.cloud = LocalCloud(state, region=REGION)
        self.cloud.start()
        s3 = self.client("s3")
        s3.create_bucket(Bucket="data")
        s3.put_object(Bucket="data", Key="items.json", Body=json.dumps(["a", "b", "c"]))
        role = self.role("function", "lambda", ("s3:PutObject", "arn:aws:s3:::data/tokens/*"))
        self.function = self.client("lambda").create_function(
            FunctionName="f",
            Runtime="python3.11",
            Handler="main.handler",
            Role=role,
            Code={"ZipFile": package(PROGRAM)},
            Timeout=20,
        )["FunctionArn"]
        self.states = self.client("stepfunctions")

    def client(self, service: str) -> Any:
        return self.cloud.clients.client(service)

    def role(self, name: str, service: str, *allowed: tuple[str, str]) -> str:
        statements = [{"Action": action, "Resource": resource} for action, resource in allowed]
        condition = {"ArnLike": {"aws:SourceArn": f"{MACHINE}:*"}} if service == "states" else None
        return make_role(self.cloud, name, *statements, trusted=f"{service}.amazonaws.com", condition=condition)

    def machine(self, name: str, definition: dict[str, Any], *allowed: tuple[str, str]) -> str:
        role = self.role(f"role-of-{name}", "states", *allowed)
        made = self.states.create_state_machine(name=name, definition=json.dumps(definition), roleArn=role)
        return str(made["stateMachineArn"])

    def ended(self, arn: str) -> dict[str, Any]:
        def end() -> dict[str, Any] | None:
            found: dict[str, Any] = self.states.describe_execution(executionArn=arn)
            return None if found["status"] == "RUNNING" else found

        found: dict[str, Any] = wait_for(end, "the end of the execution", TOKEN_SECONDS)
        return found

    def token(self, item: str, before: str = "") -> str:
        def new() -> str | None:
            try:
                body = self.client("s3").get_object(Bucket="data", Key=f"tokens/{item}")["Body"].read().decode()
            except ClientError:
                return None
            return None if body == before else str(body)

        return str(wait_for(new, f"the token of {item}", TOKEN_SECONDS))


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    moto_api_backend.reset()  # moto's records outlive a cloud in the same process
    made = Setting(tmp_path_factory.mktemp("cloud"))
    yield made
    made.cloud.close()


def call(resource: str, function: str, payload: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"Type": "Task", "Resource": resource, "Parameters": {"FunctionName": function, "Payload": payload}, **more}


def test_a_function_runs_with_the_permission_of_the_machine(setting: Setting) -> None:
    definition = machine(A=call(INVOKE, setting.function, {"x.$": "$.x"}, OutputPath="$.Payload", End=True))
    allowed = setting.machine("allowed", definition, ("lambda:InvokeFunction", setting.function))
    found = setting.ended(setting.states.start_execution(stateMachineArn=allowed, input='{"x": 1}')["executionArn"])
    assert (found["status"], json.loads(found["output"])) == ("SUCCEEDED", {"echo": {"x": 1}})
    denied = setting.machine("denied", definition, ("lambda:InvokeFunction", f"{setting.function}-other"))
    found = setting.ended(setting.states.start_execution(stateMachineArn=denied, input='{"x": 1}')["executionArn"])
    assert found["status"] == "FAILED"
    assert "lambda:InvokeFunction" in found["cause"]


def test_a_failed_function_names_its_exception(setting: Setting) -> None:
    definition = machine(A=call(INVOKE, setting.function, {"fails": "why"}, End=True))
    arn = setting.machine("failing", definition, ("lambda:InvokeFunction", setting.function))
    found = setting.ended(setting.states.start_execution(stateMachineArn=arn)["executionArn"])
    assert (found["status"], found["error"]) == ("FAILED", "KeyError")


def map_of_items(function: str) -> dict[str, Any]:
    """Return a definition that starts a child for each item and waits for its token."""
    payload = {"token.$": "$$.Task.Token", "item.$": "$"}
    return machine(
        Train={
            "Type": "Map",
            "Label": "Train",
            "ItemReader": {
                "Resource": "arn:aws:states:::s3:getObject",
                "ReaderConfig": {"InputType": "JSON"},
                "Parameters": {"Bucket": "data", "Key": "items.json"},
            },
            "ItemProcessor": {
                "ProcessorConfig": {"Mode": "DISTRIBUTED", "ExecutionType": "STANDARD"},
                **machine(run=call(WAIT, function, payload, End=True)),
            },
            "MaxConcurrency": 2,
            "End": True,
        }
    )


def test_members_wait_for_their_tokens_and_a_redrive_gives_new_ones(setting: Setting) -> None:
    definition = map_of_items(setting.function)
    arn = setting.machine(
        "sweep",
        definition,
        ("lambda:InvokeFunction", setting.function),
        ("s3:GetObject", "arn:aws:s3:::data/items.json"),
        ("states:StartExecution", f"{MACHINE}:sweep"),
        ("states:RedriveExecution", f"arn:aws:states:{REGION}:{ACCOUNT}:execution:sweep/*:*"),
    )
    worker = setting.cloud.identity.issue(
        setting.role("worker", "lambda", ("states:SendTask*", f"{MACHINE}:sweep/*")),
        "worker",
        trusted_service="lambda.amazonaws.com",
        duration_seconds=900,
    )
    answers = client_of(setting.cloud, worker, "stepfunctions")
    execution = setting.states.start_execution(stateMachineArn=arn)["executionArn"]
    answers.send_task_success(taskToken=setting.token("a"), output='"done a"')
    old, old_c = setting.token("b"), setting.token("c")
    answers.send_task_failure(taskToken=old, error="RunFailed", cause="out of memory")
    found = setting.ended(execution)
    assert (found["status"], found["error"]) == ("FAILED", "States.ExceedToleratedFailureThreshold")
    (run,) = setting.states.list_map_runs(executionArn=execution)["mapRuns"]
    failed = setting.states.list_executions(mapRunArn=run["mapRunArn"], statusFilter="FAILED")["executions"]
    assert len(failed) == 1
    setting.states.redrive_execution(executionArn=execution)
    new = setting.token("b", before=old)
    with pytest.raises(ClientError, match="TaskTimedOut"):
        answers.send_task_heartbeat(taskToken=old)
    answers.send_task_success(taskToken=new, output='"done b"')
    answers.send_task_success(taskToken=setting.token("c", before=old_c), output='"done c"')
    found = setting.ended(execution)
    assert (found["status"], found["redriveCount"]) == ("SUCCEEDED", 1)
    assert json.loads(found["output"]) == ["done a", "done b", "done c"]
    counts = setting.states.describe_map_run(mapRunArn=run["mapRunArn"])["executionCounts"]
    assert (counts["succeeded"], counts["total"]) == (3, 3)


def test_a_map_needs_the_permission_to_start_its_children(setting: Setting) -> None:
    definition = map_of_items(setting.function)
    arn = setting.machine("no-children", definition, ("s3:GetObject", "arn:aws:s3:::data/items.json"))
    found = setting.ended(setting.states.start_execution(stateMachineArn=arn)["executionArn"])
    assert found["status"] == "FAILED"
    assert "states:StartExecution" in found["cause"]


def test_an_execution_is_stopped_and_unsupported_calls_are_rejected(setting: Setting) -> None:
    payload = {"token.$": "$$.Task.Token", "item": "stopped"}
    definition = machine(A=call(WAIT, setting.function, payload, End=True))
    arn = setting.machine("stopped", definition, ("lambda:InvokeFunction", setting.function))
    execution = setting.states.start_execution(stateMachineArn=arn, name="one")["executionArn"]
    token = setting.token("stopped")
    setting.states.stop_execution(executionArn=execution, error="Stopped", cause="a user")
    assert setting.ended(execution)["status"] == "ABORTED"
    with pytest.raises(ClientError, match="TaskTimedOut"):
        setting.states.send_task_success(taskToken=token, output="{}")
    with pytest.raises(ClientError, match="InvalidToken"):
        setting.states.send_task_success(taskToken="x", output="{}")
    with pytest.raises(ClientError, match="ExecutionAlreadyExists"):
        setting.states.start_execution(stateMachineArn=arn, name="one")
    with pytest.raises(ClientError, match="NotImplemented"):
        setting.states.list_activities()
    with pytest.raises(ClientError, match="Catch"):
        setting.machine(
            "catching",
            machine(A={**definition["States"]["A"], "Catch": []}),
            ("lambda:InvokeFunction", setting.function),
        )
