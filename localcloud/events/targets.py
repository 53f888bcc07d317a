"""Validates the targets of event rules, checks the targets' resource policies, and delivers events."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from botocore.exceptions import ClientError

from localcloud.api import ApiError, Clients, Principal
from localcloud.functions.service import FunctionService
from localcloud.iam.policy import Access, verdict

PRINCIPAL = "events.amazonaws.com"
SUPPORTED_SERVICES = ("lambda", "sns", "sqs")
ID_LENGTH = 64
UNSUPPORTED_SETTINGS = ("DeadLetterConfig", "InputPath", "InputTransformer")


class TargetRefused(Exception):
    """An event cannot be delivered because the target rejects it or does not exist."""


def check_target(number: int, target: Mapping[str, Any]) -> None:
    """Reject a rule's target if its ID is invalid, or if the embedded cloud does not support it or one of its settings.

    Raises:
        ApiError: ValidationException that names the invalid ID, or the target's ARN and the unsupported setting.
    """
    identity = str(target["Id"])
    for is_broken, constraint in (
        (not re.fullmatch(r"[\.\-_A-Za-z0-9]+", identity), r"satisfy regular expression pattern: [\.\-_A-Za-z0-9]+"),
        (len(identity) > ID_LENGTH, f"have length less than or equal to {ID_LENGTH}"),
    ):
        if is_broken:
            value = f"1 validation error detected: Value '{identity}' at 'targets.{number}.member.id'"
            raise ApiError("ValidationException", f"{value} failed to satisfy constraint: Member must {constraint}")
    arn = str(target["Arn"])
    parts = arn.split(":", 5)
    if len(parts) < 6 or parts[2] not in SUPPORTED_SERVICES:
        refused = f"not supported by the embedded cloud; supported services: {', '.join(SUPPORTED_SERVICES)}"
        raise ApiError("ValidationException", f"target {arn}: {refused}")
    for name in UNSUPPORTED_SETTINGS:
        if name in target:
            refused = f"{name} is not supported by the embedded cloud; remove the setting"
            raise ApiError("ValidationException", f"target {arn}: {refused}")


def admits(service: str, statements: Iterable[Mapping[str, Any]], action: str, resource: str, source_arn: str) -> bool:
    """Return True if a resource policy allows a service to call `action` for a resource. Denials take precedence."""
    account = source_arn.split(":")[4]
    context = {"aws:sourcearn": [source_arn], "aws:sourceaccount": [account], "aws:securetransport": ["true"]}
    principal = Principal(service, account, "service")
    return verdict([{"Statement": list(statements)}], Access(action, resource, {}), context, principal) == "allow"


def send_to_topic(clients: Clients, arn: str, text: str, service: str, source_arn: str) -> None:
    """Publish `text` to an SNS topic for a service's resource.

    Raises:
        TargetRefused: The topic's policy denies the call.
        ClientError: The topic does not exist.
    """
    topics = clients.direct("sns")
    policy = topics.get_topic_attributes(TopicArn=arn)["Attributes"].get("Policy")
    _require(policy, "sns:Publish", arn, service, source_arn)
    topics.publish(TopicArn=arn, Message=text)


def _require(policy: str | None, action: str, arn: str, service: str, source_arn: str) -> None:
    if not admits(service, _statements(policy), action, arn, source_arn):
        raise TargetRefused(f"target {arn}: its policy does not allow {service} to call {action} for {source_arn}")


class TargetSender:
    """Delivers events to targets."""

    def __init__(self, clients: Clients, functions: FunctionService) -> None:
        self._clients = clients
        self._functions = functions
        self._senders: Mapping[str, Callable[[str, str, str], None]] = {
            "lambda": self._to_function,
            "sns": self._to_topic,
        }

    def send(self, target: Mapping[str, Any], text: str, rule_arn: str) -> None:
        """Deliver `text` to a target that passed `check_target`.

        Raises:
            TargetRefused: The target's policy denies the call, or the target does not exist.
        """
        arn = str(target["Arn"])
        try:
            if arn.split(":")[2] == "sqs":
                self._to_queue(arn, text, rule_arn, target.get("SqsParameters", {}).get("MessageGroupId"))
            else:
                self._senders[arn.split(":")[2]](arn, text, rule_arn)
        except (ApiError, ClientError) as error:
            raise TargetRefused(f"target {arn}: {error}") from error

    def _to_function(self, arn: str, text: str, rule_arn: str) -> None:
        statements = self._functions.registry.policy_statements(arn)
        if not admits(PRINCIPAL, statements, "lambda:InvokeFunction", arn, rule_arn):
            raise TargetRefused(
                f"target {arn}: its resource policy does not allow {PRINCIPAL} to call lambda:InvokeFunction for "
                f"{rule_arn}; add a permission with this principal and source ARN"
            )
        self._functions.invoke(arn, json.loads(text), invocation_type="Event")

    def _to_queue(self, arn: str, text: str, rule_arn: str, group: str | None) -> None:
        queue = self._clients.direct("sqs")
        account, name = arn.split(":")[4:6]
        url = f"{self._clients.endpoint_url}/{account}/{name}"
        attributes = queue.get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"])
        policy = attributes.get("Attributes", {}).get("Policy")
        _require(policy, "sqs:SendMessage", arn, PRINCIPAL, rule_arn)
        # A FIFO queue rejects messages without a group ID. Deduplication is based on content.
        queue.send_message(QueueUrl=url, MessageBody=text, **({} if group is None else {"MessageGroupId": group}))
        self._functions.event_sources.wake(name)

    def _to_topic(self, arn: str, text: str, rule_arn: str) -> None:
        send_to_topic(self._clients, arn, text, PRINCIPAL, rule_arn)


def _statements(policy: str | None) -> list[Mapping[str, Any]]:
    if not policy:
        return []
    found = json.loads(policy).get("Statement", [])
    return found if isinstance(found, list) else [found]
