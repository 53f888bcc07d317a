"""Custom resources: Lambda functions that send their responses to a URL.

Source: https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/crpg-ref.html (2026-11).
"""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Mapping
from typing import Any

from localcloud.cloudformation.provider import Provisioned, ResourceContext, ResourceFailure

logger = logging.getLogger(__name__)

# Source: https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/
# aws-resource-cloudformation-customresource.html (ServiceTimeout: default 3600 seconds, 2026-11).
DEFAULT_TIMEOUT_SECONDS = 3600.0


class ResponseStore:
    """The functions' responses, keyed by request token."""

    def __init__(self) -> None:
        self._responses: dict[str, Mapping[str, Any] | None] = {}
        self._arrived = threading.Condition()
        self._closed = False

    def open(self) -> str:
        """Register a request and return its token."""
        token = str(uuid.uuid4())
        with self._arrived:
            self._responses[token] = None
        return token

    def receive(self, token: str, body: bytes) -> bool:
        """Store a response and return True if a request expects it. Ignore further responses to the same request."""
        try:
            response = json.loads(body)
        except ValueError:
            response = None
        if not isinstance(response, dict):
            logger.warning("a custom resource's function did not respond with a JSON object: %r", body[:200])
            return False
        with self._arrived:
            if token not in self._responses:
                return False
            if self._responses[token] is None:
                self._responses[token] = response
            self._arrived.notify_all()
        return True

    def wait(self, token: str, timeout_seconds: float) -> Mapping[str, Any] | None:
        """Return the response, or None if the timeout expires or the cloud closes."""
        with self._arrived:
            self._arrived.wait_for(lambda: self._responses[token] is not None or self._closed, timeout_seconds)
            return self._responses.pop(token)

    def close(self) -> None:
        """Wake all waiting callers."""
        with self._arrived:
            self._closed = True
            self._arrived.notify_all()


class CustomResource:
    """Provider for a single Custom::* type."""

    def __init__(self, type_name: str, responses: ResponseStore, endpoint_url: str) -> None:
        self.type_name = type_name
        self._responses = responses
        self._endpoint_url = endpoint_url

    def create(self, context: ResourceContext, properties: Mapping[str, Any]) -> Provisioned:
        """Send a Create request."""
        return self._send(context, "Create", properties, {})

    def update(
        self, context: ResourceContext, physical_id: str, old: Mapping[str, Any], new: Mapping[str, Any]
    ) -> Provisioned:
        """Send an Update request. If the function returns a new physical ID, the engine deletes the old resource."""
        extra = {"PhysicalResourceId": physical_id, "OldResourceProperties": _as_strings(old)}
        return self._send(context, "Update", new, extra)

    def delete(self, context: ResourceContext, physical_id: str, properties: Mapping[str, Any]) -> None:
        """Send a Delete request."""
        self._send(context, "Delete", properties, {"PhysicalResourceId": physical_id})

    def exists(self, context: ResourceContext, physical_id: str, properties: Mapping[str, Any]) -> bool:
        """Return True, since CloudFormation cannot check whether a custom resource exists."""
        return True

    def _send(
        self, context: ResourceContext, kind: str, properties: Mapping[str, Any], extra: Mapping[str, Any]
    ) -> Provisioned:
        service_token = str(properties["ServiceToken"])
        if service_token.split(":")[2:3] != ["lambda"]:
            raise ResourceFailure(
                f"ServiceToken {service_token}: must be the ARN of a Lambda function; SNS topics are not emulated"
            )
        timeout_seconds = _timeout_seconds(properties)
        token = self._responses.open()
        request = {
            "RequestType": kind,
            "ResponseURL": f"{self._endpoint_url}/_localcloud/cloudformation/response/{token}",
            "StackId": context.stack_id,
            "RequestId": str(uuid.uuid4()),
            "ResourceType": self.type_name,
            "LogicalResourceId": context.logical_id,
            "ServiceToken": service_token,
            "ResourceProperties": _as_strings(properties),
            **extra,
        }
        # A delete follows a failed create and requires a physical ID, even if the function did not return one.
        fallback = str(extra.get("PhysicalResourceId") or context.generated_name())
        context.client("lambda").invoke(
            FunctionName=service_token, InvocationType="Event", Payload=json.dumps(request).encode()
        )
        response = self._responses.wait(token, timeout_seconds)
        if response is None:
            raise ResourceFailure(
                "CloudFormation did not receive a response from your Custom Resource within "
                f"{timeout_seconds:.0f} seconds (request {request['RequestId']})",
                fallback,
            )
        physical_id = str(response.get("PhysicalResourceId") or fallback)
        if response.get("Status") != "SUCCESS":
            reason = response.get("Reason", "no Reason in the response")
            raise ResourceFailure(
                f"Received response status [{response.get('Status')}] from custom resource. Message returned: {reason}",
                physical_id,
            )
        if kind == "Create" and not response.get("PhysicalResourceId"):
            raise ResourceFailure("Invalid PhysicalResourceId: missing from the response to Create", fallback)
        return Provisioned(physical_id, _flat(response.get("Data") or {}))


def _timeout_seconds(properties: Mapping[str, Any]) -> float:
    given = properties.get("ServiceTimeout", DEFAULT_TIMEOUT_SECONDS)
    try:
        seconds = float(given)
    except (TypeError, ValueError):
        seconds = 0.0
    if not 1 <= seconds <= DEFAULT_TIMEOUT_SECONDS:
        raise ResourceFailure(f"ServiceTimeout {given}: must be from 1 to 3600 seconds")
    return seconds


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a function's Data with nested names in dotted form, as Fn::GetAtt references them."""
    flat: dict[str, Any] = {}
    for name, value in data.items():
        flat[prefix + name] = value
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
    return flat


def _as_strings(value: Any) -> Any:
    """Return properties with every scalar converted to a string, which is how functions receive them."""
    if isinstance(value, Mapping):
        return {key: _as_strings(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_strings(item) for item in value]
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if value is None else str(value)
