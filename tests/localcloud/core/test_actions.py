"""The IAM actions and resources that API calls require."""

from __future__ import annotations

import pytest

from localcloud.api import Call, Principal
from localcloud.iam.actions import accesses

ROOT = Principal("arn:aws:iam::1:root", "1", "root")


def call(service: str, operation: str, **parameters: object) -> Call:
    return Call(service, operation, parameters, ROOT, "us-east-1", "123456789012")


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (call("s3", "HeadObject", Bucket="b", Key="k"), [("s3:GetObject", "arn:aws:s3:::b/k")]),
        (call("s3", "UploadPart", Bucket="b", Key="k"), [("s3:PutObject", "arn:aws:s3:::b/k")]),
        (call("s3", "ListObjectsV2", Bucket="b"), [("s3:ListBucket", "arn:aws:s3:::b")]),
        (call("s3", "PutBucketEncryption", Bucket="b"), [("s3:PutEncryptionConfiguration", "arn:aws:s3:::b")]),
        (
            call("s3", "CopyObject", Bucket="b", Key="k", CopySource="a/x"),
            [("s3:GetObject", "arn:aws:s3:::a/x"), ("s3:PutObject", "arn:aws:s3:::b/k")],
        ),
        (
            call("s3", "DeleteObjects", Bucket="b", Delete={"Objects": [{"Key": "1"}, {"Key": "2"}]}),
            [("s3:DeleteObject", "arn:aws:s3:::b/1"), ("s3:DeleteObject", "arn:aws:s3:::b/2")],
        ),
        (
            call("ssm", "GetParameter", Name="/trainstack/demo/run"),
            [("ssm:GetParameter", "arn:aws:ssm:us-east-1:123456789012:parameter/trainstack/demo/run")],
        ),
        (
            call("logs", "PutLogEvents", logGroupName="/g", logStreamName="i-1"),
            [("logs:PutLogEvents", "arn:aws:logs:us-east-1:123456789012:log-group:/g:log-stream:i-1")],
        ),
        (
            call("autoscaling", "SetDesiredCapacity", AutoScalingGroupName="g"),
            [
                (
                    "autoscaling:SetDesiredCapacity",
                    "arn:aws:autoscaling:us-east-1:123456789012:autoScalingGroup:*:autoScalingGroupName/g",
                )
            ],
        ),
        (
            call("ssm", "AddTagsToResource", ResourceType="Parameter", ResourceId="/trainstack/demo/run"),
            [("ssm:AddTagsToResource", "arn:aws:ssm:us-east-1:123456789012:parameter/trainstack/demo/run")],
        ),
        (
            call("logs", "TagResource", resourceArn="arn:aws:logs:us-east-1:123456789012:log-group:/g"),
            [("logs:TagResource", "arn:aws:logs:us-east-1:123456789012:log-group:/g")],
        ),
        (
            call("budgets", "CreateBudget", AccountId="1", Budget={"BudgetName": "b"}),
            [("budgets:ModifyBudget", "arn:aws:budgets::123456789012:budget/b")],
        ),
        (
            call("budgets", "DescribeBudget", AccountId="1", BudgetName="b"),
            [("budgets:ViewBudget", "arn:aws:budgets::123456789012:budget/b")],
        ),
        (call("sns", "CreateTopic", Name="t"), [("sns:CreateTopic", "arn:aws:sns:us-east-1:123456789012:t")]),
        (
            call("sns", "Unsubscribe", SubscriptionArn="arn:aws:sns:us-east-1:123456789012:t:1-2"),
            [("sns:Unsubscribe", "arn:aws:sns:us-east-1:123456789012:t")],
        ),
        (call("iam", "CreatePolicy", PolicyName="p"), [("iam:CreatePolicy", "arn:aws:iam::123456789012:policy/p")]),
        (
            call("iam", "CreateOpenIDConnectProvider", Url="https://token.example.com"),
            [("iam:CreateOpenIDConnectProvider", "arn:aws:iam::123456789012:oidc-provider/token.example.com")],
        ),
        (
            call("iam", "CreateServiceLinkedRole", AWSServiceName="spot.amazonaws.com"),
            [
                (
                    "iam:CreateServiceLinkedRole",
                    "arn:aws:iam::123456789012:role/aws-service-role/spot.amazonaws.com/*",
                )
            ],
        ),
        (call("autoscaling", "DescribeAutoScalingGroups"), [("autoscaling:DescribeAutoScalingGroups", "*")]),
        (
            call("lambda", "Invoke", FunctionName="f"),
            [("lambda:InvokeFunction", "arn:aws:lambda:us-east-1:123456789012:function:f")],
        ),
        (call("ec2", "DescribeInstances", InstanceIds=["i-1"]), [("ec2:DescribeInstances", "*")]),
        (
            call("ec2", "TerminateInstances", InstanceIds=["i-1"]),
            [("ec2:TerminateInstances", "arn:aws:ec2:us-east-1:123456789012:instance/i-1")],
        ),
        (
            call(
                "ec2",
                "ModifyFleet",
                FleetId="fleet-12345678-1234",
                TargetCapacitySpecification={"TotalTargetCapacity": 1},
            ),
            [
                (
                    "ec2:ModifyFleet",
                    "arn:aws:ec2:us-east-1:123456789012:fleet/fleet-12345678-1234",
                )
            ],
        ),
        (
            call("ec2", "CancelSpotFleetRequests", SpotFleetRequestIds=["sfr-12345678-1234"]),
            [
                (
                    "ec2:CancelSpotFleetRequests",
                    "arn:aws:ec2:us-east-1:123456789012:spot-fleet-request/sfr-12345678-1234",
                )
            ],
        ),
        (
            call("fsx", "DeleteFileSystem", FileSystemId="fs-1"),
            [("fsx:DeleteFileSystem", "arn:aws:fsx:us-east-1:123456789012:file-system/fs-1")],
        ),
        (
            call("fsx", "CreateDataRepositoryAssociation", FileSystemId="fs-1", Tags=[{"Key": "a", "Value": "b"}]),
            [
                ("fsx:CreateDataRepositoryAssociation", "arn:aws:fsx:us-east-1:123456789012:file-system/fs-1"),
                ("fsx:CreateDataRepositoryAssociation", "arn:aws:fsx:us-east-1:123456789012:association/fs-1/*"),
                ("fsx:TagResource", "arn:aws:fsx:us-east-1:123456789012:association/fs-1/*"),
            ],
        ),
        (
            call("dlm", "UpdateLifecyclePolicy", PolicyId="policy-1", ExecutionRoleArn="arn:role"),
            [
                ("dlm:UpdateLifecyclePolicy", "arn:aws:dlm:us-east-1:123456789012:policy/policy-1"),
                ("iam:PassRole", "arn:role"),
            ],
        ),
        (
            call("resource-groups", "GroupResources", Group="pool", ResourceArns=["arn:cr"]),
            [("resource-groups:GroupResources", "arn:aws:resource-groups:us-east-1:123456789012:group/pool")],
        ),
        (call("sts", "GetCallerIdentity"), []),
        (call("sts", "AssumeRole", RoleArn="arn:r"), [("sts:AssumeRole", "arn:r")]),
        (call("ecr", "DescribeRegistry"), [("ecr:DescribeRegistry", "*")]),
        (
            call("ecr", "CreateRepository", repositoryName="a", tags=[{"Key": "k", "Value": "v"}]),
            [
                ("ecr:CreateRepository", "arn:aws:ecr:us-east-1:123456789012:repository/a"),
                ("ecr:TagResource", "arn:aws:ecr:us-east-1:123456789012:repository/a"),
            ],
        ),
        (
            call("ecr", "DescribeRepositories", repositoryNames=["a"]),
            [("ecr:DescribeRepositories", "arn:aws:ecr:us-east-1:123456789012:repository/a")],
        ),
        (
            call("ecr", "UntagResource", resourceArn="arn:r", tagKeys=["k"]),
            [("ecr:UntagResource", "arn:r")],
        ),
    ],
)
def test_required_accesses(made: Call, expected: list[tuple[str, str]]) -> None:
    assert [(access.action, access.resource) for access in accesses(made)] == expected


def test_list_prefix_is_a_condition_key() -> None:
    (access,) = accesses(call("s3", "ListObjectsV2", Bucket="b", Prefix="runs/"))
    assert access.context["s3:prefix"] == ["runs/"]


def test_creating_a_function_requires_pass_role() -> None:
    needed = accesses(call("lambda", "CreateFunction", FunctionName="f", Role="arn:role"))
    assert ("iam:PassRole", "arn:role") in [(access.action, access.resource) for access in needed]


def test_spot_fleet_requires_access_for_every_override_and_pass_role():
    ways = [{"InstanceType": "g5.xlarge", "SubnetId": "subnet-1, subnet-2"}, {"InstanceType": "p5.48xlarge"}]
    config = {
        "IamFleetRole": "arn:aws:iam::123456789012:role/fleet",
        "LaunchTemplateConfigs": [{"LaunchTemplateSpecification": {"LaunchTemplateId": "lt-1"}, "Overrides": ways}],
        "TagSpecifications": [{"ResourceType": "spot-fleet-request", "Tags": [{"Key": "a", "Value": "b"}]}],
    }
    needed = accesses(call("ec2", "RequestSpotFleet", SpotFleetRequestConfig=config))
    prefix = "arn:aws:ec2:us-east-1:123456789012:"
    asked = [(one.action, one.resource.removeprefix(prefix)) for one in needed]
    assert ("ec2:RequestSpotFleet", "spot-fleet-request/*") in asked
    assert ("ec2:CreateTags", "spot-fleet-request/*") in asked
    assert {("ec2:RunInstances", "subnet/subnet-1"), ("ec2:RunInstances", "subnet/subnet-2")} <= set(asked)
    assert {tuple(one.context["ec2:instancetype"]) for one in needed if one.resource == f"{prefix}instance/*"} == {
        ("g5.xlarge",), ("p5.48xlarge",)
    }  # fmt: skip
    (passed,) = [one for one in needed if one.action == "iam:PassRole"]
    assert passed.context == {"iam:passedtoservice": ["spotfleet.amazonaws.com"]}


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("PutObject", "true"),
        ("CompleteMultipartUpload", "true"),
        ("CreateMultipartUpload", "false"),
        ("UploadPart", "false"),
    ],
)
def test_creation_of_an_object_is_a_condition_key(operation: str, expected: str) -> None:
    """Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes-enforce.html (2026-11)."""
    (access,) = accesses(call("s3", operation, Bucket="b", Key="k"))
    assert access.action == "s3:PutObject"
    assert access.context["s3:objectcreationoperation"] == [expected]


def test_header_of_a_conditional_completion_is_a_condition_key() -> None:
    (access,) = accesses(call("s3", "CompleteMultipartUpload", Bucket="b", Key="k", IfNoneMatch="*"))
    assert access.context["s3:if-none-match"] == ["*"]
