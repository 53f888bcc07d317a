"""One deployment on a separate embedded cloud with idle instances."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from stacks.changes.review import Review, review
from stacks.changes.templates.deployed import deployed
from stacks.changes.templates.template_set import TemplateSet, read_cloud_assembly
from stacks.loading import read
from tests.deploy.conftest import Workplace
from tests.localcloud.core.command_line import ROOT, Cli

SHIM = "#!/bin/bash\nexec sleep 86400\nexit # node document\n"
DEADLINE_SECONDS = 180.0


@dataclass(frozen=True)
class Observation:
    """Physical ids by logical id, instance types by instance id, and the version of the run parameter."""

    ids: Mapping[str, str]
    instances: Mapping[str, str]
    run_version: int


class Account:
    """One deployment on a separate embedded cloud."""

    def __init__(self, workplace: Workplace, name: str) -> None:
        self.workplace = workplace
        self._name = name

    def client(self, service: str) -> Any:
        return self.workplace.cloud.client(service)

    def synthesise(self, config: Mapping[str, Any], *, is_sorted: bool = False) -> TemplateSet:
        path = self.workplace.project / "config" / "deployed.yaml"
        path.write_text(yaml.safe_dump(dict(config), sort_keys=is_sorted))
        done = self.workplace.cdk("synth", "--quiet")
        if done.exit_code:
            raise RuntimeError(done.output)
        return read_cloud_assembly(self.workplace.project / "build" / "cdk.out")

    def review(self, after: TemplateSet) -> Review:
        """Review a change against the deployed templates."""
        config = read(self.workplace.project / "config" / "deployed.yaml")
        before, _ = deployed(config, after, self.client)
        return review(before, after)

    def deploy(self) -> bool:
        """Deploy the last synthesis; return True on success."""
        arguments = ("--all", "--require-approval", "never", "--concurrency", "2", "--app", "build/cdk.out")
        with self._hooks_completed():
            return self.workplace.cdk("deploy", *arguments).exit_code == 0

    def without_training(self) -> bool:
        """Destroy the stack that imports from the others; return True on success."""
        with self._hooks_completed():
            return self.workplace.cdk("destroy", "TrainingStack", "--force").exit_code == 0

    def without_anything(self) -> bool:
        """Destroy all stacks; return True on success."""
        with self._hooks_completed():
            return self.workplace.destroy().exit_code == 0

    def with_ids(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return a case's changes with ids of real resources in place of its placeholders."""
        return {key: self._created_id(key, value) for key, value in changes.items()}

    def _created_id(self, key: str, value: Any) -> Any:
        ec2 = self.client("ec2")
        if key.endswith(".snapshot_id"):
            volume = ec2.create_volume(AvailabilityZone=f"{ec2.meta.region_name}a", Size=100)["VolumeId"]
            return ec2.create_snapshot(VolumeId=volume)["SnapshotId"]
        if key == "capacity.reservation.id":
            (existing,) = ec2.describe_capacity_reservations()["CapacityReservations"]
            copied = ("InstanceType", "InstancePlatform", "AvailabilityZone", "InstanceMatchCriteria")
            created = ec2.create_capacity_reservation(
                **{name: existing[name] for name in copied}, InstanceCount=existing["TotalInstanceCount"]
            )
            return created["CapacityReservation"]["CapacityReservationId"]
        return value

    def free_reservations(self) -> None:
        """Terminate the instances that other users of the reservations run."""
        ids = [one["InstanceId"] for one in self._instances("running", "pending")]
        if ids:
            self.client("ec2").terminate_instances(InstanceIds=ids)

    @contextmanager
    def _hooks_completed(self) -> Iterator[None]:
        """Complete the terminating hook, as a node does after its save."""
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

    def observe(self, nodes: int) -> Observation:
        """Return an observation once all of the run's instances are running, or after a deadline.

        Instances that never train would make the run controller wait ever longer between attempts, so its state is
        deleted first. Without the dataset's index, the controller would not start any instances.
        """
        self._put_dataset_index()
        self._delete_controller_state()
        deadline = time.monotonic() + DEADLINE_SECONDS
        with self._hooks_completed():
            while len(instances := self._running()) != nodes or self._is_terminating():
                if time.monotonic() > deadline:
                    break
                time.sleep(1.0)
        ids = {
            f"{stack.removeprefix(self._name + '-')}/{logical_id}": physical_id
            for stack in self.workplace.stacks()
            for logical_id, (_, physical_id) in self.workplace.physical_ids(stack).items()
        }
        parameter = self.client("ssm").get_parameter(Name=f"/trainstack/{self._name}/run")["Parameter"]
        return Observation(ids, instances, int(parameter["Version"]))

    def _put_dataset_index(self) -> None:
        document = self.client("ssm").get_parameter(Name=f"/trainstack/{self._name}/run")["Parameter"]["Value"]
        key = f"datasets/{json.loads(document)['dataset']}/dataset.json"
        s3 = self.client("s3")
        for bucket in s3.list_buckets()["Buckets"]:
            if "datasets" in bucket["Name"]:
                s3.put_object(Bucket=bucket["Name"], Key=key, Body=b"{}")

    def _delete_controller_state(self) -> None:
        s3 = self.client("s3")
        for bucket in s3.list_buckets()["Buckets"]:
            for item in s3.list_objects_v2(Bucket=bucket["Name"], Prefix="controller/").get("Contents", []):
                s3.delete_object(Bucket=bucket["Name"], Key=item["Key"])

    def _running(self) -> dict[str, str]:
        return {one["InstanceId"]: one["InstanceType"] for one in self._instances("running", "pending")}

    def _is_terminating(self) -> bool:
        return bool(self._instances("shutting-down", "stopping"))

    def _instances(self, *states: str) -> list[dict[str, Any]]:
        filters = [{"Name": "instance-state-name", "Values": list(states)}]
        pages = self.client("ec2").describe_instances(Filters=filters)["Reservations"]
        return [one for reservation in pages for one in reservation["Instances"]]


def copied_project(folder: Path) -> Workplace:
    """Copy the project to a folder with user data that sleeps; start and bootstrap a cloud for it."""
    project = folder / "project"
    for name in ("bootstrap", "hardware", "stacks", "training", "config"):
        shutil.copytree(ROOT / name, project / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("app.py", "cdk.json"):
        shutil.copy(ROOT / name, project)
    (project / "stacks" / "constructs" / "nodes" / "shim.sh").write_text(SHIM)
    shutil.copy(project / "config" / "demo.yaml", project / "config" / "deployed.yaml")
    cloud = Cli(folder / "cloud")
    cloud.good("up", "--port", "0")
    workplace = Workplace(project, cloud)
    if (toolkit := workplace.cdk("bootstrap")).exit_code:
        cloud.run("down")
        raise RuntimeError(toolkit.output)
    return workplace
