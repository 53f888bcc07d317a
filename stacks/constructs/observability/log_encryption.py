"""Encrypts all log groups with the deployment's key, including the log groups that the CDK creates."""

from __future__ import annotations

from collections.abc import Iterable

import jsii
from aws_cdk import Aspects, IAspect, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from constructs import IConstruct


@jsii.implements(IAspect)
class LogEncryption:
    """Encrypts log groups with a key.

    The key policy allows CloudWatch Logs to use the key only for log groups in this account and region.

    Source (2026-11): https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/encrypt-log-data-kms.html
    """

    def __init__(self, key: kms.Key) -> None:
        stack = Stack.of(key)
        self._key = key
        key.add_to_resource_policy(
            iam.PolicyStatement(
                sid="LogsEncrypt",
                principals=[iam.ServicePrincipal(f"logs.{stack.region}.amazonaws.com")],
                actions=["kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:DescribeKey"],
                resources=["*"],  # in a key policy: this key
                conditions={
                    "ArnLike": {
                        "kms:EncryptionContext:aws:logs:arn": (
                            f"arn:{stack.partition}:logs:{stack.region}:{stack.account}:log-group:*"
                        )
                    }
                },
            )
        )

    def apply(self, stacks: Iterable[Stack]) -> None:
        """Encrypt the log groups in these stacks."""
        for stack in stacks:
            Aspects.of(stack).add(self)

    def visit(self, node: IConstruct) -> None:
        """Encrypt a log group that does not have a key."""
        if isinstance(node, logs.CfnLogGroup) and node.kms_key_id is None:
            node.kms_key_id = self._key.key_arn
