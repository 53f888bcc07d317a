"""The Lambda handler. The state machine invokes it for each member and at the end of each step.

Three event rules also invoke it: when a run's outcome arrives, every minute, and when an execution's status changes.
Each of them checks all slots, so a lost event delays an answer by at most a minute.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from functools import cache
from typing import Any

import boto3
from botocore.config import Config

from .runs import Environment, Runs
from .store import Store

_BOUNDED = Config(
    connect_timeout=5, read_timeout=20, max_pool_connections=32, retries={"mode": "standard", "total_max_attempts": 5}
)


@cache
def _runs() -> Runs:
    settings = os.environ
    environment = Environment(
        deployment=settings["DEPLOYMENT"],
        checkpoint_bucket=settings["CHECKPOINT_BUCKET"],
        dataset_bucket=settings["DATASET_BUCKET"],
        schema_version=int(settings["SCHEMA_VERSION"]),
        code=json.loads(settings["CODE"]),
        fleets=json.loads(settings["FLEETS"]),
    )
    s3, ssm, states = (boto3.client(service, config=_BOUNDED) for service in ("s3", "ssm", "stepfunctions"))
    return Runs(environment, store=Store(s3, settings["CONTROL_BUCKET"]), ssm=ssm, states=states)


def handler(event: Mapping[str, Any], context: object) -> dict[str, Any] | None:
    """Handle a request of the state machine (`action`), or an event.

    Raises:
        SlotsBusy: Every slot of the step is occupied.
        InvalidRecord: A member's object is missing or invalid, or does not have the metric of `keep`.
        botocore.exceptions.ClientError: AWS rejected a call.
    """
    action = event.get("action")
    answer: dict[str, Any] | None = None
    if action == "start":
        done: Any = _runs().start(event, time.time())
    elif action == "collect":
        done = answer = _runs().collect(event)
    else:
        done = _runs().check_all(time.time())
    # The input contains a token, which is not logged.
    line = {"event": "pipeline_runs", "action": action or event.get("detail-type"), "done": done}
    print(json.dumps(line), flush=True)
    return answer
