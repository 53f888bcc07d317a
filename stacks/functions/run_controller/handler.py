"""The run controller's Lambda handler: sees how things are, asks `policy`, carries it out, remembers.

Not here: any decision. Woken by a changed run document, a spot interruption warning, fleet events, a run's outcome, and
the clock every minute; which of them it was matters only for the interruption, which names its instance.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from . import policy
from .fleets import Fleet, FleetIdentity, connect

INTERRUPTION = "EC2 Spot Instance Interruption Warning"
_REPORT_CHARACTERS = 2000  # it is in the log, and in the memory of every look from then on
_BOUNDED = Config(connect_timeout=5, read_timeout=10, retries={"mode": "standard", "total_max_attempts": 3})


class UnreadableRunDocument(ValueError):
    """The run parameter holds something else than a run document; the fleet is left as it is."""


@dataclass(frozen=True)
class Surroundings:
    """Where the controller works; the function's environment says it."""

    fleet: FleetIdentity
    run_parameter: str
    checkpoint_bucket: str
    settings: policy.Settings

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Surroundings:
        """Read the variables that the stack sets."""
        return cls(
            fleet=FleetIdentity(
                backend=environment["BACKEND"],
                fleet_id=environment["FLEET_ID"],
                maximum=int(environment["NODES"]),
                on_demand_base=int(environment["ON_DEMAND_BASE"]),
            ),
            run_parameter=environment["RUN_PARAMETER"],
            checkpoint_bucket=environment["CHECKPOINT_BUCKET"],
            settings=policy.Settings(
                subnets=tuple(environment["SUBNET_IDS"].split(",")),
                one_subnet_at_a_time=environment["ONE_SUBNET_AT_A_TIME"] == "true",
                gang_timeout_seconds=float(environment["GANG_TIMEOUT_SECONDS"]),
                boot_failure_limit=int(environment["BOOT_FAILURE_LIMIT"]),
            ),
        )


class Controller:
    """One look at the fleet and what follows from it."""

    def __init__(self, surroundings: Surroundings, *, fleet: Fleet, ssm: Any, s3: Any) -> None:
        self._at = surroundings
        self._fleet = fleet
        self._ssm = ssm
        self._s3 = s3

    def step(self, event: Mapping[str, Any], now_unix_seconds: float) -> dict[str, Any]:
        """See, decide, act, remember; return what was done, for the log.

        Raises:
            UnreadableRunDocument: The run parameter is not a run document.
            botocore.exceptions.ClientError: AWS refused a call; the event is delivered again.
        """
        group = self._fleet.look()
        if group is None:  # while the stack is deleted, the clock still ticks
            reason = f"there is no fleet {self._at.fleet.fleet_id}"
            return {"event": "run_controller", "nodes": 0, "reason": reason, "actions": []}
        run = self._run()
        memory = self._memory(run)
        decision = policy.decide(
            policy.Situation(
                now_unix_seconds=now_unix_seconds,
                settings=self._at.settings,
                run=run,
                outcome=self._outcome(run),
                group=group,
                heard_from=self._heard_from(run),
                interrupted=_interrupted(event),
                memory=memory,
                failures=self._failures(policy.vanished(memory, group)),
            )
        )
        for action in decision.actions:
            self._fleet.carry_out(action)
        if run is not None and decision.memory != memory:
            self._remember(run, decision.memory)
        return {
            "event": "run_controller",
            "woken_by": event.get("detail-type", "unknown"),
            "nodes": len(group.instances),
            "phase": decision.memory.phase,
            "reason": decision.memory.reason,
            "actions": [{type(action).__name__: dataclasses.asdict(action)} for action in decision.actions],
        }

    def _run(self) -> policy.Run | None:
        try:
            text = self._ssm.get_parameter(Name=self._at.run_parameter)["Parameter"]["Value"]
        except self._ssm.exceptions.ParameterNotFound:
            return None
        return read_run(text)

    def _outcome(self, run: policy.Run | None) -> policy.Outcome | None:
        record = self._read(run, "outcome.json")
        return None if record is None else policy.Outcome(record["run_digest"], record["outcome"])

    def _memory(self, run: policy.Run | None) -> policy.Memory:
        record = self._read(run, "controller.json")
        if record is None:
            return policy.Memory()
        known = {item.name for item in dataclasses.fields(policy.Memory)}
        # JSON has no tuples; a key of another version of this program is none of ours.
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in record.items() if key in known
        }
        return policy.Memory(**values)

    def _heard_from(self, run: policy.Run | None) -> frozenset[str]:
        if run is None:
            return frozenset()
        prefix = f"{_control(run)}heartbeats/"
        pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=self._at.checkpoint_bucket, Prefix=prefix)
        keys = (item["Key"] for page in pages for item in page.get("Contents", []))
        return frozenset(key.removeprefix(prefix).removesuffix(".json") for key in keys)

    def _failures(self, instances: Iterable[str]) -> dict[str, str]:
        """Return what machines that vanished while booting reported; a report that cannot be read holds nothing up."""
        failures: dict[str, str] = {}
        for instance_id in instances:
            prefix = f"nodes/{instance_id}/"
            try:
                listed = self._s3.list_objects_v2(Bucket=self._at.checkpoint_bucket, Prefix=prefix).get("Contents", [])
                reports = [item for item in listed if item["Key"].endswith("-failure.json")]
                if not reports:
                    continue
                key = max(reports, key=lambda item: item["LastModified"])["Key"]
                report = json.loads(self._s3.get_object(Bucket=self._at.checkpoint_bucket, Key=key)["Body"].read())
                said = f"{report['step']}: {report['message']}. Remedy: {report['remedy']}"[:_REPORT_CHARACTERS]
                failures[instance_id] = f"{said} (s3://{self._at.checkpoint_bucket}/{key})"
            except (ClientError, ValueError, KeyError, TypeError) as error:
                where = f"s3://{self._at.checkpoint_bucket}/{prefix}"
                failures[instance_id] = f"{where}: the report cannot be read ({error!r})"
        return failures

    def _read(self, run: policy.Run | None, name: str) -> dict[str, Any] | None:
        if run is None:
            return None
        try:
            answer = self._s3.get_object(Bucket=self._at.checkpoint_bucket, Key=_control(run) + name)
        except ClientError as error:
            if error.response["Error"]["Code"] in ("NoSuchKey", "404"):
                return None
            raise
        record: dict[str, Any] = json.loads(answer["Body"].read())
        return record

    def _remember(self, run: policy.Run, memory: policy.Memory) -> None:
        body = json.dumps(dataclasses.asdict(memory), sort_keys=True).encode()
        self._s3.put_object(Bucket=self._at.checkpoint_bucket, Key=_control(run) + "controller.json", Body=body)


def read_run(text: str) -> policy.Run:
    """Return the run that a run document asks for, with the document's digest.

    Raises:
        UnreadableRunDocument: The text is not JSON, or not a run document.
    """
    try:
        document = json.loads(text)
        canonical = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
        return policy.Run(
            name=document["run"],
            digest=hashlib.sha256(canonical).hexdigest(),
            nodes=int(document["nodes"]),
            min_nodes=int(document["min_nodes"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableRunDocument(f"the run parameter is not a run document ({error!r}); deploy it again") from error


def _control(run: policy.Run) -> str:
    return f"runs/{run.name}/control/"


def _interrupted(event: Mapping[str, Any]) -> frozenset[str]:
    if event.get("detail-type") != INTERRUPTION:
        return frozenset()
    return frozenset({event["detail"]["instance-id"]})


def _client(service: str) -> Any:
    return boto3.client(service, config=_BOUNDED)


def handler(event: Mapping[str, Any], context: object) -> dict[str, Any]:
    """Lambda entry point; raises what `Controller.step` raises, so that the event comes again."""
    surroundings = Surroundings.from_environment(os.environ)
    controller = Controller(
        surroundings, fleet=connect(surroundings.fleet, _client), ssm=_client("ssm"), s3=_client("s3")
    )
    done = controller.step(event, time.time())
    # Not through the logger: a metric filter reads the line, and Lambda would put words before the JSON.
    print(json.dumps(done), flush=True)
    return done
