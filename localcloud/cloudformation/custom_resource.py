"""Custom resources: a Lambda function that answers to a URL.

Source: https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/crpg-ref.html (2026-11).
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Mapping
from typing import Any

from localcloud.cloudformation.provider import Made, ResourceContext, ResourceFailure

DEFAULT_TIMEOUT_SECONDS = 3600.0


class CustomResources:
    """Provider of every Custom::* type; `receive` gets the functions' answers."""

    type_name = "AWS::CloudFormation::CustomResource"

    def __init__(self, endpoint_url: str) -> None:
        self._endpoint_url = endpoint_url
        self._answers: dict[str, dict[str, Any]] = {}
        self._arrived = threading.Condition()

    def receive(self, token: str, body: bytes) -> None:
        """Take the answer that a function put to its response URL."""
        with self._arrived:
            self._answers[token] = json.loads(body)
            self._arrived.notify_all()

    def create(self, context: ResourceContext, properties: Mapping[str, Any]) -> Made:
        """Ask the function to make the resource."""
        return self._ask(context, "Create", properties, {})

    def update(
        self, context: ResourceContext, physical_id: str, old: Mapping[str, Any], new: Mapping[str, Any]
    ) -> Made:
        """Ask the function to change it; when it answers with another id, the old one is deleted."""
        more = {"PhysicalResourceId": physical_id, "OldResourceProperties": _texts(old)}
        made = self._ask(context, "Update", new, more)
        if made.physical_id != physical_id:
            self.delete(context, physical_id, old)
        return made

    def delete(self, context: ResourceContext, physical_id: str, properties: Mapping[str, Any]) -> None:
        """Ask the function to remove it."""
        self._ask(context, "Delete", properties, {"PhysicalResourceId": physical_id})

    def exists(self, context: ResourceContext, physical_id: str, properties: Mapping[str, Any]) -> bool:
        """Nobody can tell but the function, and it has no such request: assumed there."""
        return True

    def _ask(self, context: ResourceContext, kind: str, properties: Mapping[str, Any], more: Mapping[str, Any]) -> Made:
        token = str(uuid.uuid4())
        request = {
            "RequestType": kind,
            "ResponseURL": f"{self._endpoint_url}/_localcloud/cloudformation/response/{token}",
            "StackId": context.stack_id,
            "RequestId": token,
            "ResourceType": properties.get("Type", self.type_name),
            "LogicalResourceId": context.logical_id,
            "ServiceToken": properties["ServiceToken"],
            "ResourceProperties": _texts(properties),
            **more,
        }
        timeout = float(properties.get("ServiceTimeout", DEFAULT_TIMEOUT_SECONDS))
        context.client("lambda").invoke(
            FunctionName=properties["ServiceToken"], InvocationType="Event", Payload=json.dumps(request).encode()
        )
        with self._arrived:
            if not self._arrived.wait_for(lambda: token in self._answers, timeout):
                raise ResourceFailure(f"the custom resource's function did not answer in {timeout:.0f} s")
            answer = self._answers.pop(token)
        if answer.get("Status") != "SUCCESS":
            raise ResourceFailure(
                f"Received response status [FAILED] from custom resource. Message: {answer.get('Reason')}"
            )
        physical_id = answer.get("PhysicalResourceId") or more.get("PhysicalResourceId") or token
        return Made(str(physical_id), answer.get("Data") or {})


def _texts(value: Any) -> Any:
    """Return properties as functions get them: every scalar as text."""
    if isinstance(value, Mapping):
        return {key: _texts(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_texts(item) for item in value]
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
