"""Permissions that the resource types in the project's stacks need, and the handlers that need them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from stacks.changes.updates.schemas import schema
from stacks.execution_policy.trimmed import TRIMMED
from stacks.functions.run_controller.fleet_back_ends import BACK_ENDS

TYPES = (
    *(each.resource_type for each in BACK_ENDS.values()),
    *("AWS::Budgets::Budget", "AWS::CloudWatch::Alarm"),
    *("AWS::CloudWatch::Dashboard", "AWS::CodeBuild::Project", "AWS::CodePipeline::Pipeline"),
    *("AWS::DLM::LifecyclePolicy", "AWS::EC2::CapacityReservation", "AWS::ECR::Repository"),
    *("AWS::EC2::EIP", "AWS::EC2::FlowLog", "AWS::EC2::InternetGateway", "AWS::EC2::LaunchTemplate"),
    *("AWS::EC2::NatGateway", "AWS::EC2::PlacementGroup", "AWS::EC2::Route", "AWS::EC2::RouteTable"),
    *("AWS::EC2::SecurityGroup", "AWS::EC2::SecurityGroupEgress", "AWS::EC2::SecurityGroupIngress"),
    *("AWS::EC2::Subnet", "AWS::EC2::SubnetRouteTableAssociation"),
    *("AWS::EC2::VPC", "AWS::EC2::VPCEndpoint", "AWS::EC2::VPCGatewayAttachment", "AWS::EC2::Volume"),
    *("AWS::Events::Rule", "AWS::FSx::DataRepositoryAssociation", "AWS::FSx::FileSystem"),
    *("AWS::IAM::InstanceProfile", "AWS::IAM::ManagedPolicy", "AWS::IAM::OIDCProvider"),
    *("AWS::IAM::Policy", "AWS::IAM::Role", "AWS::IAM::ServiceLinkedRole", "AWS::KMS::Alias", "AWS::KMS::Key"),
    *("AWS::Lambda::EventSourceMapping", "AWS::Lambda::Function", "AWS::Lambda::Permission", "AWS::Logs::LogGroup"),
    *("AWS::Logs::MetricFilter", "AWS::S3::Bucket"),
    *("AWS::S3::BucketPolicy", "AWS::SNS::Subscription", "AWS::SNS::Topic", "AWS::SNS::TopicPolicy"),
    *("AWS::SQS::Queue", "AWS::SQS::QueuePolicy", "AWS::SSM::Parameter", "AWS::StepFunctions::StateMachine"),
    "Custom::FastSnapshotRestore",
)
"""Every resource type that a deployment file can produce. A test compares this list with all example templates."""

WITHOUT_HANDLERS: Mapping[str, tuple[str, ...]] = {
    # Types that predate the registry. Their schemas do not list permissions. Sources (2026-11): the actions in
    # https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonfsx.html and
    # https://docs.aws.amazon.com/service-authorization/latest/reference/list_awscodebuild.html
    "AWS::FSx::FileSystem": (
        *("fsx:CreateFileSystem", "fsx:DeleteFileSystem", "fsx:DescribeFileSystems", "fsx:ListTagsForResource"),
        *("fsx:TagResource", "fsx:UntagResource", "fsx:UpdateFileSystem"),
        *("iam:CreateServiceLinkedRole", "iam:GetRole", "kms:CreateGrant", "kms:DescribeKey"),
        *("ec2:CreateNetworkInterface", "ec2:DescribeNetworkInterfaces", "ec2:DescribeSecurityGroups"),
        *("ec2:DescribeSubnets", "ec2:DescribeVpcs", "s3:GetBucketLocation", "s3:ListBucket"),
    ),
    "AWS::CodeBuild::Project": (
        *("codebuild:BatchGetProjects", "codebuild:CreateProject", "codebuild:DeleteProject"),
        *("codebuild:UpdateProject", "iam:PassRole", "kms:DescribeKey"),
    ),
    # The permission's service prefix must match the connection's ARN. The schema lists only the old prefix.
    "AWS::CodePipeline::Pipeline": ("codeconnections:PassConnection",),
    "Custom::FastSnapshotRestore": ("lambda:InvokeFunction",),
}

DEPENDENT: Mapping[str, tuple[str, ...]] = {
    # Actions that a service authorizes as the caller, and that the schemas do not list. Sources (2026-11): the
    # dependent actions in https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2.html and
    # list_amazonfsx.html, and https://docs.aws.amazon.com/fsx/latest/LustreGuide/setting-up.html
    "AWS::EC2::VPCEndpoint": ("route53:AssociateVPCWithHostedZone",),
    "AWS::FSx::DataRepositoryAssociation": ("iam:AttachRolePolicy", "iam:PutRolePolicy"),
    "AWS::FSx::FileSystem": ("ec2:GetSecurityGroupsForVpc",),
}

OF_CLOUDFORMATION: Mapping[str, str] = {
    "ssm:GetParameters": "template parameter values from Parameter Store",
    "lambda:GetFunctionConfiguration": "function state; the embedded cloud calls this, whereas AWS calls GetFunction",
    "s3:GetObject": "function code and large templates in the bootstrap bucket",
    "kms:CreateGrant": "volumes and file systems encrypted with the deployment's key",
}
"""Actions that CloudFormation calls itself, and their purposes."""


def needed(types: Iterable[str] = TYPES) -> dict[str, set[str]]:
    """Return each permission with the handlers that need it (such as `Type.create`), except trimmed permissions."""
    found: dict[str, set[str]] = {action: {"CloudFormation"} for action in OF_CLOUDFORMATION}
    for name in sorted(types):
        for action in (*WITHOUT_HANDLERS.get(name, ()), *DEPENDENT.get(name, ())):
            found.setdefault(action, set()).add(f"{name}.service")
        for handler, description in schema(name).get("handlers", {}).items():
            if handler == "list":
                continue  # imports and resource explorers use this handler, but deploys do not
            for action in description.get("permissions", []):
                found.setdefault(action, set()).add(f"{name}.{handler}")
    return {action: handlers for action, handlers in sorted(found.items()) if trim_reason(action) is None}


def trim_reason(action: str) -> str | None:
    """Return the reason for omitting a permission, or None if the policy contains it."""
    return next((reason for pattern, reason in TRIMMED if fnmatchcase(action, pattern)), None)
