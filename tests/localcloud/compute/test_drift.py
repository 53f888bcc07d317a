"""Property drift of a stack, as reported by the drift watch function."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stacks.functions.drift_watch.detection import detect

TRUST = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}],
}
READ = {"Effect": "Allow", "Action": ["s3:GetObject"], "Resource": "*"}
SSE = {"ServerSideEncryptionConfiguration": [{"ServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms"}}]}
CLOSED = {
    "BlockPublicAcls": True, "BlockPublicPolicy": True, "IgnorePublicAcls": True, "RestrictPublicBuckets": True
}  # fmt: skip
PLAIN_HTTP = {
    "Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": {"Fn::Sub": "${Bucket.Arn}/*"},
    "Condition": {"Bool": {"aws:SecureTransport": "false"}},
}  # fmt: skip


def resource(type_name: str, **properties: Any) -> dict[str, Any]:
    return {"Type": type_name, "Properties": properties}


@pytest.fixture(scope="module")
def made(cloud) -> dict[str, str]:
    https = {"IpProtocol": "tcp", "FromPort": 443, "ToPort": "443", "CidrIp": "10.0.0.0/16", "Description": "calls"}
    group = {"Fn::GetAtt": ["Group", "GroupId"]}
    template = {
        "Group": resource(
            "AWS::EC2::SecurityGroup", GroupDescription="nodes", VpcId=cloud.vpc, SecurityGroupIngress=[https],
            SecurityGroupEgress=[{"IpProtocol": "-1", "CidrIp": "0.0.0.0/0"}],
        ),
        "Gang": resource(
            "AWS::EC2::SecurityGroupIngress", GroupId=group, IpProtocol="-1", SourceSecurityGroupId=group
        ),
        "Bucket": resource(
            "AWS::S3::Bucket", PublicAccessBlockConfiguration=CLOSED, BucketEncryption=SSE,
            VersioningConfiguration={"Status": "Enabled"},
        ),
        "Policy": resource("AWS::S3::BucketPolicy", Bucket={"Ref": "Bucket"},
                           PolicyDocument={"Version": "2012-10-17", "Statement": [PLAIN_HTTP]}),
        "Role": resource(
            "AWS::IAM::Role", AssumeRolePolicyDocument=TRUST,
            ManagedPolicyArns=["arn:aws:iam::aws:policy/CloudWatchReadOnlyAccess"],
            Policies=[{"PolicyName": "read", "PolicyDocument": {"Version": "2012-10-17", "Statement": [READ]}}],
        ),
        "Inline": resource("AWS::IAM::Policy", PolicyName="more", Roles=[{"Ref": "Role"}],
                           PolicyDocument={"Version": "2012-10-17", "Statement": [READ]}),
        "Attached": resource("AWS::IAM::ManagedPolicy", Roles=[{"Ref": "Role"}],
                             PolicyDocument={"Version": "2012-10-17", "Statement": [READ]}),
        "Run": resource("AWS::SSM::Parameter", Name="/drifting/run", Type="String", Value="{}"),
        "Template": resource("AWS::EC2::LaunchTemplate", LaunchTemplateName="drifting",
                             LaunchTemplateData={"InstanceType": "c7i.large"}),
    }  # fmt: skip
    found: dict[str, str] = cloud.deploy("drifting", template)
    return found


def drifts(cloud) -> list[str]:
    found = detect(cloud.client("cloudformation"), ["drifting"], timeout_seconds=30, sleep=lambda _: None)
    return sorted(str(one) for one in found)


def test_unchanged_stack_has_no_drift(cloud, made):
    assert drifts(cloud) == []


def test_changed_properties_are_reported_by_path_until_restored(cloud, made):
    opened = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
    s3, iam, ssm = (cloud.client(name) for name in ("s3", "iam", "ssm"))
    cloud.ec2.authorize_security_group_ingress(GroupId=made["Group"], IpPermissions=[opened])
    s3.put_public_access_block(
        Bucket=made["Bucket"], PublicAccessBlockConfiguration={**CLOSED, "BlockPublicPolicy": False}
    )
    s3.delete_bucket_encryption(Bucket=made["Bucket"])
    s3.put_bucket_policy(
        Bucket=made["Bucket"],
        Policy=json.dumps(
            {
                "Version": "2012-10-17",
                "Statement": {**READ, "Principal": "*", "Resource": f"arn:aws:s3:::{made['Bucket']}/*"},
            }
        ),
    )
    widened = {"Version": "2012-10-17", "Statement": [{**READ, "Action": "s3:*"}]}
    iam.put_role_policy(RoleName=made["Role"], PolicyName="read", PolicyDocument=json.dumps(widened))
    iam.attach_role_policy(RoleName=made["Role"], PolicyArn="arn:aws:iam::aws:policy/AdministratorAccess")
    ssm.put_parameter(Name="/drifting/run", Value='{"nodes": 9}', Overwrite=True)
    reported = drifts(cloud)
    assert [line.partition(" (")[0] for line in reported] == [
        f"drifting: {name}" for name in ("Bucket", "Group", "Policy", "Role", "Run")
    ]
    assert reported[1] == "drifting: Group (AWS::EC2::SecurityGroup) was changed: /SecurityGroupIngress/1"
    assert reported[4] == "drifting: Run (AWS::SSM::Parameter) was changed: /Value"
    assert "/PublicAccessBlockConfiguration/BlockPublicPolicy" in reported[0] and "/BucketEncryption" in reported[0]
    assert "/PolicyDocument/Statement" in reported[2]
    assert "/ManagedPolicyArns/1" in reported[3] and "/Policies/0/PolicyDocument/Statement/0/Action" in reported[3]
    cloud.ec2.revoke_security_group_ingress(GroupId=made["Group"], IpPermissions=[opened])
    ssm.put_parameter(Name="/drifting/run", Value="{}", Overwrite=True)
    iam.detach_role_policy(RoleName=made["Role"], PolicyArn="arn:aws:iam::aws:policy/AdministratorAccess")
    assert [line.partition(" (")[0] for line in drifts(cloud)] == [
        f"drifting: {name}" for name in ("Bucket", "Policy", "Role")
    ]


def test_resources_without_drift_detection_are_not_reported(cloud, made):
    """CloudFormation does not detect drift of AWS::IAM::Policy or of launch template data."""
    cloud.client("iam").delete_role_policy(RoleName=made["Role"], PolicyName="more")
    cloud.ec2.create_launch_template_version(
        LaunchTemplateId=made["Template"], LaunchTemplateData={"InstanceType": "c7i.8xlarge"}
    )
    cloud.ec2.modify_launch_template(LaunchTemplateId=made["Template"], DefaultVersion="2")
    reported = " ".join(drifts(cloud))
    assert "Inline" not in reported and "Template" not in reported
    shown = cloud.client("cloudformation").describe_stack_resource_drifts(StackName="drifting")["StackResourceDrifts"]
    statuses = {one["LogicalResourceId"]: one["StackResourceDriftStatus"] for one in shown}
    assert not {"Inline", "Template"} & statuses.keys()  # NOT_CHECKED
