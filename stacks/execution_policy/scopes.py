"""The scope of each permission: resource names, role permissions boundaries, and regions.

Stack names start with the deployment's name, and generated resource names start with the stack's name, so names
identify a deployment's resources. Permissions for resources without such names, such as most EC2 resources, are limited
to the deployments' regions.

Source (2026-11): resource types and condition keys on each service's page in
https://docs.aws.amazon.com/service-authorization/latest/reference/reference_policies_actions-resources-contextkeys.html
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from stacks.functions.run_controller.fleet_back_ends import BACK_ENDS, SPOT_ROLE

Condition = Mapping[str, Mapping[str, "str | list[str]"]]
Limit = Literal["boundary", "passed to", "linked", "region", "none"]
NAME, QUALIFIER = "{name}", "{qualifier}"
PASSED_TO = (
    *("codebuild.amazonaws.com", "codepipeline.amazonaws.com", "dlm.amazonaws.com", "ec2.amazonaws.com"),
    *("lambda.amazonaws.com", "spotfleet.amazonaws.com", "states.amazonaws.com", "vpc-flow-logs.amazonaws.com"),
)
FILE_SYSTEM_LINKS = "s3.data-source.lustre.fsx.amazonaws.com"
"""The service whose service-linked roles read a file system's bucket. FSx creates one for each association."""
LINKED = (
    *(each.linked_role.service for each in BACK_ENDS.values()),
    *(SPOT_ROLE.service, "fsx.amazonaws.com", FILE_SYSTEM_LINKS),
)


@dataclass(frozen=True)
class Scope:
    """Actions that share resources and a condition. `{name}` stands for each deployment's name.

    `{qualifier}` stands for the bootstrap's qualifier.
    """

    sid: str
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    limit: Limit = "none"

    def holds(self, action: str) -> bool:
        """Return True if an action belongs to this scope."""
        return any(fnmatchcase(action, pattern) for pattern in self.actions)


SCOPES: tuple[Scope, ...] = (
    Scope(
        "RolesWithBoundary",
        (
            *("iam:CreateRole", "iam:PutRolePermissionsBoundary", "iam:PutRolePolicy", "iam:DeleteRolePolicy"),
            *("iam:AttachRolePolicy", "iam:DetachRolePolicy"),
        ),
        ("iam::*:role/{name}-*",),
        "boundary",
    ),
    Scope("PassRole", ("iam:PassRole",), ("iam::*:role/{name}-*",), "passed to"),
    Scope("ServiceLinkedRoles", ("iam:CreateServiceLinkedRole",), ("iam::*:role/aws-service-role/*",), "linked"),
    Scope(
        "RolesAndProfiles",
        ("iam:*Role", "iam:*RoleDescription", "iam:*Profile", "iam:*RolePolic*", "iam:UpdateAssumeRolePolicy"),
        ("iam::*:role/{name}-*", "iam::*:instance-profile/{name}-*", "iam::*:role/aws-service-role/*"),
    ),
    # An interface endpoint with private DNS names associates the VPC with AWS's hosted zone. Route 53 is global, so a
    # limit to the deployments' regions would deny the call.
    Scope("PrivateDns", ("route53:AssociateVPCWithHostedZone",), ("route53:::hostedzone/*",)),
    Scope("Providers", ("iam:*OpenIDConnect*",), ("iam::*:oidc-provider/token.actions.githubusercontent.com",)),
    Scope("Boundaries", ("iam:*Polic*",), ("iam::*:policy/trainstack-{name}-*",)),
    Scope("FunctionCode", ("s3:GetObject",), ("s3:::cdk-{qualifier}-assets-*/*",)),
    Scope("Buckets", ("s3:*",), ("s3:::{name}-*",)),
    # The ARN of an event source mapping contains only a generated id, and its create call has no resource.
    Scope("EventSources", ("lambda:*EventSourceMapping*",), ("*",), "region"),
    Scope(
        "Functions",
        ("lambda:*",),
        (
            *("lambda:*:*:function:{name}-*", "lambda:*:*:function:trainstack-{name}-*"),
            "lambda:*:*:event-source-mapping:*",
        ),
    ),
    Scope("Repositories", ("ecr:*",), ("ecr:*:*:repository/{name}-*",)),
    Scope("Queues", ("sqs:*",), ("sqs:*:*:{name}-*",)),
    Scope("Lists", ("logs:Describe*", "cloudwatch:DescribeAlarms", "autoscaling:Describe*"), ("*",), "region"),
    Scope(
        "LogGroups",
        ("logs:*",),
        (
            *("logs:*:*:log-group:/trainstack/{name}*", "logs:*:*:log-group:/aws/lambda/trainstack-{name}-*"),
            "logs:*:*:log-group:{name}-*",
        ),
    ),
    Scope("PublicParameters", ("ssm:GetParameters",), ("ssm:*:*:parameter/*",), "region"),
    Scope("Parameters", ("ssm:*",), ("ssm:*:*:parameter/trainstack/{name}/*",)),
    # These calls do not support resource-level permissions, so a statement with a topic's ARN would not allow them.
    Scope("Subscriptions", ("sns:Unsubscribe", "sns:*SubscriptionAttributes"), ("*",), "region"),
    Scope("Topics", ("sns:*",), ("sns:*:*:{name}-*",)),
    Scope("StateMachines", ("states:*",), ("states:*:*:stateMachine:trainstack-{name}",)),
    Scope("Rules", ("events:*",), ("events:*:*:rule/{name}-*",)),
    Scope(
        "AlarmsAndDashboards",
        ("cloudwatch:*",),
        ("cloudwatch:*:*:alarm:{name}-*", "cloudwatch::*:dashboard/trainstack-{name}-*"),
    ),
    Scope(
        "Groups",
        ("autoscaling:*",),
        tuple(
            f"autoscaling:*:*:autoScalingGroup:*:autoScalingGroupName/trainstack-{{name}}{end}"
            for end in ("", ".*", "-*")  # one group, one for each zone, and those of other slots
        ),
    ),
    Scope("Pipelines", ("codepipeline:*",), ("codepipeline:*:*:{name}-*",)),
    # CodeBuild project names are generated only from the logical id, without the stack's name.
    Scope("Builds", ("codebuild:*",), ("codebuild:*:*:project/Pipeline*",)),
    Scope("Budgets", ("budgets:*",), ("budgets::*:budget/*",)),
    Scope("Regional", ("*",), ("*",), "region"),
)
"""All scopes. The first scope that matches an action applies."""

ADDITIONAL_SCOPES: tuple[Scope, ...] = (
    # A data repository association of a file system creates a role and its policy. Without these permissions, FSx edits
    # the bucket's policy instead. Source (2026-11): https://docs.aws.amazon.com/fsx/latest/LustreGuide/setting-up.html
    Scope(
        "FileSystemRoles",
        ("iam:AttachRolePolicy", "iam:PutRolePolicy"),
        (f"iam::*:role/aws-service-role/{FILE_SYSTEM_LINKS}/*",),
    ),
)
"""Scopes that apply in addition to the first scope that matches an action."""


def condition(limit: Limit, *, regions: Sequence[str], boundaries: Sequence[str]) -> Condition | None:
    """Return a statement's condition, or None if it does not have one."""
    if limit == "boundary":
        return {"ArnLike": {"iam:PermissionsBoundary": list(boundaries)}}
    if limit == "passed to":
        return {"StringEqualsIfExists": {"iam:PassedToService": list(PASSED_TO)}}
    if limit == "linked":
        return {"StringEquals": {"iam:AWSServiceName": list(LINKED)}}
    if limit == "region":
        return {"StringEquals": {"aws:RequestedRegion": list(regions)}}
    return None
