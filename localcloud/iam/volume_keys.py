"""Decides whether a service-linked role may encrypt volumes with a customer-managed key.

Service-linked roles have no permissions for such keys, so the key's policy must grant them.
Source: https://docs.aws.amazon.com/autoscaling/ec2/userguide/key-policy-requirements-EBS-encryption.html (2026-11).
"""

from __future__ import annotations

from localcloud.api import Principal
from localcloud.iam.identity import ACCOUNT
from localcloud.iam.policy import Access, verdict
from localcloud.iam.stored import key_arn, resource_policies

ACTIONS = ("kms:CreateGrant", "kms:Decrypt", "kms:DescribeKey", "kms:GenerateDataKeyWithoutPlaintext")
"""Source: https://docs.aws.amazon.com/ebs/latest/userguide/ebs-encryption-requirements.html (2026-11)."""


def may_encrypt(region: str, role: str, key: str) -> bool:
    """Return True if EC2 can use a key for the volumes of an instance that a service-linked role launches.

    Args:
        role: The role's path below aws-service-role/, and its name.
        key: ID, ARN or alias of the key. AWS managed keys require no permission.
    """
    if "alias/aws/" in key:
        return True
    arn = f"arn:aws:iam::{ACCOUNT}:role/aws-service-role/{role}"
    principal = Principal(arn, ACCOUNT, "role", role_arn=arn)
    context = {
        "aws:principalarn": [arn],
        "aws:principalaccount": [ACCOUNT],
        "kms:calleraccount": [ACCOUNT],
        "kms:grantisforawsresource": ["true"],
        "kms:viaservice": [f"ec2.{region}.amazonaws.com"],
    }
    accesses = [Access(action, key_arn(region, key), context) for action in ACTIONS]
    return all(verdict(resource_policies(one), one, context, principal) == "allow" for one in accesses)
