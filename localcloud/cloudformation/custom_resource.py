"""Custom resources: a Lambda function that answers to a URL.

Source: https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/crpg-ref.html (2026-11).
"""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Mapping
from typing import Any

from localcloud.cloudformation.provider import Made, ResourceContext, ResourceFailure

logger = logging.getLogger(__name__)

CUSTOM_TYPE = "AWS::CloudFormation::CustomResource"
# Source: https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/
# aws-resource-cloudformation-customresource.html (ServiceTimeout: default 3600 seconds, 2026-11).
DEFAULT_TIMEOUT_SECONDS = 3600.0


def is_custom(type_name: str) -> bool:
    """Tell whether a resource type is a custom resource."""
    return type_name.startswith("Custom::") or type_name == CUSTOM_TYPE


class Mailbox:
    """Where functions put their answers, each under the token of its request."""

    def __init__(self) -> None:
        self._answers: dict[str, Mapping[str, Any] | None] = {}
        self._arrived = threading.Condition()
        self._closed = False

    def open(self) -> str:
        """Expect an answer; return its token."""
        token = str(uuid.uuid4())
        with self._arrived:
            self._answers[token] = None
        return token

    def receive(self, token: str, body: bytes) -> bool:
        """Take an answer; tell whether anybody expects it and can read it. The first answer counts."""
        try:
            answer = json.loads(body)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            logger.warning("a custom resource's function put no JSON object to its response URL: %r", body[:200])
            return False
        with self._arrived:
            if token not in self._answers:
                return False
            if self._answers[token] is None:
                self._answers[token] = answer
            self._arrived.notify_all()
        return True

    def wait(self, token: str, timeout_seconds: float) -> Mapping[str, Any] | None:
        """Return the answer, or None when none came in time or the cloud is closing."""
        with self._arrived:
            self._arrived.wait_for(lambda: self._answers[token] is not None or self._closed, timeout_seconds)
            return self._answers.pop(token)

    def close(self) -> None:
        """Let nobody wait any longer."""
        with self._arrived:
            self._closed = True
            self._arrived.notify_all()


class CustomResource:
    """Provider of one Custom::* type."""

    def __init__(self, type_name: str, mailbox: Mailbox, endpoint_url: str) -> None:
        self.type_name = type_name
        self._mailbox = mailbox
        self._endpoint_url = endpoint_url

    def create(self, context: ResourceContext, properties: Mapping[str, Any]) -> Made:
        """Ask the function to make the resource."""
        return self._ask(context, "Create", properties, {})

    def update(
        self, context: ResourceContext, physical_id: str, old: Mapping[str, Any], new: Mapping[str, Any]
    ) -> Made:
        """Ask the function to change it; when it answers with another id, the engine deletes the old one."""
        more = {"PhysicalResourceId": physical_id, "OldResourceProperties": _texts(old)}
        return self._ask(context, "Update", new, more)

    def delete(self, context: ResourceContext, physical_id: str, properties: Mapping[str, Any]) -> None:
        """Ask the function to remove it."""
        self._ask(context, "Delete", properties, {"PhysicalResourceId": physical_id})

    def exists(self, context: ResourceContext, physical_id: str, properties: Mapping[str, Any]) -> bool:
        """Nobody can tell but the function, and it has no such request: assumed there."""
        return True

    def _ask(self, context: ResourceContext, kind: str, properties: Mapping[str, Any], more: Mapping[str, Any]) -> Made:
        service_token = str(properties["ServiceToken"])
        if service_token.split(":")[2:3] != ["lambda"]:
            raise ResourceFailure(f"ServiceToken {service_token}: here it must be the ARN of a Lambda function")
        timeout_seconds = _timeout_seconds(properties)
        token = self._mailbox.open()
        request = {
            "RequestType": kind,
            "ResponseURL": f"{self._endpoint_url}/_localcloud/cloudformation/response/{token}",
            "StackId": context.stack_id,
            "RequestId": str(uuid.uuid4()),
            "ResourceType": self.type_name,
            "LogicalResourceId": context.logical_id,
            "ServiceToken": service_token,
            "ResourceProperties": _texts(properties),
            **more,
        }
        # A create that fails is followed by a delete, which needs an id: the function's own, or one made up for it.
        fallback = str(more.get("PhysicalResourceId") or context.generated_name())
        context.client("lambda").invoke(
            FunctionName=service_token, InvocationType="Event", Payload=json.dumps(request).encode()
        )
        answer = self._mailbox.wait(token, timeout_seconds)
        if answer is None:
            raise ResourceFailure(
                "CloudFormation did not receive a response from your Custom Resource within "
                f"{timeout_seconds:.0f} seconds (request {request['RequestId']})",
                fallback,
            )
        physical_id = str(answer.get("PhysicalResourceId") or fallback)
        if answer.get("Status") != "SUCCESS":
            reason = answer.get("Reason", "the function gave no Reason")
            raise ResourceFailure(
                f"Received response status [{answer.get('Status')}] from custom resource. Message returned: {reason}",
                physical_id,
            )
        if kind == "Create" and not answer.get("PhysicalResourceId"):
            raise ResourceFailure("Invalid PhysicalResourceId: the function's answer to Create has none", fallback)
        return Made(physical_id, _flat(answer.get("Data") or {}))


def _timeout_seconds(properties: Mapping[str, Any]) -> float:
    given = properties.get("ServiceTimeout", DEFAULT_TIMEOUT_SECONDS)
    try:
        seconds = float(given)
    except (TypeError, ValueError):
        seconds = 0.0
    if not 1 <= seconds <= DEFAULT_TIMEOUT_SECONDS:
        raise ResourceFailure(f"ServiceTimeout {given}: a number of seconds from 1 to 3600")
    return seconds


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a function's Data with nested names dotted, as Fn::GetAtt asks for them."""
    flat: dict[str, Any] = {}
    for name, value in data.items():
        flat[prefix + name] = value
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
    return flat


def _texts(value: Any) -> Any:
    """Return properties as functions get them: every scalar as text."""
    if isinstance(value, Mapping):
        return {key: _texts(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_texts(item) for item in value]
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if value is None else str(value)
