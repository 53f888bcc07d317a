"""Which permissions the types of the project's stacks need, and which handlers say so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from stacks.changes.schemas import schema
from stacks.execution_policy.trimmed import TRIMMED

TYPES = (
    *("AWS::AutoScaling::AutoScalingGroup", "AWS::Budgets::Budget", "AWS::CloudWatch::Alarm"),
    *("AWS::CloudWatch::Dashboard", "AWS::CodeBuild::Project", "AWS::CodePipeline::Pipeline"),
    *("AWS::DLM::LifecyclePolicy", "AWS::EC2::CapacityReservation", "AWS::EC2::EC2Fleet"),
    *("AWS::EC2::EIP", "AWS::EC2::FlowLog", "AWS::EC2::InternetGateway", "AWS::EC2::LaunchTemplate"),
    *("AWS::EC2::NatGateway", "AWS::EC2::PlacementGroup", "AWS::EC2::Route", "AWS::EC2::RouteTable"),
    *("AWS::EC2::SecurityGroup", "AWS::EC2::SecurityGroupEgress", "AWS::EC2::SecurityGroupIngress"),
    *("AWS::EC2::SpotFleet", "AWS::EC2::Subnet", "AWS::EC2::SubnetRouteTableAssociation"),
    *("AWS::EC2::VPC", "AWS::EC2::VPCEndpoint", "AWS::EC2::VPCGatewayAttachment", "AWS::EC2::Volume"),
    *("AWS::Events::Rule", "AWS::FSx::DataRepositoryAssociation", "AWS::FSx::FileSystem"),
    *("AWS::IAM::InstanceProfile", "AWS::IAM::ManagedPolicy", "AWS::IAM::OIDCProvider"),
    *("AWS::IAM::Policy", "AWS::IAM::Role", "AWS::IAM::ServiceLinkedRole", "AWS::KMS::Alias", "AWS::KMS::Key"),
    *("AWS::Lambda::Function", "AWS::Lambda::Permission", "AWS::Logs::LogGroup"),
    *("AWS::Logs::MetricFilter", "AWS::ResourceGroups::Group", "AWS::S3::Bucket"),
    *("AWS::S3::BucketPolicy", "AWS::SNS::Subscription", "AWS::SNS::Topic", "AWS::SNS::TopicPolicy"),
    *("AWS::SSM::Parameter", "Custom::FastSnapshotRestore"),
)
"""Every type of resource that a deployment file can lead to; a test holds the templates of all examples to it."""

WITHOUT_HANDLERS: Mapping[str, tuple[str, ...]] = {
    # Types of before the registry, whose schemas name no permissions. Sources (2026-11): the actions of
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
    # The connection's permission is asked for under the name that its ARN has; the schema knows the former one only.
    "AWS::CodePipeline::Pipeline": ("codeconnections:PassConnection",),
    "Custom::FastSnapshotRestore": ("lambda:InvokeFunction",),
}

OF_THE_ENGINE: Mapping[str, str] = {
    "ssm:GetParameters": "values of parameters that a template takes from Parameter Store",
    "lambda:GetFunctionConfiguration": "whether a function is ready; the embedded cloud asks so, AWS by GetFunction",
    "s3:GetObject": "code of functions, and larger templates, in the bucket of the bootstrap",
    "kms:CreateGrant": "volumes and file systems encrypted with the deployment's key",
}
"""What CloudFormation itself asks for, by action."""


def needed(types: Iterable[str] = TYPES) -> dict[str, set[str]]:
    """Return each permission with the handlers that need it, as `Type.create`; trimmed ones left out."""
    found: dict[str, set[str]] = {action: {"CloudFormation"} for action in OF_THE_ENGINE}
    for name in sorted(types):
        for action in WITHOUT_HANDLERS.get(name, ()):
            found.setdefault(action, set()).add(f"{name}.service")
        for handler, description in schema(name).get("handlers", {}).items():
            if handler == "list":
                continue  # for imports and resource explorers, not for deploys
            for action in description.get("permissions", []):
                found.setdefault(action, set()).add(f"{name}.{handler}")
    return {action: handlers for action, handlers in sorted(found.items()) if trimmed_because(action) is None}


def trimmed_because(action: str) -> str | None:
    """Return why a permission is left out; None when it is not."""
    return next((reason for pattern, reason in TRIMMED if fnmatchcase(action, pattern)), None)
