"""What executions use in the embedded cloud: functions and objects, as the state machine's role, and the event bus."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from localcloud.api import ApiError, Call, Clients, EventBus, Principal
from localcloud.functions.sessions import RoleSessions
from localcloud.functions.states.engine import Engine
from localcloud.functions.states.model import Attempt, Execution, StateFailed, text_of


class CloudPorts:
    """engine.Ports. `engine` is set after both exist."""

    engine: Engine

    def __init__(
        self,
        clients: Clients,
        sessions: RoleSessions,
        bus: EventBus,
        authorise: Callable[[Call], None],
        authenticate: Callable[[str, str | None], Principal],
        pool: ThreadPoolExecutor,
    ) -> None:
        self._clients = clients
        self._sessions = sessions
        self._bus = bus
        self._authorise = authorise
        self._authenticate = authenticate
        self._pool = pool

    def invoke(self, attempt: Attempt, parameters: Mapping[str, Any]) -> None:
        """Invoke the function of a task in another thread."""
        try:
            self._pool.submit(self._invoke, attempt, parameters)
        except RuntimeError:  # the cloud is closing
            return

    def _invoke(self, attempt: Attempt, parameters: Mapping[str, Any]) -> None:
        try:
            client = self._client("lambda", attempt.execution)
            payload = text_of(parameters.get("Payload", {})).encode()
            answer = client.invoke(FunctionName=parameters["FunctionName"], Payload=payload)
            output = json.loads(answer["Payload"].read() or b"null")
        except StateFailed as error:
            self.engine.failed(attempt, error.error, error.cause)
        except ClientError as error:
            name = f"Lambda.{error.response['Error']['Code']}"
            self.engine.failed(attempt, name, str(error))
        except BotoCoreError as error:
            self.engine.failed(attempt, "Lambda.SdkClientException", str(error))
        else:
            if "FunctionError" in answer:
                self.engine.failed(attempt, str(output.get("errorType", "Unhandled")), text_of(output))
                return
            version = answer.get("ExecutedVersion", "$LATEST")
            self.engine.returned(attempt, {"ExecutedVersion": version, "Payload": output, "StatusCode": 200})

    def items(self, execution: Execution, bucket: str, key: str) -> list[Any]:
        """Read a JSON array from S3."""
        try:
            answer = self._client("s3", execution).get_object(Bucket=bucket, Key=key)
            found = json.loads(answer["Body"].read())
        except (ClientError, BotoCoreError, ValueError) as error:
            raise StateFailed("States.ItemReaderFailed", f"s3://{bucket}/{key}: {error}") from error
        if not isinstance(found, list):
            raise StateFailed("States.ItemReaderFailed", f"s3://{bucket}/{key}: not a JSON array")
        return found

    def may_run_map(self, execution: Execution, *, is_redrive: bool) -> None:
        """Authorize the start or the redrive of child executions, which AWS does with the role's permissions."""
        machine = execution.machine
        run = execution.map_run
        operation, parameters = "StartExecution", {"stateMachineArn": machine.arn}
        if is_redrive and run is not None:
            prefix = execution.arn.partition(":execution:")[0]
            children = f"{prefix}:execution:{machine.name}/{run.label}:*"
            operation, parameters = "RedriveExecution", {"executionArn": children}
        try:
            issued = self._sessions.credentials(execution.role_arn, _session(execution), source_arn=machine.arn)
            principal = self._authenticate(issued.access_key_id, issued.session_token)
            region, account = self._clients.region, self._clients.account
            self._authorise(Call("stepfunctions", operation, parameters, principal, region, account))
        except ApiError as error:
            raise StateFailed("StepFunctions.AccessDeniedException", error.message) from error

    def changed(self, execution: Execution) -> None:
        """Publish the status of an execution. Child executions of a map run send no events."""
        if execution.parent is not None:
            return
        detail: dict[str, Any] = {
            "executionArn": execution.arn,
            "stateMachineArn": execution.machine.arn,
            "name": execution.name,
            "status": execution.status,
            "startDate": int(execution.started * 1000),
            "stopDate": None if execution.stopped is None else int(execution.stopped * 1000),
            "input": text_of(execution.input),
            "output": None if execution.output is None else text_of(execution.output),
        }
        self._bus.publish("aws.states", "Step Functions Execution Status Change", detail, [execution.arn])

    def _client(self, service: str, execution: Execution) -> Any:
        try:
            source = execution.machine.arn
            return self._sessions.client(service, execution.role_arn, _session(execution), source_arn=source)
        except ApiError as error:
            raise StateFailed("States.Permissions", error.message) from error


def _session(execution: Execution) -> str:
    """Return a name for the role session, which is equal for all calls of an execution."""
    return uuid.uuid5(uuid.NAMESPACE_URL, execution.machine.arn).hex
