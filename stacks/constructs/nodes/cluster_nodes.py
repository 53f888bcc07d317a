"""The role and the user data of nodes that a managed Slurm cluster launches."""

from __future__ import annotations

import re
import shlex

from aws_cdk import Stack
from aws_cdk import aws_iam as iam
from constructs import Construct

from bootstrap.documents import Lustre
from stacks.config import DeploymentConfig
from stacks.constructs.nodes.instance_role import InstanceRole
from stacks.constructs.permissions_boundary import SESSION_MANAGER
from stacks.constructs.suppressions import suppress

_MOUNT = """\
#!/bin/bash
# Mounts the shared file system before slurmd starts, and again after a reboot. Without it, the node shuts down, and
# the cluster launches another one.
set -u
mount={mount} source={source} options={options} folder={folder}
mkdir -p "$mount"
grep -qF " $mount lustre " /etc/fstab || echo "$source $mount lustre $options,_netdev 0 0" >>/etc/fstab
for pause in 5 10 20 40 60 0; do
  if mountpoint -q "$mount" || mount -t lustre -o "$options" "$source" "$mount"; then break; fi
  sleep "$pause"
done
mountpoint -q "$mount" || {{ echo "$source: cannot be mounted at $mount" >&2; shutdown -h now; exit 1; }}
test -d "$folder" || install -d -m 1777 "$folder"
"""
_BOUNDARY = "==trainstack=="


def mount_script(lustre: Lustre, folder: str) -> str:
    """Return a script that mounts the file system and creates the jobs' folder, in which all users can write."""
    return _MOUNT.format(
        mount=shlex.quote(lustre.mount),
        source=f'"{lustre.dns_name}@tcp:/{lustre.mount_name}"',  # values that CloudFormation inserts
        options=shlex.quote(lustre.options),
        folder=shlex.quote(folder),
    )


def user_data(script: str) -> str:
    """Return a script as user data that PCS can merge with its own: cloud-init's MIME multi-part format.

    Source (2026-11): https://docs.aws.amazon.com/pcs/latest/userguide/working-with_ec2-user-data.html
    """
    head = f'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="{_BOUNDARY}"\n'
    part = f'\n--{_BOUNDARY}\nContent-Type: text/x-shellscript; charset="us-ascii"\nMIME-Version: 1.0\n\n{script}'
    return f"{head}{part}\n--{_BOUNDARY}--\n"


def allow_checkpoints(role: iam.Role, config: DeploymentConfig) -> None:
    """Let jobs use the checkpoint store in S3, if `slurm.checkpoints` names one."""
    store = (config.slurm.checkpoints or "") if config.slurm is not None else ""
    for part in store.split(","):
        if not part.startswith("s3://"):
            continue
        bucket, _, prefix = part.removeprefix("s3://").rstrip("/").partition("/")
        arn = f"arn:{Stack.of(role).partition}:s3:::{bucket}"
        keys = f"{prefix}/*" if prefix else "*"
        actions = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]
        role.add_to_policy(iam.PolicyStatement(sid="UseCheckpoints", actions=actions, resources=[f"{arn}/{keys}"]))
        role.add_to_policy(iam.PolicyStatement(sid="ListCheckpoints", actions=["s3:ListBucket"], resources=[arn]))
        suppress(
            role.node.find_child("DefaultPolicy"),
            "AwsSolutions-IAM5",
            "The names of a checkpoint's objects are not known in advance; the grant covers one checkpoint store",
            applies_to=[rf"Resource::.*{re.escape(f'{bucket}/{keys}')}"],
        )


class ClusterNodeRole(InstanceRole):
    """The role and the instance profile of the cluster's nodes."""

    def __init__(self, scope: Construct, id_: str, *, config: DeploymentConfig) -> None:
        # PCS accepts only roles with this path. Source (2026-11):
        # https://docs.aws.amazon.com/pcs/latest/APIReference/API_CreateComputeNodeGroup.html
        path = "/aws-pcs/"
        super().__init__(scope, id_, path=path)
        self._allow("RegisterNodes", ["pcs:RegisterComputeNodeGroupInstance"], ["*"])
        if config.node.session_manager:
            self._allow("SessionManager", SESSION_MANAGER, ["*"])
        allow_checkpoints(self.role, config)
        self._attach_policies(config)
        reason = "Session Manager's calls and the registration of nodes do not support resource-level permissions"
        suppress(self.policy, "AwsSolutions-IAM5", reason, applies_to=[r"Resource::\*"])
        suppress(self.policy, "CKV_AWS_111", f"{reason}; other writes name their resources")
        self.profile = iam.CfnInstanceProfile(self, "Profile", roles=[self.role.role_name], path=path)
