"""Lambda handler, woken once a day: one line of JSON a place, from which CloudWatch makes the alarm's metric.

It compares under the CDK's lookup role, which may read and nothing else: drift is what the caller can read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from .detection import DetectionError, detect

END_MARGIN_SECONDS = 30.0
_BOUNDED = Config(connect_timeout=5, read_timeout=20, retries={"mode": "standard", "total_max_attempts": 5})


def handler(_: Mapping[str, Any], context: Any) -> None:
    """Compare the stacks of each place that the environment names.

    Raises:
        DetectionError: Some could not be compared; after all places were tried.
    """
    failed = []
    places = json.loads(os.environ["PLACES"])
    for tried, place in enumerate(places):
        # An equal share of what is left, so that one slow place does not take the others' time.
        left_seconds = context.get_remaining_time_in_millis() / 1000 - END_MARGIN_SECONDS
        try:
            drifts = detect(
                _cloudformation(place), place["stacks"], timeout_seconds=left_seconds / (len(places) - tried)
            )
        except (ClientError, DetectionError) as error:
            failed.append(f"{place['region']}: {error}")
            continue
        line = {"event": "drift", "stacks": place["stacks"], "region": place["region"], "drifted": len(drifts)}
        print(json.dumps(line | {"resources": [str(drift) for drift in drifts]}))
    if failed:
        raise DetectionError("; ".join(failed))


def _cloudformation(place: Mapping[str, Any]) -> Any:
    role = boto3.client("sts", config=_BOUNDED).assume_role(RoleArn=place["role_arn"], RoleSessionName="drift-watch")
    keys = role["Credentials"]
    return boto3.client(
        "cloudformation",
        region_name=place["region"],
        aws_access_key_id=keys["AccessKeyId"],
        aws_secret_access_key=keys["SecretAccessKey"],
        aws_session_token=keys["SessionToken"],
        config=_BOUNDED,
    )
