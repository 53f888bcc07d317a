"""Nodes with a checkpoint volume and exactly the permissions of the node role.

The embedded cloud provides EC2 and IAM; only the instances' disks are simulated.
"""

from __future__ import annotations

import json
import os
import time
from datetime import timedelta
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aws_cdk as cdk
import boto3
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from moto.backends import get_backend

from bootstrap.boot_steps.volumes import Volumes
from bootstrap.context import Context
from bootstrap.documents import NodeDocument
from bootstrap.events.log import EventLog
from bootstrap.layout import Layout
from bootstrap.supervise.volume_snapshot import VolumeSnapshot
from stacks.constructs.nodes.node_role import NodeRole
from stacks.loading import load
from tests.bootstrap.test_documents import node
from tests.bootstrap.test_volumes import Machine
from tests.localcloud.compute.conftest import REGION, ZONES, Cloud

ROOT = Path(__file__).resolve().parents[3]
ACCOUNT = "123456789012"
DEPLOYMENT = "single-node-8-gpu"
HOUR_SECONDS = 3600
VOLUME = "vol-0123456789abcdef0"
KEY = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/00000000-0000-4000-8000-000000000000"


def tags(**values: str) -> list[dict[str, str]]:
    return [{"Key": f"trainstack:{key.replace('_', '-')}", "Value": value} for key, value in values.items()]


def resolved(value: Any) -> Any:
    """Return a part of a template with the partition substituted."""
    if isinstance(value, dict):
        if value.keys() == {"Fn::Join"}:
            return "".join(resolved(part) for part in value["Fn::Join"][1])
        if value.keys() == {"Ref"}:
            assert value["Ref"] == "AWS::Partition"
            return "aws"
        return {resolved(key): resolved(item) for key, item in value.items()}
    return [resolved(item) for item in value] if isinstance(value, list) else value


@cache
def node_statements() -> str:
    """Return the statements of the node role as JSON, for the copied checkpoint volume VOLUME."""
    app = cdk.App()
    stack = cdk.Stack(app, "Role", env=cdk.Environment(account=ACCOUNT, region=REGION))
    NodeRole(
        stack,
        "NodeRole",
        config=load(ROOT / "config" / f"{DEPLOYMENT}.yaml"),
        deployment=DEPLOYMENT,
        datasets=s3.Bucket.from_bucket_name(stack, "Datasets", "datasets"),
        checkpoints=s3.Bucket.from_bucket_name(stack, "Checkpoints", "checkpoints"),
        control=s3.Bucket.from_bucket_name(stack, "Control", "control"),
        key=kms.Key.from_key_arn(stack, "Key", KEY),
        volume_ids=[VOLUME],
        copied_volume_id=VOLUME,
    )
    template = app.synth().get_stack_by_name("Role").template
    (policy,) = [one for one in template["Resources"].values() if one["Type"] == "AWS::IAM::Policy"]
    return json.dumps(resolved(policy["Properties"]["PolicyDocument"]["Statement"]))


class Killed(BaseException):
    """Raised when the simulated instance is killed."""


class Calls:
    """An EC2 client that kills the instance after a number of calls, before it receives the last response."""

    def __init__(self, client: Any, calls: int | None) -> None:
        self._client = client
        self._left = calls

    def __getattr__(self, operation: str) -> Any:
        def call(**parameters: Any) -> Any:
            answer = getattr(self._client, operation)(**parameters)
            if self._left is not None:
                self._left -= 1
                if self._left == 0:
                    raise Killed
            return answer

        return call


class Disks(Machine):
    """A machine with the volumes that EC2 attached to it, each with an XFS file system."""

    def __init__(self, ec2: Any, instance_id: str) -> None:
        super().__init__()
        self._ec2, self._instance_id = ec2, instance_id
        self.kind = "xfs"

    def list_directory(self, path: Path) -> list[str]:
        if str(path) != "/sys/block":
            return super().list_directory(path)
        mine = [{"Name": "attachment.instance-id", "Values": [self._instance_id]}]
        names = []
        for number, one in enumerate(self._ec2.describe_volumes(Filters=mine)["Volumes"]):
            names.append(f"nvme{number}n1")
            self.files[f"/sys/block/nvme{number}n1/device/serial"] = one["VolumeId"].replace("-", "")
        return names

    def unix_seconds(self) -> float:
        return time.time()


class Deployment:
    """A checkpoint volume in the first zone, the role of its nodes, and its nodes."""

    def __init__(self, cloud: Cloud, folder: Path) -> None:
        self.cloud, self.ec2, self._folder = cloud, cloud.ec2, folder
        self.volume_id = self.ec2.create_volume(
            AvailabilityZone=ZONES[0],
            VolumeType="gp3",
            Size=80,
            Iops=4000,
            Throughput=300,
            Encrypted=True,
            KmsKeyId=KEY,
            TagSpecifications=[
                {"ResourceType": "volume", "Tags": tags(snapshots=DEPLOYMENT, deployment=DEPLOYMENT)},
            ],
        )["VolumeId"]
        self._statements = json.loads(node_statements().replace(VOLUME, self.volume_id))
        self._role = cloud.name("copying")
        trust = {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}
        document = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
        self._role_arn = cloud.client("iam").create_role(RoleName=self._role, AssumeRolePolicyDocument=document)[
            "Role"
        ]["Arn"]
        self.grant()
        self._nodes = 0

    def grant(self, *, without: str | None = None) -> None:
        """Give the role its statements, optionally without one of them."""
        assert without is None or without in {one["Sid"] for one in self._statements}
        document = {"Version": "2012-10-17", "Statement": [one for one in self._statements if one["Sid"] != without]}
        self.cloud.client("iam").put_role_policy(
            RoleName=self._role, PolicyName="own", PolicyDocument=json.dumps(document)
        )

    def scheduled_snapshot(self) -> str:
        """Take a snapshot as the schedule does; return its ID."""
        return str(
            self.ec2.create_snapshot(
                VolumeId=self.volume_id,
                TagSpecifications=[
                    {"ResourceType": "snapshot", "Tags": tags(snapshots=DEPLOYMENT, deployment=DEPLOYMENT)}
                ],
            )["SnapshotId"]
        )

    def age_snapshots(self) -> None:
        """Make every snapshot an hour older."""
        for snapshot in get_backend("ec2")[ACCOUNT][REGION].snapshots.values():
            snapshot.start_time -= timedelta(hours=1)

    def copies(self) -> list[dict[str, Any]]:
        return list(
            self.ec2.describe_volumes(Filters=[{"Name": "tag:trainstack:copy-of", "Values": [self.volume_id]}])[
                "Volumes"
            ]
        )

    def snapshots(self) -> list[dict[str, Any]]:
        found = self.ec2.describe_snapshots(Filters=[{"Name": "tag:trainstack:snapshots", "Values": [DEPLOYMENT]}])
        return sorted(found["Snapshots"], key=lambda one: one["StartTime"])

    def node(self, zone: int, instance_id: str | None = None, *, calls: int | None = None) -> Node:
        """Return a new node in a zone or, if `instance_id` is given, that instance after a reboot."""
        if instance_id is None:
            (instance_id,) = self.cloud.run(
                SubnetId=self.cloud.subnets[zone],
                TagSpecifications=[{"ResourceType": "instance", "Tags": tags(deployment=DEPLOYMENT)}],
            )
            self.cloud.until_state(instance_id, "running")
        self._nodes += 1
        return Node(self, instance_id, ZONES[zone], self._folder / f"n{self._nodes}", calls)

    def client(self, instance_id: str) -> Any:
        """Return an EC2 client that uses an instance's role."""
        session = self.cloud.identity.issue(
            self._role_arn, instance_id, trusted_service="ec2.amazonaws.com", duration_seconds=900
        )
        return boto3.client(
            "ec2",
            endpoint_url=self.cloud.endpoint_url,
            region_name=REGION,
            aws_access_key_id=session.access_key_id,
            aws_secret_access_key=session.secret_access_key,
            aws_session_token=session.session_token,
        )

    def terminate(self, *nodes: Node) -> None:
        for one in nodes:
            self.ec2.terminate_instances(InstanceIds=[one.instance_id])
            self.cloud.until_state(one.instance_id, "terminated")


class Node:
    """One boot of an instance."""

    def __init__(self, deployment: Deployment, instance_id: str, zone: str, folder: Path, calls: int | None) -> None:
        self.instance_id, self.mount = instance_id, folder / "mnt"
        folder.mkdir()
        self.system = Disks(deployment.ec2, instance_id)
        volume = {
            "kind": "checkpoint",
            "device": "/dev/sdg",
            "mount": str(self.mount),
            "read_only": False,
            "warm": False,
            "volume_id": deployment.volume_id,
            "availability_zone": ZONES[0],
            "restored_elsewhere": True,
        }
        document = NodeDocument.from_json({**node(), "deployment": DEPLOYMENT, "volumes": [volume]})
        client = Calls(deployment.client(instance_id), calls)
        aws: Any = SimpleNamespace(client=lambda service, patience="normal": client)
        unused: Any = None
        layout = Layout(folder)
        self.context = Context(self.system, layout, document, aws, unused, EventLog(self.system, layout.events))
        identity: Any = SimpleNamespace(instance_id=instance_id, availability_zone=zone)
        self.context.identity = identity

    def boot(self) -> None:
        Volumes().act(self.context)
        Volumes().verify(self.context)

    def save(self, hours_ago: float = 0) -> None:
        """Write the file that a save leaves on the volume."""
        unix_seconds = time.time() - hours_ago * HOUR_SECONDS + 1
        record = self.mount / "runs/single-node-8-gpu/run-1/checkpoints/local/rank-00000.json"
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text("{}")
        os.utime(record, (unix_seconds, unix_seconds))

    def leave(self) -> dict[str, Any]:
        """Take the snapshot that a node takes when it leaves; return its event."""
        snapshot = VolumeSnapshot(self.context)
        snapshot.start()
        snapshot.finish()
        return self.event("checkpoint_snapshot")

    def events(self, kind: str) -> list[dict[str, Any]]:
        lines = self.context.layout.events.read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    def event(self, kind: str = "checkpoint_copy") -> dict[str, Any]:
        """Return the newest event of a kind."""
        return self.events(kind)[-1]

    @property
    def is_mounted(self) -> bool:
        return bool(self.system.ran("mount"))
