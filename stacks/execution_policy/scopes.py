"""Where each permission holds: names that stacks of the deployments give, ceilings over roles, regions.

Stack names begin with the deployment's name, and CloudFormation begins the names that it makes with the stack's: that
tells a deployment's resources from the rest of an account. What has no name of the kind, such as most of EC2, is kept
to the deployments' regions.

Source (2026-11): resource types and condition keys of each service's page in
https://docs.aws.amazon.com/service-authorization/latest/reference/reference_policies_actions-resources-contextkeys.html
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

Condition = Mapping[str, Mapping[str, "str | list[str]"]]
Limit = Literal["boundary", "passed to", "linked", "region", "none"]
NAME = "{name}"
PASSED_TO = (
    *("codebuild.amazonaws.com", "codepipeline.amazonaws.com", "dlm.amazonaws.com", "ec2.amazonaws.com"),
    *("lambda.amazonaws.com", "spotfleet.amazonaws.com", "vpc-flow-logs.amazonaws.com"),
)
LINKED = (
    *("autoscaling.amazonaws.com", "ec2fleet.amazonaws.com", "fsx.amazonaws.com", "spot.amazonaws.com"),
    *("s3.data-source.lustre.fsx.amazonaws.com", "spotfleet.amazonaws.com"),
)


@dataclass(frozen=True)
class Scope:
    """Actions that hold for the same resources under the same limit; `{name}` is each deployment's in turn."""

    sid: str
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    limit: Limit = "none"

    def holds(self, action: str) -> bool:
        """Tell whether an action belongs here."""
        return any(fnmatchcase(action, pattern) for pattern in self.actions)


SCOPES: tuple[Scope, ...] = (
    Scope(
        "RolesUnderTheirCeiling",
        (
            *("iam:CreateRole", "iam:PutRolePermissionsBoundary", "iam:PutRolePolicy", "iam:DeleteRolePolicy"),
            *("iam:AttachRolePolicy", "iam:DetachRolePolicy"),
        ),
        ("iam::*:role/{name}-*",),
        "boundary",
    ),
    Scope("RolesPassed", ("iam:PassRole",), ("iam::*:role/{name}-*",), "passed to"),
    Scope("RolesOfServices", ("iam:CreateServiceLinkedRole",), ("iam::*:role/aws-service-role/*",), "linked"),
    Scope(
        "RolesAndProfiles",
        ("iam:*Role", "iam:*RoleDescription", "iam:*Profile", "iam:*RolePolic*", "iam:UpdateAssumeRolePolicy"),
        ("iam::*:role/{name}-*", "iam::*:instance-profile/{name}-*", "iam::*:role/aws-service-role/*"),
    ),
    Scope("Providers", ("iam:*OpenIDConnect*",), ("iam::*:oidc-provider/token.actions.githubusercontent.com",)),
    Scope("Ceilings", ("iam:*Polic*",), ("iam::*:policy/trainstack-{name}-*",)),
    Scope("CodeOfFunctions", ("s3:GetObject",), ("s3:::cdk-hnb659fds-assets-*/*",)),
    Scope("Buckets", ("s3:*",), ("s3:::{name}-*",)),
    Scope("Functions", ("lambda:*",), ("lambda:*:*:function:{name}-*", "lambda:*:*:function:trainstack-{name}-*")),
    Scope("Lists", ("logs:Describe*", "cloudwatch:DescribeAlarms", "autoscaling:Describe*"), ("*",), "region"),
    Scope(
        "LogGroups",
        ("logs:*",),
        (
            *("logs:*:*:log-group:/trainstack/{name}*", "logs:*:*:log-group:/aws/lambda/trainstack-{name}-*"),
            "logs:*:*:log-group:{name}-*",
        ),
    ),
    Scope("PublicValues", ("ssm:GetParameters",), ("ssm:*:*:parameter/*",), "region"),
    Scope("Documents", ("ssm:*",), ("ssm:*:*:parameter/trainstack/{name}/*",)),
    Scope("Topics", ("sns:*",), ("sns:*:*:{name}-*",)),
    Scope("Rules", ("events:*",), ("events:*:*:rule/{name}-*",)),
    Scope(
        "AlarmsAndDashboards",
        ("cloudwatch:*",),
        ("cloudwatch:*:*:alarm:{name}-*", "cloudwatch::*:dashboard/trainstack-{name}-*"),
    ),
    Scope("Groups", ("autoscaling:*",), ("autoscaling:*:*:autoScalingGroup:*:autoScalingGroupName/trainstack-{name}",)),
    Scope("Pipelines", ("codepipeline:*",), ("codepipeline:*:*:{name}-*",)),
    # CodeBuild makes a project's name of its logical id, without the stack's name.
    Scope("Builds", ("codebuild:*",), ("codebuild:*:*:project/Pipeline*",)),
    Scope("Budgets", ("budgets:*",), ("budgets::*:budget/*",)),
    Scope("InTheRegions", ("*",), ("*",), "region"),
)
"""First match counts."""


def condition(limit: Limit, *, regions: Sequence[str], ceilings: Sequence[str]) -> Condition | None:
    """Return the condition of a statement, None when it has none."""
    if limit == "boundary":
        return {"ArnLike": {"iam:PermissionsBoundary": list(ceilings)}}
    if limit == "passed to":
        return {"StringEqualsIfExists": {"iam:PassedToService": list(PASSED_TO)}}
    if limit == "linked":
        return {"StringEquals": {"iam:AWSServiceName": list(LINKED)}}
    if limit == "region":
        return {"StringEquals": {"aws:RequestedRegion": list(regions)}}
    return None
