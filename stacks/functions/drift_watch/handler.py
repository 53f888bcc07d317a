"""The Lambda handler for daily drift detection. It prints one JSON line per target for the alarm's metric filter.

The handler assumes the CDK's read-only lookup role. Drift detection covers the properties that this role can read.
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
    """Compare the stacks of each target that the environment lists.

    Raises:
        DetectionError: Detection failed for some targets. The error is raised after all targets have been tried.
    """
    failed = []
    targets = json.loads(os.environ["TARGETS"])
    for tried, target in enumerate(targets):
        # Each target receives an equal share of the remaining time, so a slow target does not delay the others.
        left_seconds = context.get_remaining_time_in_millis() / 1000 - END_MARGIN_SECONDS
        try:
            drifts = detect(
                _cloudformation(target), target["stacks"], timeout_seconds=left_seconds / (len(targets) - tried)
            )
        except (ClientError, DetectionError) as error:
            failed.append(f"{target['region']}: {error}")
            continue
        line = {"event": "drift", "stacks": target["stacks"], "region": target["region"], "drifted": len(drifts)}
        print(json.dumps(line | {"resources": [str(drift) for drift in drifts]}))
    if failed:
        raise DetectionError("; ".join(failed))


def _cloudformation(target: Mapping[str, Any]) -> Any:
    role = boto3.client("sts", config=_BOUNDED).assume_role(RoleArn=target["role_arn"], RoleSessionName="drift-watch")
    keys = role["Credentials"]
    return boto3.client(
        "cloudformation",
        region_name=target["region"],
        aws_access_key_id=keys["AccessKeyId"],
        aws_secret_access_key=keys["SecretAccessKey"],
        aws_session_token=keys["SessionToken"],
        config=_BOUNDED,
    )
