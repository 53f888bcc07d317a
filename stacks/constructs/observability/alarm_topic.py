"""The SNS topic for alarms and notifications, with its publishing services and subscribers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from aws_cdk import RemovalPolicy, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sns as sns
from constructs import Construct

Publisher = Literal["CloudWatch", "Budgets", "Events"]


class AlarmTopic(Construct):
    """An encrypted topic that accepts only TLS connections.

    The topic has a separate key. The publishing services need the topic's key but must not have access to the data key.
    The key policy of the AWS managed key for SNS cannot be changed to allow them. Source (2026-11):
    https://docs.aws.amazon.com/sns/latest/dg/sns-key-management.html and
    https://docs.aws.amazon.com/cost-management/latest/userguide/budgets-sns-policy.html
    """

    def __init__(
        self, scope: Construct, id_: str, *, deployment: str, emails: Sequence[str], publishers: Sequence[Publisher]
    ) -> None:
        super().__init__(scope, id_)
        stack = Stack.of(self)
        services: dict[Publisher, tuple[str, str | None]] = {
            "CloudWatch": (
                "cloudwatch.amazonaws.com",
                f"arn:{stack.partition}:cloudwatch:{stack.region}:{stack.account}:alarm:*",
            ),
            "Budgets": ("budgets.amazonaws.com", f"arn:{stack.partition}:budgets::{stack.account}:*"),
            # For EventBridge messages, KMS does not receive the source, so a condition on the source would reject every
            # event. Source (2026-11): https://docs.aws.amazon.com/sns/latest/dg/sns-key-management.html
            "Events": ("events.amazonaws.com", None),
        }
        key = kms.Key(
            self,
            "Key",
            description=f"Trainstack {deployment}: alarms and notifications",
            enable_key_rotation=True,
            # The key only encrypts messages in transit, not stored data.
            removal_policy=RemovalPolicy.DESTROY,
        )
        self.topic = sns.Topic(
            self, "Default", master_key=key, enforce_ssl=True, display_name=f"Trainstack {deployment}"
        )
        for name in publishers:
            service, source = services[name]
            conditions = None
            if source is not None:
                account = {"aws:SourceAccount": stack.account}
                conditions = {"StringEquals": account, "ArnLike": {"aws:SourceArn": source}}
            key.add_to_resource_policy(
                iam.PolicyStatement(
                    sid=f"{name}Encrypts",
                    principals=[iam.ServicePrincipal(service)],
                    actions=["kms:Decrypt", "kms:GenerateDataKey"],
                    resources=["*"],  # in a key policy: this key
                    conditions=conditions,
                )
            )
            self.topic.add_to_resource_policy(
                iam.PolicyStatement(
                    sid=f"{name}Publishes",
                    principals=[iam.ServicePrincipal(service)],
                    actions=["sns:Publish"],
                    resources=[self.topic.topic_arn],
                    conditions=conditions,
                )
            )
        for address in emails:
            sns.CfnSubscription(
                self,
                # Ids are derived from addresses. With numbered ids, removing one subscriber would renumber the others,
                # who would then have to confirm again.
                f"Email {address}",
                topic_arn=self.topic.topic_arn,
                protocol="email",
                endpoint=address,
            )
