"""The ceiling over every role of the delivery: builds, artifacts, and the CDK's own roles; no IAM, no data.

Apart from that of a deployment: what deploys must take on roles, which nothing that trains may.
"""

from __future__ import annotations

from aws_cdk import Stack
from aws_cdk import aws_iam as iam
from constructs import Construct

from stacks.constructs.accepted_findings import accept
from stacks.constructs.permissions_boundary import ESCALATION

TAKES_ON = "sts:AssumeRole"


class DeliveryBoundary(Construct):
    """A managed policy over the roles of its stack, those that the library makes too."""

    def __init__(self, scope: Construct, id_: str, *, deployment: str) -> None:
        super().__init__(scope, id_)
        stack = Stack.of(self)
        policy = iam.ManagedPolicy(
            self,
            "Default",
            managed_policy_name=f"trainstack-{deployment}-{stack.region}-delivery-boundary",
            description="Ceiling over the roles that deliver a Trainstack deployment",
            statements=self._statements(stack),
        )
        accept(policy, "AwsSolutions-IAM5", "A boundary grants nothing: it caps what the roles' own policies name")
        accept(policy, "CKV_AWS_111", "A boundary grants nothing: it caps what the roles' own policies name")
        iam.PermissionsBoundary.of(stack).apply(policy)

    def _statements(self, stack: Stack) -> list[iam.PolicyStatement]:
        here = f"{stack.region}:{stack.account}"
        arn = f"arn:{stack.partition}:"
        allowed: list[tuple[str, list[str], list[str]]] = [
            (
                "Artifacts",
                ["s3:Abort*", "s3:DeleteObject*", "s3:GetBucket*", "s3:GetObject*", "s3:List*", "s3:PutObject*"],
                # The bucket's name is CloudFormation's to make.
                [f"{arn}s3:::*"],
            ),
            (
                "Keys",
                ["kms:Decrypt", "kms:DescribeKey", "kms:Encrypt", "kms:GenerateDataKey*", "kms:ReEncrypt*"],
                [f"{arn}kms:{here}:key/*"],
            ),
            (
                "Builds",
                [
                    *("codebuild:BatchGetBuilds", "codebuild:StartBuild", "codebuild:StopBuild"),
                    *("codebuild:BatchPutCodeCoverages", "codebuild:BatchPutTestCases"),
                    *("codebuild:CreateReport", "codebuild:CreateReportGroup", "codebuild:UpdateReport"),
                ],
                [f"{arn}codebuild:{here}:*"],
            ),
            (
                "Logs",
                ["logs:CreateLogGroup", "logs:CreateLogStream", "logs:PutLogEvents"],
                [f"{arn}logs:{here}:log-group:*"],
            ),
            (
                "Source",
                ["codeconnections:UseConnection", "codestar-connections:UseConnection"],
                [f"{arn}codeconnections:{here}:*", f"{arn}codestar-connections:{here}:*"],
            ),
            # In any account: a stage may be in another one, whose bootstrap roles say whom they trust.
            ("BootstrapRoles", [TAKES_ON], [f"{arn}iam::*:role/cdk-*"]),
            ("SelfMutation", ["cloudformation:DescribeStacks"], [f"{arn}cloudformation:{here}:stack/*"]),
        ]
        denied = [action for action in ESCALATION if action != TAKES_ON]
        return [
            iam.PolicyStatement(sid=sid, actions=actions, resources=resources) for sid, actions, resources in allowed
        ] + [iam.PolicyStatement(sid="NoEscalation", effect=iam.Effect.DENY, actions=denied, resources=["*"])]
