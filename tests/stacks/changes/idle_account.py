"""One deployment on a cloud of its own, whose machines are real to the cloud and idle."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from stacks.changes.assembly import Assembly, read_assembly
from stacks.changes.deployed import deployed
from stacks.changes.review import Review, review
from stacks.config import read
from tests.deploy.conftest import Workplace
from tests.localcloud.core.command_line import ROOT, Cli

SHIM = "#!/bin/bash\nexec sleep 86400\nexit # node document\n"
DEADLINE_SECONDS = 180.0


@dataclass(frozen=True)
class Seen:
    """What there is in the account."""

    ids: Mapping[str, str]
    machines: Mapping[str, str]
    run_version: int


class Account:
    """One deployment on a cloud of its own."""

    def __init__(self, workplace: Workplace, name: str) -> None:
        self.workplace = workplace
        self._name = name

    def client(self, service: str) -> Any:
        return self.workplace.cloud.client(service)

    def synthesise(self, config: Mapping[str, Any], *, is_sorted: bool = False) -> Assembly:
        path = self.workplace.project / "config" / "deployed.yaml"
        path.write_text(yaml.safe_dump(dict(config), sort_keys=is_sorted))
        done = self.workplace.cdk("synth", "--quiet")
        if done.exit_code:
            raise RuntimeError(done.output)
        return read_assembly(self.workplace.project / "build" / "cdk.out")

    def review(self, after: Assembly) -> Review:
        """Review a change against what CloudFormation holds."""
        config = read(self.workplace.project / "config" / "deployed.yaml")
        before, _ = deployed(config, after, self.client)
        return review(before, after)

    def deploy(self) -> bool:
        """Deploy what was synthesised last; tell whether it came to a good end."""
        arguments = ("--all", "--require-approval", "never", "--concurrency", "2", "--app", "build/cdk.out")
        with self._hooks_completed():
            return self.workplace.cdk("deploy", *arguments).exit_code == 0

    def without_training(self) -> bool:
        """Destroy the stack that imports from the others; tell whether it went."""
        with self._hooks_completed():
            return self.workplace.cdk("destroy", "TrainingStack", "--force").exit_code == 0

    def without_anything(self) -> bool:
        """Destroy all stacks; tell whether they went."""
        with self._hooks_completed():
            return self.workplace.destroy().exit_code == 0

    def made_real(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return changes with ids of this account for those of a case that stand for something to be there."""
        return {key: self._made(key, value) for key, value in changes.items()}

    def _made(self, key: str, value: Any) -> Any:
        ec2 = self.client("ec2")
        if key.endswith(".snapshot_id"):
            volume = ec2.create_volume(AvailabilityZone=f"{ec2.meta.region_name}a", Size=100)["VolumeId"]
            return ec2.create_snapshot(VolumeId=volume)["SnapshotId"]
        if key == "capacity.reservation.id":
            (there,) = ec2.describe_capacity_reservations()["CapacityReservations"]
            kept = ("InstanceType", "InstancePlatform", "AvailabilityZone", "InstanceMatchCriteria")
            made = ec2.create_capacity_reservation(
                **{name: there[name] for name in kept}, InstanceCount=there["TotalInstanceCount"]
            )
            return made["CapacityReservation"]["CapacityReservationId"]
        return value

    def free_reservations(self) -> None:
        """End the machines that stand in for somebody else's."""
        ids = [one["InstanceId"] for one in self._instances("running", "pending")]
        if ids:
            self.client("ec2").terminate_instances(InstanceIds=ids)

    @contextmanager
    def _hooks_completed(self) -> Iterator[None]:
        """Answer the terminating hook as a node does that has saved."""
        ended, client = threading.Event(), self.client("autoscaling")

        def answer() -> None:
            while not ended.wait(0.5):
                for one in client.describe_auto_scaling_instances()["AutoScalingInstances"]:
                    if one["LifecycleState"] == "Terminating:Wait":
                        client.complete_lifecycle_action(
                            LifecycleHookName="trainstack-terminating",
                            AutoScalingGroupName=one["AutoScalingGroupName"],
                            InstanceId=one["InstanceId"],
                            LifecycleActionResult="CONTINUE",
                        )

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def seen(self, nodes: int) -> Seen:
        """Return what there is, once as many machines run as the run wants, or when they do not come.

        Machines that never train would make the run controller wait ever longer before it asks again: it is made to
        forget them.
        """
        self._forget_attempts()
        deadline = time.monotonic() + DEADLINE_SECONDS
        with self._hooks_completed():
            while len(machines := self._machines()) != nodes or self._leaving():
                if time.monotonic() > deadline:
                    break
                time.sleep(1.0)
        ids = {
            f"{stack.removeprefix(self._name + '-')}/{logical_id}": physical_id
            for stack in self.workplace.stacks()
            for logical_id, (_, physical_id) in self.workplace.physical_ids(stack).items()
        }
        parameter = self.client("ssm").get_parameter(Name=f"/trainstack/{self._name}/run")["Parameter"]
        return Seen(ids, machines, int(parameter["Version"]))

    def _forget_attempts(self) -> None:
        s3 = self.client("s3")
        for bucket in s3.list_buckets()["Buckets"]:
            for item in s3.list_objects_v2(Bucket=bucket["Name"], Prefix="runs/").get("Contents", []):
                if item["Key"].endswith("/control/controller.json"):
                    s3.delete_object(Bucket=bucket["Name"], Key=item["Key"])

    def _machines(self) -> dict[str, str]:
        return {one["InstanceId"]: one["InstanceType"] for one in self._instances("running", "pending")}

    def _leaving(self) -> bool:
        return bool(self._instances("shutting-down", "stopping"))

    def _instances(self, *states: str) -> list[dict[str, Any]]:
        filters = [{"Name": "instance-state-name", "Values": list(states)}]
        pages = self.client("ec2").describe_instances(Filters=filters)["Reservations"]
        return [one for reservation in pages for one in reservation["Instances"]]


def copied_project(folder: Path) -> Workplace:
    """Copy the project to a folder, its machines asleep, and start and bootstrap a cloud beside it."""
    project = folder / "project"
    for name in ("bootstrap", "stacks", "training", "config"):
        shutil.copytree(ROOT / name, project / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("app.py", "cdk.json"):
        shutil.copy(ROOT / name, project)
    (project / "stacks" / "shim.sh").write_text(SHIM)
    shutil.copy(project / "config" / "demo.yaml", project / "config" / "deployed.yaml")
    cloud = Cli(folder / "cloud")
    cloud.good("up", "--port", "0")
    workplace = Workplace(project, cloud)
    if (toolkit := workplace.cdk("bootstrap")).exit_code:
        cloud.run("down")
        raise RuntimeError(toolkit.output)
    return workplace
