"""Event source mappings: threads that receive messages from SQS queues and invoke functions with them.

Each mapping calls SQS with its function's role, as Lambda does, and runs one invocation at a time. On AWS, a standard
queue has several concurrent invocations, and a FIFO queue has one for each message group.
Source: https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-scaling.html (read 2026-11).
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from localcloud.api import ApiError, Call, Handler
from localcloud.functions.definition import FunctionDefinition
from localcloud.functions.sessions import RoleSessions
from localcloud.journal import RecordLog

_logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
"""Interval between checks for messages that are visible again. New messages wake the thread immediately."""
FIFO_BATCH, STANDARD_BATCH, DEFAULT_BATCH = 10, 10_000, 10
RECEIVED_AT_ONCE = 10
"""ReceiveMessage's maximum. A larger batch needs a batching window, which is not supported."""
SUPPORTED_SETTINGS = (
    "BatchSize",
    "Enabled",
    "EventSourceArn",
    "FunctionName",
    "MaximumBatchingWindowInSeconds",
    "Tags",
)

Invoke = Callable[[FunctionDefinition, str], bool]
"""Invokes a function with a JSON payload; returns True if it succeeded. It may raise ApiError."""


@dataclass
class Mapped:
    """An event source mapping and its thread."""

    uuid: str
    function: str
    queue_arn: str
    batch_size: int
    is_enabled: bool
    changed_unix_seconds: float
    wake: threading.Event = field(default_factory=threading.Event)
    closed: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None


class EventSourceMappings:
    """The mappings of all functions."""

    def __init__(
        self,
        sessions: RoleSessions,
        define: Callable[[str, str | None], FunctionDefinition],
        invoke: Invoke,
        records: RecordLog,
        *,
        endpoint_url: str,
        arn_prefix: str,
    ) -> None:
        self._sessions = sessions
        self._define = define
        self._invoke = invoke
        self._records = records
        self._endpoint_url = endpoint_url
        self._arn_prefix = arn_prefix
        self._lock = threading.Lock()
        self._mappings: dict[str, Mapped] = {}

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers, keyed by operation."""
        return {
            "CreateEventSourceMapping": self._create,
            "GetEventSourceMapping": self._get,
            "ListEventSourceMappings": self._list,
            "UpdateEventSourceMapping": self._update,
            "DeleteEventSourceMapping": self._delete,
        }

    def wake(self, queue_name: str) -> None:
        """Receive a queue's messages now."""
        with self._lock:
            found = [one for one in self._mappings.values() if one.queue_arn.rpartition(":")[2] == queue_name]
        for one in found:
            one.wake.set()

    def close(self) -> None:
        """Stop all threads without waiting for their invocations."""
        with self._lock:
            mappings = list(self._mappings.values())
        for one in mappings:
            _stop(one)

    def _create(self, call: Call) -> Mapping[str, Any]:
        parameters = call.parameters
        self._refuse_unsupported(parameters)
        arn = str(parameters.get("EventSourceArn", ""))
        if arn.split(":")[2:3] != ["sqs"]:
            raise ApiError(
                "InvalidParameterValueException",
                f"EventSourceArn {arn}: the embedded cloud supports only SQS queues",
            )
        definition = self._define(parameters["FunctionName"], None)
        mapped = Mapped(
            uuid=str(uuid.uuid4()),
            function=definition.name,
            queue_arn=arn,
            batch_size=_batch_size(parameters, arn),
            is_enabled=bool(parameters.get("Enabled", True)),
            changed_unix_seconds=time.time(),
        )
        self._check(mapped, definition)
        with self._lock:
            if any((one.function, one.queue_arn) == (mapped.function, arn) for one in self._mappings.values()):
                raise ApiError(
                    "ResourceConflictException",
                    f'The event source arn (" {arn} ") and function (" {mapped.function} ") provided mapping already '
                    "exists. Please update or delete the existing mapping.",
                    409,
                )
            self._mappings[mapped.uuid] = mapped
        if mapped.is_enabled:
            self._start(mapped)
        return self._shown(mapped)

    def _get(self, call: Call) -> Mapping[str, Any]:
        return self._shown(self._found(call))

    def _list(self, call: Call) -> Mapping[str, Any]:
        asked = call.parameters
        name = str(asked.get("FunctionName", "")).rpartition(":")[2]
        with self._lock:
            found = [
                one
                for one in self._mappings.values()
                if name in ("", one.function) and asked.get("EventSourceArn") in (None, one.queue_arn)
            ]
        return {"EventSourceMappings": [self._shown(one) for one in found]}

    def _update(self, call: Call) -> Mapping[str, Any]:
        mapped = self._found(call)
        parameters = {name: value for name, value in call.parameters.items() if name != "UUID"}
        self._refuse_unsupported(parameters)
        if "FunctionName" in parameters:
            mapped.function = self._define(parameters["FunctionName"], None).name
        if "BatchSize" in parameters:
            mapped.batch_size = _batch_size(parameters, mapped.queue_arn)
        mapped.changed_unix_seconds = time.time()
        if parameters.get("Enabled", mapped.is_enabled) != mapped.is_enabled:
            mapped.is_enabled = bool(parameters["Enabled"])
            if mapped.is_enabled:
                mapped.closed.clear()
                self._start(mapped)
            else:
                _stop(mapped)
        return self._shown(mapped)

    def _delete(self, call: Call) -> Mapping[str, Any]:
        mapped = self._found(call)
        with self._lock:
            self._mappings.pop(mapped.uuid, None)
        _stop(mapped)
        return {**self._shown(mapped), "State": "Deleting"}

    def _found(self, call: Call) -> Mapped:
        with self._lock:
            found = self._mappings.get(call.parameters["UUID"])
        if found is None:
            raise ApiError("ResourceNotFoundException", "The resource you requested does not exist.", 404)
        return found

    @staticmethod
    def _refuse_unsupported(parameters: Mapping[str, Any]) -> None:
        unknown = sorted(parameters.keys() - set(SUPPORTED_SETTINGS))
        if unknown or parameters.get("MaximumBatchingWindowInSeconds"):
            names = ", ".join(unknown or ["MaximumBatchingWindowInSeconds"])
            raise ApiError(
                "InvalidParameterValueException", f"{names}: not supported by the embedded cloud; remove the setting"
            )

    def _check(self, mapped: Mapped, definition: FunctionDefinition) -> None:
        """Check, as Lambda does, that the role has permissions and that messages stay hidden during an invocation.

        Source: https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-configure.html (read 2026-11).
        """
        try:
            attributes = self._sqs(definition).get_queue_attributes(
                QueueUrl=self._url(mapped), AttributeNames=["VisibilityTimeout"]
            )["Attributes"]
        except ClientError as error:
            if "AccessDenied" in error.response["Error"]["Code"]:
                message = "The function execution role does not have permissions to call ReceiveMessage on SQS"
                raise ApiError("InvalidParameterValueException", message) from error
            raise ApiError("InvalidParameterValueException", error.response["Error"]["Message"]) from error
        hidden_seconds = int(attributes["VisibilityTimeout"])
        if hidden_seconds < definition.timeout_seconds:
            raise ApiError(
                "InvalidParameterValueException",
                f"Queue visibility timeout: {hidden_seconds} seconds is less than Function timeout: "
                f"{definition.timeout_seconds} seconds",
            )

    def _start(self, mapped: Mapped) -> None:
        mapped.thread = threading.Thread(
            target=self._work, args=(mapped,), name=f"event-source-{mapped.function}", daemon=True
        )
        mapped.thread.start()

    def _work(self, mapped: Mapped) -> None:
        reported = ""
        while not mapped.closed.is_set():
            mapped.wake.clear()
            try:
                while not mapped.closed.is_set() and self._handle_batch(mapped):
                    pass
                reported = ""
            except (ApiError, BotoCoreError, ClientError) as error:
                if str(error) != reported and not mapped.closed.is_set():
                    reported = str(error)
                    self._records.append("event_source_failed", function=mapped.function, reason=reported)
                    _logger.error("%s: cannot read %s: %s", mapped.function, mapped.queue_arn, reported)
            mapped.wake.wait(POLL_SECONDS)

    def _handle_batch(self, mapped: Mapped) -> bool:
        """Invoke the function with the next messages; delete them if it succeeds. Return False if there are none."""
        definition = self._define(mapped.function, None)
        sqs, url = self._sqs(definition), self._url(mapped)
        messages = sqs.receive_message(
            QueueUrl=url,
            MaxNumberOfMessages=min(mapped.batch_size, RECEIVED_AT_ONCE),
            AttributeNames=["All"],
            MessageAttributeNames=["All"],
            WaitTimeSeconds=0,
        ).get("Messages", [])
        if not messages:
            return False
        if self._invoke(definition, json.dumps({"Records": [self._record(mapped, one) for one in messages]})):
            entries = [{"Id": str(n), "ReceiptHandle": one["ReceiptHandle"]} for n, one in enumerate(messages)]
            sqs.delete_message_batch(QueueUrl=url, Entries=entries)
        return True

    def _sqs(self, definition: FunctionDefinition) -> Any:
        return self._sessions.client("sqs", definition.role_arn, definition.name)

    def _url(self, mapped: Mapped) -> str:
        account, name = mapped.queue_arn.split(":")[4:6]
        return f"{self._endpoint_url}/{account}/{name}"

    @staticmethod
    def _record(mapped: Mapped, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return a message in the format of https://docs.aws.amazon.com/lambda/latest/dg/with-sqs.html (2026-11)."""
        return {
            "messageId": message["MessageId"],
            "receiptHandle": message["ReceiptHandle"],
            "body": message["Body"],
            "attributes": message.get("Attributes", {}),
            "messageAttributes": message.get("MessageAttributes", {}),
            "md5OfBody": message["MD5OfBody"],
            "eventSource": "aws:sqs",
            "eventSourceARN": mapped.queue_arn,
            "awsRegion": mapped.queue_arn.split(":")[3],
        }

    def _shown(self, mapped: Mapped) -> dict[str, Any]:
        return {
            "UUID": mapped.uuid,
            "BatchSize": mapped.batch_size,
            "MaximumBatchingWindowInSeconds": 0,
            "EventSourceArn": mapped.queue_arn,
            "EventSourceMappingArn": f"{self._arn_prefix}:event-source-mapping:{mapped.uuid}",
            "FunctionArn": f"{self._arn_prefix}:function:{mapped.function}",
            "FunctionResponseTypes": [],
            "LastModified": mapped.changed_unix_seconds,
            "State": "Enabled" if mapped.is_enabled else "Disabled",
            "StateTransitionReason": "USER_INITIATED",
        }


def _batch_size(parameters: Mapping[str, Any], arn: str) -> int:
    limit = FIFO_BATCH if arn.endswith(".fifo") else STANDARD_BATCH
    size = int(parameters.get("BatchSize", DEFAULT_BATCH))
    if not 1 <= size <= limit:
        raise ApiError(
            "InvalidParameterValueException", f"Batch size must be between 1 and {limit}: batch size is {size}"
        )
    return size


def _stop(mapped: Mapped) -> None:
    mapped.closed.set()
    mapped.wake.set()
    if mapped.thread is not None and mapped.thread is not threading.current_thread():
        mapped.thread.join(5)
