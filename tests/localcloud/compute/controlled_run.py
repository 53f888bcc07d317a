"""A run under the real run controller and its ledger, on the embedded cloud, in simulated time.

The embedded cloud provides the fleet, the instances, the prices and the capacity behind its gateway. Only the trainers
are simulated: a complete gang trains after its boot, reports like the first member, and saves at intervals, at notices
and when a hook holds a terminating node. Each tick advances the cloud's clock, so a day takes minutes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from bootstrap.documents import TERMINATING_HOOK, Bundle, RunDocument
from bootstrap.documents.object_keys import control_prefix
from stacks.functions.run_controller.environment import Environment
from stacks.functions.run_controller.events import INTERRUPTION, STATE_CHANGE
from stacks.functions.run_controller.fleet_back_ends import Backend
from stacks.functions.run_controller.fleet_clients import connect
from stacks.functions.run_controller.handler import Controller
from stacks.functions.run_controller.ledger.keeper import Keeper
from stacks.functions.run_controller.market.prices import SpotPrices
from stacks.functions.run_controller.market.scores import PlacementScores
from tests.localcloud.compute.controlled_fleets import KIND, create

ON_DEMAND_USD = 0.096
HOUR = 3600.0
NOTICE_SECONDS = 120.0
STEPS_TOTAL = 100_000


@dataclass(frozen=True)
class Plan:
    """The conditions of a run.

    Attributes:
        work_hours: Training time with all nodes.
        boot_seconds: Time from an instance's launch to its readiness.
        save_seconds: Training time between two saves.
        limit_usd: The run's limit of costs.
    """

    nodes: int = 2
    work_hours: float = 4.0
    deadline_hours: float | None = 8.0
    boot_seconds: float = 300.0
    save_seconds: float = 600.0
    tick_seconds: float = 60.0
    limit_usd: float | None = None


class Bus:
    """Adds a timestamp from the embedded cloud's clock to each event that it publishes.

    Attributes:
        ended: The time at which each instance began to shut down. AWS does not bill an instance in this state. Source
            (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-lifecycle.html
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.ended: dict[str, float] = {}
        self._events: list[dict[str, Any]] = []

    def publish(
        self, source: str, detail_type: str, detail: Mapping[str, Any], resources: list[str] | None = None
    ) -> None:
        """Keep an event until the controller's next step."""
        if detail_type == STATE_CHANGE and detail["state"] == "shutting-down":
            self.ended.setdefault(detail["instance-id"], self._clock())
        self._events.append(event(detail_type, dict(detail), self._clock()))

    def take(self) -> list[dict[str, Any]]:
        """Return the events since the last call."""
        taken, self._events = self._events, []
        return taken


def event(kind: str, detail: Mapping[str, Any], unix_seconds: float) -> dict[str, Any]:
    """Return an event as EventBridge delivers it."""
    time = f"{datetime.fromtimestamp(unix_seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"
    return {"detail-type": kind, "time": time, "detail": detail}


class ControlledRun:
    """A deployment with a fleet and its controller."""

    def __init__(self, cloud: Any, plan: Plan, zones: Iterable[str], backend: Backend = "auto_scaling_group") -> None:
        self.cloud, self.plan, self.zones = cloud, plan, tuple(zones)
        self.name = cloud.name("day")
        self.bus = Bus(cloud.now)
        cloud.bus.publish = self.bus.publish
        self.start = cloud.now()
        self.step_seconds = plan.work_hours * HOUR / STEPS_TOTAL
        self.trained, self.saved, self.lost_seconds = 0.0, 0.0, [0.0]
        self.finished_at: float | None = None
        self.prices: dict[str, list[tuple[float, float]]] = {zone: [] for zone in self.zones}
        self.lines: list[dict[str, Any]] = []
        self._noticed: dict[str, float] = {}
        self.was_noticed: set[str] = set()
        self._told: set[str] = set()
        self._heard: set[str] = set()
        self._seen: dict[str, Any] = {}
        self._trained_by: tuple[str, ...] = ()
        self._subnets = {zone: cloud.subnets[number] for number, zone in enumerate(self.zones)}
        self.s3 = cloud.client("s3")
        self._put_up(backend)

    def _put_up(self, backend: Backend) -> None:
        cloud = self.cloud
        region = self.zones[0][:-1]
        self.bucket = cloud.name("control")
        for bucket in (self.bucket, cloud.name("datasets")):
            cloud.client("s3").create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": region})
        cloud.client("s3").put_object(Bucket=bucket, Key="datasets/text/dataset.json", Body=b"{}")
        tags = {"trainstack:deployment": self.name}
        self.fleet = create(backend, cloud, self.name, self._subnets, self.plan.nodes, tags)
        document = RunDocument(
            schema_version=2, deployment=self.name, run="run-1", nodes=self.plan.nodes, min_nodes=self.plan.nodes,
            processes_per_node=1, code=Bundle("assets", "code.zip", "0" * 64), dataset="text", training={},
        )  # fmt: skip
        self.digest = document.digest()
        parameter = f"/{self.bucket}/run"
        cloud.client("ssm").put_parameter(Name=parameter, Value=json.dumps(document.to_json()), Type="String")
        deadline = self.plan.deadline_hours
        self.environment = Environment.of(
            {
                "BACKEND": backend,
                "FLEET_ID": ",".join(self.fleet.ids),
                "NODES": str(self.plan.nodes),
                "ON_DEMAND_BASE": "0",
                "RUN_PARAMETER": parameter,
                "DESIRED_PARAMETER": f"/{self.bucket}/desired",
                "DEPLOYMENT": self.name,
                "CONTROL_BUCKET": self.bucket,
                "NODE_ROLE_ID": "AROA1",
                "DATASET_BUCKET": bucket,
                "SUBNET_IDS": ",".join(self._subnets.values()),
                "ONE_SUBNET_AT_A_TIME": "true",
                "GANG_TIMEOUT_SECONDS": "900",
                "BOOT_FAILURE_LIMIT": "3",
                "BOOT_TIMEOUT_SECONDS": "1800",
                "CHOOSE": "cost",
                "PLACES": json.dumps({"region": region, "instance_types": [KIND], "zones": self.zones}),
                "LIMIT_USD": "" if self.plan.limit_usd is None else str(self.plan.limit_usd),
                "LIMIT_RUN_HOURS": "",
                "DEADLINE_HOURS": "" if deadline is None else str(deadline),
                "ON_DEADLINE_MISS": "on_demand",
                "TRAINING_HOURS": str(self.plan.work_hours),
                "ON_DEMAND_USD_PER_HOUR": json.dumps({KIND: ON_DEMAND_USD}),
            }
        )

    def controller(self, client: Callable[[str], Any] | None = None) -> Controller:
        """Return a new controller, as a new invocation of the function creates it. `client`: its boto3 clients."""
        environment, client = self.environment, client or self.cloud.client
        ledger = Keeper(
            self.name,
            environment.fleet,
            environment.on_demand_prices,
            s3=client("s3"),
            bucket=self.bucket,
            client=client,
        )
        return Controller(
            environment,
            fleet=connect(environment.fleet, client),
            ssm=client("ssm"),
            s3=client("s3"),
            ledger=ledger,
            prices=SpotPrices(environment.settings, client),
            scores=PlacementScores(environment.settings, client),
        )

    def step(self, events: list[dict[str, Any]]) -> dict[str, Any]:
        """Take a step of a new controller, without faults."""
        return self.controller().step(events, self.cloud.now())

    @property
    def hours(self) -> float:
        """Time since the start."""
        return (self.cloud.now() - self.start) / HOUR

    def set_zone(self, zone: str, *, is_available: bool, usd_per_hour: float) -> None:
        """Change a zone's spot price and capacity. Without capacity, its instances get an interruption notice."""
        now = self.cloud.now()
        self.prices[zone].append((now, usd_per_hour))
        body = {"instance_types": [KIND], "zone": zone, "is_available": True, "usd_per_hour": usd_per_hour}
        assert self.cloud.post("pool", body) == 200
        if not is_available:
            self.cloud.post("capacity", {"instance_type": KIND, "zone": zone, "available": 0})
            for instance in self.instances():
                if instance.market == "spot" and instance.zone == zone:
                    self.notice(instance.id)

    def notice(self, instance_id: str) -> None:
        """Send an interruption notice. EC2 reclaims the instance after two minutes of the cloud's time."""
        if instance_id not in self._noticed:
            now = self.cloud.now()
            self._noticed[instance_id] = now
            self.was_noticed.add(instance_id)
            self.bus._events.append(event(INTERRUPTION, {"instance-id": instance_id}, now))

    def kill(self, instance_id: str) -> None:
        """Reclaim an instance without notice."""
        self.cloud.post("interrupt", {"instance_id": instance_id, "notice_seconds": None})

    def instances(self) -> list[Any]:
        """Return the live instances of the fleet."""
        return [one for one in self.all_instances() if one.state in ("pending", "running")]

    def all_instances(self) -> list[Any]:
        """Return all instances since the start. The inventory forgets terminated instances after some time."""
        for one in self.cloud.compute.inventory.all():
            if one.group in self.fleet.ids or one.id in self._seen:
                self._seen[one.id] = one
        return list(self._seen.values())

    def tick(self, step: Callable[[list[dict[str, Any]]], dict[str, Any] | None]) -> None:
        """Advance the time, let EC2 and the trainers act, and take a control step, which may return no line."""
        self.cloud.advance(self.plan.tick_seconds)
        now = self.cloud.now()
        for instance_id, noticed in list(self._noticed.items()):
            if now - noticed >= NOTICE_SECONDS:
                del self._noticed[instance_id]
                if any(one.id == instance_id for one in self.instances()):
                    self.kill(instance_id)
        self._complete_hooks()
        self._settle()
        self._train(now)
        line = step(self.bus.take())
        if line is not None:
            self.lines.append(line)
        self._settle()

    def _complete_hooks(self) -> None:
        """Let the nodes that have saved since the last tick end, as their supervisors do."""
        for instance_id, group in self.fleet.saving().items():
            self._told.add(instance_id)
            self.cloud.autoscaling.complete_lifecycle_action(
                LifecycleHookName=TERMINATING_HOOK,
                AutoScalingGroupName=group,
                InstanceId=instance_id,
                LifecycleActionResult="CONTINUE",
            )

    def _settle(self) -> None:
        """Wait until the fleet has its target size, or waits to repeat a rejected launch."""
        self.cloud.until(self.fleet.is_settled, "the fleet to reach its size")

    def _train(self, now: float) -> None:
        """Advance the training, and write the nodes' records."""
        if self.finished_at is not None:
            return
        self._told |= set(self._noticed)
        ready = [
            one for one in self.instances()
            if now - one.launched_unix_seconds >= self.plan.boot_seconds and one.id not in self._told
        ]  # fmt: skip
        prefix = control_prefix(self.name, "run-1")
        for one in (one for one in ready if one.id not in self._heard):
            self._heard.add(one.id)
            key = f"{prefix}heartbeats/AROA1:{one.id}.json"
            self.s3.put_object(Bucket=self.bucket, Key=key, Body=b"{}")
        members = tuple(sorted(one.id for one in ready))[: self.plan.nodes]
        alive = {one.id for one in self.instances()}
        if self._trained_by and members != self._trained_by:
            if set(self._trained_by) - alive <= self._told:
                self.saved = self.trained  # the gang had a notice or a hook, or its nodes were replaced
            self.lost_seconds.append((self.trained - self.saved) * self.step_seconds)
            self.trained = self.saved
            self._trained_by = ()
        if len(members) < self.plan.nodes:
            return
        if self._trained_by == members:
            self.trained = min(STEPS_TOTAL, self.trained + self.plan.tick_seconds / self.step_seconds)
            if (self.trained - self.saved) * self.step_seconds >= self.plan.save_seconds:
                self.saved = self.trained
        self._trained_by = members
        status = {
            "run": "run-1", "run_digest": self.digest, "generation": 1, "members": list(members),
            "step": int(self.trained), "steps_total": STEPS_TOTAL, "step_seconds": self.step_seconds,
            "checkpoint": {"step": int(self.saved), "unix_seconds": now}, "unix_seconds": now,
        }  # fmt: skip
        self.s3.put_object(Bucket=self.bucket, Key=f"{prefix}status.json", Body=json.dumps(status).encode())
        if self.trained >= STEPS_TOTAL:
            self.end()

    def end(self) -> None:
        """Record the end of the run, as its nodes do."""
        self.finished_at = self.cloud.now()
        outcome = {"run": "run-1", "run_digest": self.digest, "outcome": "finished", "step": STEPS_TOTAL}
        key = f"{control_prefix(self.name, 'run-1')}outcome.json"
        self.s3.put_object(Bucket=self.bucket, Key=key, Body=json.dumps(outcome).encode())

    def bill(self) -> float:
        """Return AWS's charge for all instances, according to its rules: see `ledger/machines.py` for their sources."""
        return sum(self._bill(one) for one in self.all_instances())

    def _bill(self, one: Any) -> float:
        end = self.cloud.now() if one.ended_unix_seconds is None else one.ended_unix_seconds
        end = min(end, self.bus.ended.get(one.id, end))
        start, left, usd = one.launched_unix_seconds, max(end - one.launched_unix_seconds, 60.0), 0.0
        if one.market == "spot" and self._is_reclaimed(one) and end - start < HOUR:
            return 0.0
        while left > 0:
            price = ON_DEMAND_USD if one.market != "spot" else self._price(one.zone, start)
            usd += price * min(left, HOUR) / HOUR
            start, left = start + HOUR, left - HOUR
        return usd

    @staticmethod
    def _is_reclaimed(one: Any) -> bool:
        return one.reason is not None and one.reason.code == "Server.SpotInstanceTermination"

    def _price(self, zone: str, moment: float) -> float:
        """Return the price in force. EC2 reports launches and changes of prices with a resolution of a second."""
        return next(usd for since, usd in reversed(self.prices[zone]) if int(since) <= int(moment))
