"""Where the outcome of an asynchronous invocation goes: dead-letter queues and destinations."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from localcloud.api import ApiError, Clients

SERVED_SERVICES = ("sqs", "sns")


def check_destination(arn: str, setting: str) -> None:
    """Refuse a destination that the local cloud does not serve.

    Raises:
        ApiError: InvalidParameterValueException with the setting, the value and what is served.
    """
    parts = arn.split(":", 5)
    if len(parts) < 6 or parts[2] not in SERVED_SERVICES:
        raise ApiError(
            "InvalidParameterValueException",
            f"{setting}: {arn} is not served by the local cloud; use an SQS queue or an SNS topic",
        )


def send_to_destination(clients: Clients, client: Callable[[str], Any], arn: str, body: str) -> None:
    """Send `body` to an SQS queue or SNS topic through `client(service)`.

    Raises:
        ClientError: the service refuses, for instance because the function's role may not send.
    """
    parts = arn.split(":", 5)
    if parts[2] == "sqs":
        client("sqs").send_message(QueueUrl=queue_url(clients, arn), MessageBody=body)
    else:
        client("sns").publish(TopicArn=arn, Message=body)


def queue_url(clients: Clients, arn: str) -> str:
    """Return the URL of a queue of this cloud."""
    account, name = arn.split(":")[4:6]
    return f"{clients.endpoint_url}/{account}/{name}"


def invocation_record(
    function_arn: str, request_id: str, condition: str, attempts: int, payload: str, response: str, error: str | None
) -> str:
    """Return the JSON that Lambda sends to a destination.

    Source: https://docs.aws.amazon.com/lambda/latest/dg/invocation-async-retain-records.html (read 2026-11).
    """
    context: Mapping[str, Any] = {
        "requestId": request_id,
        "functionArn": f"{function_arn}:$LATEST",
        "condition": condition,
        "approximateInvokeCount": attempts,
    }
    response_context: dict[str, Any] = {"statusCode": 200, "executedVersion": "$LATEST"}
    if error is not None:
        response_context["functionError"] = error
    return json.dumps(
        {
            "version": "1.0",
            "requestContext": context,
            "requestPayload": json.loads(payload),
            "responseContext": response_context,
            "responsePayload": json.loads(response),
        }
    )
