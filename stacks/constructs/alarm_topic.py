"""Where alarms and notices go: a topic that only the services named may write to, and its subscribers."""

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
    """An encrypted topic; TLS only.

    The key is one of its own: a customer's key must admit the services that publish, and those have no business with
    the key of the data. AWS's own key for SNS cannot admit them at all. Source (2026-11):
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
            # KMS does not see the source of what EventBridge publishes: a condition on it would refuse every event.
            # Source (2026-11): https://docs.aws.amazon.com/sns/latest/dg/sns-key-management.html
            "Events": ("events.amazonaws.com", None),
        }
        key = kms.Key(
            self,
            "Key",
            description=f"Trainstack {deployment}: alarms and {'budget ' if 'Budgets' in publishers else ''}notices",
            enable_key_rotation=True,
            # A key of notices: nothing that lasts is encrypted with it.
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
                    resources=["*"],  # in a key's policy: this key
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
                # By address, so that one that goes does not renumber, and thereby ask anew, the others.
                f"Email {address}",
                topic_arn=self.topic.topic_arn,
                protocol="email",
                endpoint=address,
            )
