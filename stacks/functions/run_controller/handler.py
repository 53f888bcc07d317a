"""The run controller's Lambda function: gathers the situation, asks the policy, carries out.

Woken by what happens to the run and to the fleet, and every minute; every waking looks at everything, so a lost or doubled
event does no harm.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from dataclasses import asdict
from typing import Any, Dict, Mapping, Optional, Tuple

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from policy import Detach, Fleet, Memory, Run, SetDesired, Settings, Situation, UseSubnets, decide

logger = logging.getLogger()
logger.setLevel(logging.INFO)
CONFIG = Config(connect_timeout=5, read_timeout=10, retries={"total_max_attempts": 3, "mode": "standard"})
INTERRUPTION = "EC2 Spot Instance Interruption Warning"


def handler(event: Mapping[str, Any], context: object) -> Dict[str, Any]:
    """Bring the fleet to what the run needs; return what was done."""
    clients = {name: boto3.client(name, config=CONFIG) for name in ("s3", "ssm", "autoscaling")}
    document = _run_document(clients["ssm"])
    store = Store(clients["s3"], os.environ["CHECKPOINT_BUCKET"], document["run"] if document else "")
    situation = _situation(event, clients["autoscaling"], store, document)
    decision = decide(situation, _settings())
    for action in decision.actions:
        _carry_out(clients["autoscaling"], action)
    if document and decision.memory != situation.memory:
        store.write("controller.json", asdict(decision.memory))
    done = [f"{type(action).__name__} {asdict(action)}" for action in decision.actions]
    logger.info(json.dumps({"woken_by": event.get("detail-type", "direct"), "actions": done}))
    return {"actions": done}


class Store:
    """The control records of a run in the checkpoint bucket."""

    def __init__(self, s3: Any, bucket: str, run: str) -> None:
        self._s3 = s3
        self._bucket = bucket
        self._prefix = f"runs/{run}/control/"

    def read(self, name: str) -> Optional[Dict[str, Any]]:
        """Return a record, or None when there is none."""
        try:
            body = self._s3.get_object(Bucket=self._bucket, Key=self._prefix + name)["Body"].read()
        except ClientError as error:
            if error.response["Error"]["Code"] == "NoSuchKey":
                return None
            raise
        loaded: Dict[str, Any] = json.loads(body)
        return loaded

    def write(self, name: str, record: Mapping[str, Any]) -> None:
        """Write a record."""
        self._s3.put_object(Bucket=self._bucket, Key=self._prefix + name, Body=json.dumps(record).encode())

    def heartbeats(self) -> Tuple[str, ...]:
        """Return the machines that have ever given a heart-beat to this run."""
        pages = self._s3.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=f"{self._prefix}heartbeats/"
        )
        keys = [item["Key"] for page in pages for item in page.get("Contents", [])]
        return tuple(key.rsplit("/", 1)[1].removesuffix(".json") for key in keys)


def _run_document(ssm: Any) -> Optional[Dict[str, Any]]:
    try:
        value = ssm.get_parameter(Name=os.environ["RUN_PARAMETER"])["Parameter"]["Value"]
    except ClientError as error:
        if error.response["Error"]["Code"] == "ParameterNotFound":
            return None
        raise
    loaded: Dict[str, Any] = json.loads(value)
    return loaded


def _digest(document: Mapping[str, Any]) -> str:
    """Return the digest of a run document as nodes compute it: SHA-256 of its canonical JSON."""
    return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _situation(
    event: Mapping[str, Any], autoscaling: Any, store: Store, document: Optional[Mapping[str, Any]]
) -> Situation:
    run = outcome = None
    memory, heartbeats = Memory(), ()  # type: Tuple[Memory, Tuple[str, ...]]
    if document is not None:
        run = Run(_digest(document), int(document["nodes"]), int(document["min_nodes"]))
        ended = store.read("outcome.json")
        outcome = (ended["run_digest"], ended["outcome"]) if ended else None
        memory, heartbeats = _memory(store.read("controller.json")), store.heartbeats()
    noticed = (event["detail"]["instance-id"],) if event.get("detail-type") == INTERRUPTION else ()
    return Situation(
        now=time.time(),
        run=run,
        outcome=outcome,
        fleet=_fleet(autoscaling),
        heartbeats=heartbeats,
        interrupted=noticed,
        memory=memory,
    )


def _memory(record: Optional[Mapping[str, Any]]) -> Memory:
    if record is None:
        return Memory()
    return Memory(**{name: tuple(value) if isinstance(value, list) else value for name, value in record.items()})


def _fleet(autoscaling: Any) -> Fleet:
    name = os.environ["GROUP_NAME"]
    groups = autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"]
    if not groups:
        raise RuntimeError(f"Auto Scaling group {name} does not exist")
    group = groups[0]
    return Fleet(
        desired=group["DesiredCapacity"],
        instances={one["InstanceId"]: one["LifecycleState"] for one in group["Instances"]},
        subnets=tuple(group["VPCZoneIdentifier"].split(",")),
    )


def _settings() -> Settings:
    return Settings(
        subnets=tuple(os.environ["SUBNET_IDS"].split(",")),
        one_subnet_at_a_time=os.environ["PLACEMENT"] == "cluster",
        gang_timeout_seconds=float(os.environ["GANG_TIMEOUT_SECONDS"]),
        boot_failure_limit=int(os.environ["BOOT_FAILURE_LIMIT"]),
    )


def _carry_out(autoscaling: Any, action: object) -> None:
    name = os.environ["GROUP_NAME"]
    if isinstance(action, SetDesired):
        autoscaling.set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=action.nodes, HonorCooldown=False)
    elif isinstance(action, UseSubnets):
        autoscaling.update_auto_scaling_group(AutoScalingGroupName=name, VPCZoneIdentifier=",".join(action.subnets))
    elif isinstance(action, Detach):
        autoscaling.detach_instances(
            AutoScalingGroupName=name, InstanceIds=list(action.instances), ShouldDecrementDesiredCapacity=False
        )
    else:
        raise TypeError(f"no such action: {action!r}")
