"""The permissions of a run's roles: those that a complete run needs, and the reasons for all others."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from localcloud.state import read_cloud_file
from localcloud.tokens import TOKEN_HEADER

Permission = tuple[str, str, str]
"""Role ("node" or "controller"), Sid of a statement, action."""

ROLES = {"node": "NodeRole", "controller": "RunControllerRole"}
"""Prefix of the logical ID of each role."""

NO_SHELL = "the Session Manager agent of a real image makes these calls; emulated instances have no agent"
ABORTED = "an upload that fails midway is aborted (tests/training/complaints/test_storing.py); none fails here"
UNEXERCISED: dict[Permission, str] = {
    **{
        ("node", "SessionManager", f"ssmmessages:{verb}{kind}Channel"): NO_SHELL
        for verb in ("Create", "Open")
        for kind in ("Control", "Data")
    },
    ("node", "SessionManager", "ssm:UpdateInstanceInformation"): NO_SHELL,
    ("node", "StoreCheckpoints", "s3:AbortMultipartUpload"): ABORTED,
    ("node", "StoreResults", "s3:AbortMultipartUpload"): ABORTED,
    ("node", "ReportFailures", "s3:PutObject"): (
        "boot and supervision succeed in this run; tests/bootstrap/failures covers failures and their reports"
    ),
    ("controller", "ReadFailures", "s3:GetObject"): (
        "all instances of this run boot; tests/stacks/run_controller/test_handler.py covers boot failures"
    ),
    ("controller", "LiftOutcome", "s3:DeleteObject"): (
        "this run does not fail; tests/stacks/run_controller/test_handler.py retries a failed run"
    ),
    ("controller", "SizeFleet", "autoscaling:CompleteLifecycleAction"): (
        "the nodes complete their own hooks; tests/stacks/run_controller/test_fleets.py covers an instance that "
        "powered itself off"
    ),
    ("controller", "ListDatasets", "s3:ListBucket"): (
        "this run's dataset exists before the deploy; with this permission S3 returns 404 instead of 403 for a missing "
        "index (tests/stacks/run_controller/test_handler.py)"
    ),
    ("node", "ListDataset", "s3:ListBucket"): (
        "a run that prepares its data lists its sources (tests/bootstrap/test_prepared.py); with this permission S3 "
        "returns 404 instead of 403 for a missing index, which separates a wrong name from a missing permission"
    ),
}
"""The permissions that a run on the embedded cloud does not need, and their purpose."""

FLEET = "needed by a demo with capacity.backend {}; docs/verification.md lists one that ran without a denied call"
COPY = (
    "the demo uses one zone; tests/localcloud/compute/test_volume_copies.py makes this call with a node's permissions"
)
COPY_KEY = "EC2 calls KMS on behalf of the creator of a copy; the embedded cloud does not encrypt volumes"
VOLUME = "emulated instances have no block devices; bootstrap/boot_steps/volumes.py makes this call on EC2"
BEYOND_THE_DEMO: dict[Permission, str] = {
    ("controller", "DescribeFleet", "ec2:DescribeFleets"): FLEET.format("ec2_fleet"),
    ("controller", "DescribeFleet", "ec2:DescribeFleetInstances"): FLEET.format("ec2_fleet"),
    ("controller", "DescribeFleet", "ec2:DescribeFleetHistory"): FLEET.format("ec2_fleet"),
    ("controller", "DescribeFleet", "ec2:DescribeSpotFleetRequestHistory"): FLEET.format("spot_fleet"),
    ("controller", "PriceInstances", "ec2:DescribeInstances"): FLEET.format("ec2_fleet"),
    ("controller", "SizeFleet", "ec2:ModifyFleet"): FLEET.format("ec2_fleet"),
    ("controller", "DescribeFleet", "ec2:DescribeSpotFleetRequests"): FLEET.format("spot_fleet"),
    ("controller", "DescribeFleet", "ec2:DescribeSpotFleetInstances"): FLEET.format("spot_fleet"),
    ("controller", "SizeFleet", "ec2:ModifySpotFleetRequest"): FLEET.format("spot_fleet"),
    ("node", "FindVolumes", "ec2:DescribeVolumes"): VOLUME,
    ("node", "AttachVolumes", "ec2:AttachVolume"): VOLUME,
    ("node", "AttachToNodes", "ec2:AttachVolume"): f"EC2 authorizes both ends of an attachment: {VOLUME}",
    ("node", "UseKeyOfVolumes", "kms:Decrypt"): "EC2 decrypts a volume's key on behalf of the caller of AttachVolume",
    ("node", "UseKeyOfVolumes", "kms:DescribeKey"): "EC2 reads a volume's key on behalf of the caller of AttachVolume",
    ("node", "GrantKeyToVolumes", "kms:CreateGrant"): "EC2 holds a grant for the key while the volume is attached",
    ("node", "FindSnapshots", "ec2:DescribeSnapshots"): COPY,
    ("node", "ReadSnapshots", "ec2:CreateVolume"): COPY,
    ("node", "CreateCopies", "ec2:CreateVolume"): COPY,
    ("node", "UseCopies", "ec2:AttachVolume"): COPY,
    ("node", "UseCopies", "ec2:CreateSnapshot"): COPY,
    ("node", "SnapshotVolume", "ec2:CreateSnapshot"): COPY,
    ("node", "TakeSnapshots", "ec2:CreateSnapshot"): COPY,
    ("node", "TagOnCreate", "ec2:CreateTags"): COPY,
    ("node", "DeleteOwnSnapshots", "ec2:DeleteSnapshot"): COPY,
    ("node", "DeleteCopyOnTermination", "ec2:ModifyInstanceAttribute"): COPY,
    ("node", "UseCopies", "ec2:ModifyInstanceAttribute"): (
        "EC2 may also authorize the volume of the attribute (an optional resource of this call)"
    ),
    **{
        ("node", "UseKeyOfCopies", f"kms:{action}"): COPY_KEY
        for action in ("GenerateDataKeyWithoutPlaintext", "ReEncryptFrom", "ReEncryptTo")
    },
}
"""The permissions that other deployments in config/ add to the demo's, and their purpose."""


def granted(cloud: Any, stack: str) -> set[Permission]:
    """Return all actions of all statements of the deployed roles; every statement must have a Sid.

    Args:
        cloud: The embedded cloud (`client(service)`).
        stack: Name of the stack with the roles.
    """
    pages = cloud.client("cloudformation").get_paginator("list_stack_resources").paginate(StackName=stack)
    resources = [one for page in pages for one in page["StackResourceSummaries"]]
    found: set[Permission] = set()
    iam = cloud.client("iam")
    for role, logical_id in ROLES.items():
        (name,) = [
            one["PhysicalResourceId"]
            for one in resources
            if one["ResourceType"] == "AWS::IAM::Role" and one["LogicalResourceId"].startswith(logical_id)
        ]
        assert iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"] == []
        for policy in iam.list_role_policies(RoleName=name)["PolicyNames"]:
            for statement in iam.get_role_policy(RoleName=name, PolicyName=policy)["PolicyDocument"]["Statement"]:
                actions = statement["Action"]
                actions = [actions] if isinstance(actions, str) else actions
                found |= {(role, statement["Sid"], action) for action in actions}
    return found


def needed(cloud: Any) -> set[Permission]:
    """Return the permissions without which an access since the start of the cloud would have been denied."""
    running = read_cloud_file(cloud.state)
    assert running is not None
    headers = {TOKEN_HEADER: running.control_token}
    request = urllib.request.Request(f"{running.endpoint_url}/_localcloud/core/usage", headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        entries = json.loads(answer.read())["needed"]
    return {
        (role, one["statement"], one["action"])
        for one in entries
        for role, logical_id in ROLES.items()
        if f"-{logical_id}" in one["principal"]
    }
