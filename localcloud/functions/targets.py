"""The targets of event rules: who is served, and whether the target lets EventBridge in.

Not here: which rule an event matches and what input the target gets (`bus`).
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from botocore.exceptions import ClientError

from localcloud.api import ApiError, Clients, Principal
from localcloud.functions.destinations import queue_url
from localcloud.functions.errors import TargetRefused
from localcloud.functions.service import FunctionService
from localcloud.iam.policy import Access, verdict

PRINCIPAL = "events.amazonaws.com"


def admits_rule(statements: Iterable[Mapping[str, Any]], action: str, resource: str, rule_arn: str) -> bool:
    """Say whether a resource policy lets EventBridge use `action` on `resource` for a rule; a deny wins."""
    account = rule_arn.split(":")[4]
    context = {"aws:sourcearn": [rule_arn], "aws:sourceaccount": [account], "aws:securetransport": ["true"]}
    principal = Principal(PRINCIPAL, account, "service")
    return verdict([{"Statement": list(statements)}], Access(action, resource, {}), context, principal) == "allow"


class TargetSender:
    """Gives an event to one target."""

    def __init__(self, clients: Clients, functions: FunctionService) -> None:
        self._clients = clients
        self._functions = functions
        self._senders: Mapping[str, Callable[[Mapping[str, Any], str, str], None]] = {
            "lambda": self._to_function,
            "sqs": self._to_queue,
            "sns": self._to_topic,
            "logs": self._to_log_group,
        }

    def send(self, target: Mapping[str, Any], text: str, rule_arn: str) -> None:
        """Deliver `text`, a target's input.

        Raises:
            TargetRefused: the kind of target is not served, its policy does not admit the rule, or it does not exist.
        """
        arn = str(target["Arn"])
        parts = arn.split(":", 5)
        sender = self._senders.get(parts[2] if len(parts) == 6 else "")
        if sender is None:
            served = ", ".join(sorted(self._senders))
            raise TargetRefused(f"target {arn} is not served by the local cloud; served are: {served}")
        try:
            sender(target, text, rule_arn)
        except (ApiError, ClientError) as error:
            raise TargetRefused(f"target {arn}: {error}") from error

    def _to_function(self, target: Mapping[str, Any], text: str, rule_arn: str) -> None:
        arn = str(target["Arn"])
        if not admits_rule(self._functions.registry.policy_statements(arn), "lambda:InvokeFunction", arn, rule_arn):
            raise TargetRefused(
                f"target {arn}: its resource policy does not let {PRINCIPAL} call lambda:InvokeFunction for {rule_arn}"
                "; add a permission with that principal and source ARN"
            )
        self._functions.invoke(arn, json.loads(text), invocation_type="Event")

    def _to_queue(self, target: Mapping[str, Any], text: str, rule_arn: str) -> None:
        arn = str(target["Arn"])
        queue = self._clients.direct("sqs")
        url = queue_url(self._clients, arn)
        attributes = queue.get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"])
        self._require(attributes.get("Attributes", {}).get("Policy"), "sqs:SendMessage", arn, rule_arn)
        group = target.get("SqsParameters", {}).get("MessageGroupId")
        extra = {"MessageGroupId": group, "MessageDeduplicationId": str(uuid.uuid4())} if group else {}
        queue.send_message(QueueUrl=url, MessageBody=text, **extra)

    def _to_topic(self, target: Mapping[str, Any], text: str, rule_arn: str) -> None:
        arn = str(target["Arn"])
        topics = self._clients.direct("sns")
        self._require(
            topics.get_topic_attributes(TopicArn=arn)["Attributes"].get("Policy"), "sns:Publish", arn, rule_arn
        )
        topics.publish(TopicArn=arn, Message=text)

    def _to_log_group(self, target: Mapping[str, Any], text: str, rule_arn: str) -> None:
        group = str(target["Arn"]).split(":", 6)[6].removesuffix(":*")
        logs = self._clients.direct("logs")
        resource = f"{target['Arn']}".removesuffix(":*") + ":log-stream:events"
        documents = logs.describe_resource_policies()["resourcePolicies"]
        statements = [statement for document in documents for statement in _statements(document.get("policyDocument"))]
        if not admits_rule(statements, "logs:PutLogEvents", resource, rule_arn):
            raise TargetRefused(f"target {target['Arn']}: no resource policy lets {PRINCIPAL} call logs:PutLogEvents")
        stream = str(uuid.uuid4())
        logs.create_log_stream(logGroupName=group, logStreamName=stream)
        logs.put_log_events(
            logGroupName=group,
            logStreamName=stream,
            logEvents=[{"timestamp": int(time.time() * 1000), "message": text}],
        )

    def _require(self, policy: str | None, action: str, arn: str, rule_arn: str) -> None:
        if not admits_rule(_statements(policy), action, arn, rule_arn):
            raise TargetRefused(f"target {arn}: its policy does not let {PRINCIPAL} call {action} for {rule_arn}")


def _statements(policy: str | None) -> list[Mapping[str, Any]]:
    if not policy:
        return []
    found = json.loads(policy).get("Statement", [])
    return found if isinstance(found, list) else [found]
