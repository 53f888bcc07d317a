"""IAM statements that let nodes copy the checkpoint volume to another zone, limited to its snapshots and copies."""

from __future__ import annotations

from aws_cdk import Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms

from bootstrap.documents import COPY_TAG, SNAPSHOTS_TAG, TAKER, TAKER_TAG


def volume_copy_statements(stack: Stack, deployment: str, volume_id: str, key: kms.IKey) -> list[iam.PolicyStatement]:
    """Return the statements. Nodes must tag volumes and snapshots on creation, and can only use tagged resources.

    Source: https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2.html and, for the key,
    https://docs.aws.amazon.com/ebs/latest/userguide/ebs-encryption-requirements.html (2026-11).

    Args:
        stack: The stack that contains the role.
        deployment: The deployment's name.
        volume_id: The id of the checkpoint volume.
        key: The key that encrypts the volume, its snapshots and its copies.
    """
    here = f"arn:{stack.partition}:ec2:{stack.region}"
    volumes, snapshots = f"{here}:{stack.account}:volume/*", f"{here}::snapshot/*"
    ours, taken = {SNAPSHOTS_TAG: deployment}, {SNAPSHOTS_TAG: deployment, TAKER_TAG: TAKER}
    return [
        # This call does not support resource-level permissions: IAM ignores statements that name a resource.
        _allow("FindSnapshots", ["ec2:DescribeSnapshots"], ["*"]),
        _allow("ReadSnapshots", ["ec2:CreateVolume"], [snapshots], _tags("Resource", ours)),
        _allow("CreateCopies", ["ec2:CreateVolume"], [volumes], _tags("Request", {COPY_TAG: volume_id})),
        _allow(
            "UseCopies",
            ["ec2:AttachVolume", "ec2:CreateSnapshot", "ec2:ModifyInstanceAttribute"],
            [volumes],
            _tags("Resource", {COPY_TAG: volume_id}),
        ),
        _allow("SnapshotVolume", ["ec2:CreateSnapshot"], [f"{here}:{stack.account}:volume/{volume_id}"]),
        _allow("TakeSnapshots", ["ec2:CreateSnapshot"], [snapshots], _tags("Request", taken)),
        _allow(
            "TagOnCreate",
            ["ec2:CreateTags"],
            [volumes, snapshots],
            {"StringEquals": {"ec2:CreateAction": ["CreateSnapshot", "CreateVolume"]}},
        ),
        _allow("DeleteOwnSnapshots", ["ec2:DeleteSnapshot"], [snapshots], _tags("Resource", taken)),
        _allow(
            "DeleteCopyOnTermination",
            ["ec2:ModifyInstanceAttribute"],
            [f"{here}:{stack.account}:instance/*"],
            # Limited to the instance that received the credentials.
            {"ArnEquals": {"ec2:SourceInstanceARN": f"{here}:{stack.account}:instance/${{ec2:InstanceID}}"}},
        ),
        _allow(
            "UseKeyOfCopies",
            ["kms:GenerateDataKeyWithoutPlaintext", "kms:ReEncryptFrom", "kms:ReEncryptTo"],
            [key.key_arn],
            {"StringEquals": {"kms:ViaService": f"ec2.{stack.region}.amazonaws.com"}},
        ),
    ]


def _tags(owner: str, tags: dict[str, str]) -> dict[str, object]:
    return {"StringEquals": {f"aws:{owner}Tag/{key}": value for key, value in tags.items()}}


def _allow(
    sid: str, actions: list[str], resources: list[str], conditions: dict[str, object] | None = None
) -> iam.PolicyStatement:
    return iam.PolicyStatement(sid=sid, actions=actions, resources=resources, conditions=conditions)
