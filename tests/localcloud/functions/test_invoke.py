"""Invocations in real processes."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from localcloud.api import ApiError

ECHO = """
import os
def handler(event, context):
    print("got", event)
    return {"event": event, "id": context.aws_request_id, "pid": os.getpid(), "name": context.function_name}
"""


def payload(result: Any) -> Any:
    return json.loads(result.payload)


def test_a_handler_gets_the_event_and_its_result_comes_back(cloud) -> None:
    cloud.create("echo", ECHO)
    result = cloud.functions.invoke("echo", {"a": [1, "ü"]})
    assert result.status_code == 200 and result.function_error is None
    assert payload(result)["event"] == {"a": [1, "ü"]}
    assert payload(result)["id"] == result.request_id


def test_a_process_stays_warm_between_invocations(cloud) -> None:
    cloud.create("echo", ECHO)
    first, second = (payload(cloud.functions.invoke("echo", {}))["pid"] for _ in range(2))
    assert first == second
