"""What the roles of a run hold, which of it a whole run needed, and why it holds what such a run cannot need."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

Right = tuple[str, str, str]
"""Role ("node" or "controller"), Sid of a statement, action."""

ROLES = {"node": "NodeRole", "controller": "RunControllerRole"}
"""What the logical id of each role begins with."""

NO_SHELL = "Session Manager's agent of a real image makes these calls; an emulated machine has no such agent"
UNEXERCISED: dict[Right, str] = {
    **{
        ("node", "SessionManager", f"ssmmessages:{verb}{kind}Channel"): NO_SHELL
        for verb in ("Create", "Open")
        for kind in ("Control", "Data")
    },
    ("node", "SessionManager", "ssm:UpdateInstanceInformation"): NO_SHELL,
    ("node", "KeepRuns", "s3:AbortMultipartUpload"): (
        "an upload that fails in mid-part is abandoned (tests/training/complaints/test_storing.py); none fails here"
    ),
    ("node", "ReportFailures", "s3:PutObject"): (
        "nothing fails to boot or to supervise in this run; tests/bootstrap/failures lets both fail, and report"
    ),
    ("controller", "ReadFailures", "s3:GetObject"): (
        "no machine of this run fails to boot; tests/stacks/run_controller/test_handler.py lets some"
    ),
    ("node", "ListDataset", "s3:ListBucket"): (
        "a run that prepares its data lists its sources (tests/bootstrap/test_prepared.py); and where it may list, S3 "
        "answers 404, not 403, for an index that is not there: a wrong name is told from a missing right"
    ),
}
"""The rights that a run on the embedded cloud does not need, and who needs them."""

FLEET = "a demo with capacity.backend {} needs it; docs/verification.md says that one ran without a denied call"
COPY = "a demo stays in one zone; tests/localcloud/compute/test_volume_copies.py makes this call with a node's rights"
COPY_KEY = "EC2 asks KMS for a copy's key in the name of who makes it; the embedded cloud keeps no block to encrypt"
VOLUME = "emulated machines have no block devices; bootstrap/steps/volumes.py makes this call on a real one"
BEYOND_THE_DEMO: dict[Right, str] = {
    ("controller", "SeeFleet", "ec2:DescribeFleets"): FLEET.format("ec2_fleet"),
    ("controller", "SeeFleet", "ec2:DescribeFleetInstances"): FLEET.format("ec2_fleet"),
    ("controller", "SizeFleet", "ec2:ModifyFleet"): FLEET.format("ec2_fleet"),
    ("controller", "SeeFleet", "ec2:DescribeSpotFleetRequests"): FLEET.format("spot_fleet"),
    ("controller", "SeeFleet", "ec2:DescribeSpotFleetInstances"): FLEET.format("spot_fleet"),
    ("controller", "SizeFleet", "ec2:ModifySpotFleetRequest"): FLEET.format("spot_fleet"),
    ("node", "FindVolumes", "ec2:DescribeVolumes"): VOLUME,
    ("node", "AttachVolumes", "ec2:AttachVolume"): VOLUME,
    ("node", "AttachToNodes", "ec2:AttachVolume"): f"EC2 judges both ends of an attachment: {VOLUME}",
    ("node", "UseKeyOfVolumes", "kms:Decrypt"): "EC2 decrypts an attached volume's key in the name of who attaches",
    ("node", "UseKeyOfVolumes", "kms:DescribeKey"): "EC2 looks up an attached volume's key in the name of who attaches",
    ("node", "GrantKeyToVolumes", "kms:CreateGrant"): "EC2 keeps the key for as long as the volume is attached",
    ("node", "FindSnapshots", "ec2:DescribeSnapshots"): COPY,
    ("node", "ReadSnapshots", "ec2:CreateVolume"): COPY,
    ("node", "MakeCopies", "ec2:CreateVolume"): COPY,
    ("node", "UseCopies", "ec2:AttachVolume"): COPY,
    ("node", "UseCopies", "ec2:CreateSnapshot"): COPY,
    ("node", "SnapshotVolume", "ec2:CreateSnapshot"): COPY,
    ("node", "TakeSnapshots", "ec2:CreateSnapshot"): COPY,
    ("node", "TagWhatIsMade", "ec2:CreateTags"): COPY,
    ("node", "RemoveOwnSnapshots", "ec2:DeleteSnapshot"): COPY,
    ("node", "LetCopyGoWithNode", "ec2:ModifyInstanceAttribute"): COPY,
    ("node", "UseCopies", "ec2:ModifyInstanceAttribute"): (
        "EC2 may judge the volume of the attribute too (its list of resources for this call has it as optional)"
    ),
    **{
        ("node", "UseKeyOfCopies", f"kms:{action}"): COPY_KEY
        for action in ("GenerateDataKeyWithoutPlaintext", "ReEncryptFrom", "ReEncryptTo")
    },
}
"""The rights that other deployments in config/ add to the demo's, and who needs them."""


def held(cloud: Any, stack: str) -> set[Right]:
    """Return every action of every statement of the roles, as deployed; a statement without a Sid is a failure.

    Args:
        cloud: The embedded cloud (`client(service)`).
        stack: Name of the stack that has the roles.
    """
    pages = cloud.client("cloudformation").get_paginator("list_stack_resources").paginate(StackName=stack)
    resources = [one for page in pages for one in page["StackResourceSummaries"]]
    found: set[Right] = set()
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


def needed(cloud: Any) -> set[Right]:
    """Return the rights without which some access since the cloud came up would have been refused."""
    endpoint = json.loads((cloud.state / "cloud.json").read_text())["endpoint_url"]
    with urllib.request.urlopen(f"{endpoint}/_localcloud/core/usage", timeout=30) as answer:
        entries = json.loads(answer.read())["needed"]
    return {
        (role, one["statement"], one["action"])
        for one in entries
        for role, logical_id in ROLES.items()
        if f"-{logical_id}" in one["principal"]
    }
