"""Messages of lifecycle hooks to their SQS or SNS targets, sent under the hook's role in a thread of their own."""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from localcloud.api import ApiError, Clients
from localcloud.compute.autoscaling.model import Group, Hook
from localcloud.compute.metadata import stamp

_logger = logging.getLogger(__name__)


class HookNotifier:
    """Sends what a hook's NotificationTargetARN asks for; failures are logged, as AWS retries and drops them."""

    def __init__(self, clients: Clients, clock: Callable[[], float] = time.time) -> None:
        self._clients = clients
        self._clock = clock
        self._sender = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hook-notifications")

    def notify(self, group: Group, hook: Hook, detail: Mapping[str, Any]) -> None:
        """Send a lifecycle action."""
        if hook.target_arn:
            message = dict(detail) | {"Service": "AWS Auto Scaling", "Time": stamp(self._clock()),
                                      "AccountId": self._clients.account, "RequestId": str(uuid.uuid4())}  # fmt: skip
            self._sender.submit(self._send, group.name, hook, message)

    def test(self, group: Group, hook: Hook) -> None:
        """Send the test message that a new target gets."""
        if hook.target_arn:
            message = {
                "AccountId": self._clients.account, "RequestId": str(uuid.uuid4()), "AutoScalingGroupARN": group.arn,
                "AutoScalingGroupName": group.name, "Service": "AWS Auto Scaling",
                "Event": "autoscaling:TEST_NOTIFICATION", "Time": stamp(self._clock()),
            }  # fmt: skip
            self._sender.submit(self._send, group.name, hook, message)

    def close(self) -> None:
        """Wait for what is being sent."""
        self._sender.shutdown(wait=True)

    def _send(self, group_name: str, hook: Hook, message: Mapping[str, Any]) -> None:
        assert hook.target_arn is not None
        kind, name = hook.target_arn.split(":")[2], hook.target_arn.split(":")[5]
        body = json.dumps(message)
        try:
            client = self._clients.client(kind, role_arn=hook.role_arn)
            if kind == "sns":
                client.publish(TopicArn=hook.target_arn, Message=body, Subject=f"Auto Scaling: {hook.name}")
            else:
                client.send_message(QueueUrl=client.get_queue_url(QueueName=name)["QueueUrl"], MessageBody=body)
        except (ApiError, BotoCoreError, ClientError) as error:
            _logger.warning("%s: hook %s: %s was not notified: %s", group_name, hook.name, hook.target_arn, error)
