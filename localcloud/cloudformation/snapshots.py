"""DeletionPolicy and UpdateReplacePolicy Snapshot, for the types that have snapshots here.

Source: https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-attribute-deletionpolicy.html
(2026-11).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from localcloud.cloudformation.provider import ResourceContext
from localcloud.cloudformation.stack import Resource


def _volume(context: ResourceContext, resource: Resource) -> None:
    ec2 = context.client("ec2")
    description = f"{context.stack_name} {context.logical_id}: taken by CloudFormation before deletion"
    tags = [{"Key": key, "Value": value} for key, value in context.tags.items() if not key.startswith("aws:")]
    specifications = [{"ResourceType": "snapshot", "Tags": tags}] if tags else []
    made = ec2.create_snapshot(VolumeId=resource.physical_id, Description=description, TagSpecifications=specifications)
    ec2.get_waiter("snapshot_completed").wait(SnapshotIds=[made["SnapshotId"]])


SNAPSHOTS: Mapping[str, Callable[[ResourceContext, Resource], None]] = {"AWS::EC2::Volume": _volume}


def take_snapshot(context: ResourceContext, resource: Resource) -> None:
    """Take a snapshot of a resource and wait until it is complete; `validation` admits only types that have one."""
    SNAPSHOTS[resource.type_name](context, resource)
