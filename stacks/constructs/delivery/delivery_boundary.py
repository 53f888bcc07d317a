"""The permissions boundary for the delivery roles.

It covers builds, artifacts and the CDK's bootstrap roles, but neither IAM nor data. It is separate from a deployment's
boundary because delivery must be able to assume roles and training must not.
"""

from __future__ import annotations

from aws_cdk import Stack
from aws_cdk import aws_iam as iam
from constructs import Construct

from stacks.constructs.permissions_boundary import ESCALATION
from stacks.constructs.suppressions import suppress

ASSUME_ROLE = "sts:AssumeRole"


class DeliveryBoundary(Construct):
    """A managed policy that bounds all roles in its stack, including the roles that the CDK creates."""

    def __init__(self, scope: Construct, id_: str, *, deployment: str) -> None:
        super().__init__(scope, id_)
        stack = Stack.of(self)
        policy = iam.ManagedPolicy(
            self,
            "Default",
            managed_policy_name=f"trainstack-{deployment}-{stack.region}-delivery-boundary",
            description="Permissions boundary of the roles that deliver a Trainstack deployment",
            statements=self._statements(stack),
        )
        for rule in ("AwsSolutions-IAM5", "CKV_AWS_111"):
            suppress(policy, rule, "A boundary does not grant permissions: it limits what role policies grant")
        iam.PermissionsBoundary.of(stack).apply(policy)

    def _statements(self, stack: Stack) -> list[iam.PolicyStatement]:
        here = f"{stack.region}:{stack.account}"
        arn = f"arn:{stack.partition}:"
        allowed: list[tuple[str, list[str], list[str]]] = [
            (
                "Artifacts",
                ["s3:Abort*", "s3:DeleteObject*", "s3:GetBucket*", "s3:GetObject*", "s3:List*", "s3:PutObject*"],
                # CloudFormation chooses the bucket's name.
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
            # The roles can be in any account because a stage can deploy to another account. Bootstrap roles restrict
            # their callers themselves.
            ("BootstrapRoles", [ASSUME_ROLE], [f"{arn}iam::*:role/cdk-*"]),
        ]
        denied = [action for action in ESCALATION if action != ASSUME_ROLE]
        return [
            iam.PolicyStatement(sid=sid, actions=actions, resources=resources) for sid, actions, resources in allowed
        ] + [iam.PolicyStatement(sid="NoEscalation", effect=iam.Effect.DENY, actions=denied, resources=["*"])]
