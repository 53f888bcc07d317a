"""What each API call needs: the IAM actions and the resources they are checked on.

Source: https://docs.aws.amazon.com/service-authorization/latest/reference/ (2026-11), for the calls made by nodes,
functions, the CDK CLI's roles and CloudFormation's execution role. A call that is not listed needs service:Operation
on *.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from localcloud.api import Call
from localcloud.iam.policy import Access

Parameters = Mapping[str, Any]
# IAM prefixes that differ from boto3's client name.
PREFIXES = {"stepfunctions": "states", "opensearch": "es", "elbv2": "elasticloadbalancing"}

# S3 operations whose IAM action has another name than the operation.
S3_OBJECT_ACTIONS = {
    "GetObject": "s3:GetObject",
    "HeadObject": "s3:GetObject",
    "GetObjectAttributes": "s3:GetObject",
    "PutObject": "s3:PutObject",
    "CreateMultipartUpload": "s3:PutObject",
    "UploadPart": "s3:PutObject",
    "CompleteMultipartUpload": "s3:PutObject",
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
    "ListParts": "s3:ListMultipartUploadParts",
    "DeleteObject": "s3:DeleteObject",
    "GetObjectTagging": "s3:GetObjectTagging",
    "PutObjectTagging": "s3:PutObjectTagging",
}
S3_BUCKET_ACTIONS = {
    "ListObjects": "s3:ListBucket",
    "ListObjectsV2": "s3:ListBucket",
    "HeadBucket": "s3:ListBucket",
    "ListObjectVersions": "s3:ListBucketVersions",
    "ListMultipartUploads": "s3:ListBucketMultipartUploads",
    "GetBucketEncryption": "s3:GetEncryptionConfiguration",
    "PutBucketEncryption": "s3:PutEncryptionConfiguration",
    "DeleteBucketEncryption": "s3:PutEncryptionConfiguration",
    "GetBucketLifecycleConfiguration": "s3:GetLifecycleConfiguration",
    "PutBucketLifecycleConfiguration": "s3:PutLifecycleConfiguration",
    "DeleteBucketLifecycle": "s3:PutLifecycleConfiguration",
    "GetPublicAccessBlock": "s3:GetBucketPublicAccessBlock",
    "PutPublicAccessBlock": "s3:PutBucketPublicAccessBlock",
    "DeletePublicAccessBlock": "s3:PutBucketPublicAccessBlock",
    "PutBucketNotificationConfiguration": "s3:PutBucketNotification",
    "GetBucketNotificationConfiguration": "s3:GetBucketNotification",
}
# Lambda operations whose IAM action has another name.
LAMBDA_ACTIONS = {"Invoke": "lambda:InvokeFunction", "InvokeAsync": "lambda:InvokeFunction"}


def accesses(call: Call) -> list[Access]:
    """Return what a call needs; all of it must be allowed."""
    builder = BUILDERS.get(call.service)
    if builder is not None:
        return builder(call)
    return [Access(f"{PREFIXES.get(call.service, call.service)}:{call.operation}", "*", {})]


def _s3(call: Call) -> list[Access]:
    p = call.parameters
    bucket = f"arn:aws:s3:::{p.get('Bucket', '*')}"
    if call.operation == "CopyObject":
        source = p["CopySource"]
        name = source if isinstance(source, str) else f"{source['Bucket']}/{source['Key']}"
        return [
            Access("s3:GetObject", f"arn:aws:s3:::{name.lstrip('/').split('?')[0]}", {}),
            Access("s3:PutObject", f"{bucket}/{p['Key']}", {}),
        ]
    if call.operation == "DeleteObjects":
        keys = [item["Key"] for item in p["Delete"]["Objects"]]
        return [Access("s3:DeleteObject", f"{bucket}/{key}", {}) for key in keys]
    if call.operation in S3_OBJECT_ACTIONS:
        action = S3_OBJECT_ACTIONS[call.operation]
        return [Access(action, f"{bucket}/{p['Key']}", {})]
    action = S3_BUCKET_ACTIONS.get(call.operation, f"s3:{call.operation}")
    if call.operation == "ListBuckets":
        return [Access("s3:ListAllMyBuckets", "*", {})]
    context = {f"s3:{name.lower()}": [str(p[name])] for name in ("Prefix", "Delimiter") if p.get(name) is not None}
    return [Access(action, bucket, context)]


def _ssm(call: Call) -> list[Access]:
    p = call.parameters
    names = p.get("Names") or ([p["Name"]] if "Name" in p else [p["Path"]] if "Path" in p else [])
    if not names or call.operation.startswith("Describe"):
        return [Access(f"ssm:{call.operation}", "*", {})]
    prefix = f"arn:aws:ssm:{call.region}:{call.account}:parameter/"
    return [Access(f"ssm:{call.operation}", _ssm_arn(prefix, name), {}) for name in names]


def _ssm_arn(prefix: str, name: str) -> str:
    return name if name.startswith("arn:") else prefix + name.lstrip("/")


def _logs(call: Call) -> list[Access]:
    group = call.parameters.get("logGroupName") or call.parameters.get("logGroupIdentifier")
    if group is None or call.operation == "DescribeLogGroups":
        group = call.parameters.get("logGroupNamePrefix", "*") if call.operation == "DescribeLogGroups" else "*"
    stream = call.parameters.get("logStreamName")
    if stream is None and call.operation in ("DescribeLogStreams", "FilterLogEvents", "CreateLogStream"):
        stream = ""
    # Log-group ARNs end in ":*" in policies; the stream form is group:log-stream:name.
    tail = f":log-stream:{stream}" if stream is not None else ":log-stream:"
    return [Access(f"logs:{call.operation}", f"arn:aws:logs:{call.region}:{call.account}:log-group:{group}{tail}", {})]


def _autoscaling(call: Call) -> list[Access]:
    p = call.parameters
    action = f"autoscaling:{call.operation}"
    group = p.get("AutoScalingGroupName")
    if call.operation.startswith("Describe") or group is None:
        return [Access(action, "*", {})]
    arn = f"arn:aws:autoscaling:{call.region}:{call.account}:autoScalingGroup:*:autoScalingGroupName/{group}"
    return [Access(action, arn, {})]


def _lambda(call: Call) -> list[Access]:
    action = LAMBDA_ACTIONS.get(call.operation, f"lambda:{call.operation}")
    name = call.parameters.get("FunctionName")
    if name is None:
        return [Access(action, "*", {})]
    arn = name if name.startswith("arn:") else f"arn:aws:lambda:{call.region}:{call.account}:function:{name}"
    found = [Access(action, arn, {})]
    if call.operation == "CreateFunction":
        found.append(_pass_role(call.parameters["Role"], "lambda.amazonaws.com"))
    return found


def _pass_role(role_arn: str, service: str) -> Access:
    return Access("iam:PassRole", role_arn, {"iam:passedtoservice": [service]})


IAM_KINDS = (
    ("RoleName", "role"),
    ("UserName", "user"),
    ("InstanceProfileName", "instance-profile"),
    ("GroupName", "group"),
)


def _iam(call: Call) -> list[Access]:
    p = call.parameters
    action = f"iam:{call.operation}"
    profile_first = call.operation in ("AddRoleToInstanceProfile", "RemoveRoleFromInstanceProfile")
    kinds = (("InstanceProfileName", "instance-profile"),) if profile_first else IAM_KINDS
    boundary = {"iam:permissionsboundary": [p["PermissionsBoundary"]]} if p.get("PermissionsBoundary") else {}
    if "PolicyArn" in p and call.operation.startswith(("Attach", "Detach")):
        boundary["iam:policyarn"] = [p["PolicyArn"]]
    for name, kind in kinds:
        if p.get(name):
            path = p.get("Path", "/")
            found = [Access(action, f"arn:aws:iam::{call.account}:{kind}{path}{p[name]}", boundary)]
            if call.operation == "AddRoleToInstanceProfile":
                found.append(Access("iam:PassRole", f"arn:aws:iam::{call.account}:role/{p['RoleName']}", {}))
            return found
    return [Access(action, str(p.get("PolicyArn", "*")), boundary)]


def _sts(call: Call) -> list[Access]:
    if call.operation == "GetCallerIdentity":
        return []  # needs no permission
    return [Access(f"sts:{call.operation}", str(call.parameters.get("RoleArn", "*")), {})]


EC2_RESOURCES: Sequence[tuple[str, str]] = (
    ("InstanceIds", "instance"),
    ("InstanceId", "instance"),
    ("VolumeId", "volume"),
    ("SnapshotId", "snapshot"),
    ("LaunchTemplateId", "launch-template"),
    ("SubnetId", "subnet"),
    ("VpcEndpointIds", "vpc-endpoint"),
    ("GroupId", "security-group"),
    ("RouteTableId", "route-table"),
    ("VpcId", "vpc"),
)


def _ec2(call: Call) -> list[Access]:
    action = f"ec2:{call.operation}"
    if call.operation.startswith("Describe"):
        return [Access(action, "*", {})]
    for name, kind in EC2_RESOURCES:
        value = call.parameters.get(name)
        if value:
            ids = value if isinstance(value, list) else [value]
            return [Access(action, f"arn:aws:ec2:{call.region}:{call.account}:{kind}/{one}", {}) for one in ids]
    return [Access(action, f"arn:aws:ec2:{call.region}:{call.account}:*/*", {})]


def _kms(call: Call) -> list[Access]:
    key = str(call.parameters.get("KeyId") or call.parameters.get("TargetKeyId") or "*")
    if key != "*" and not key.startswith("arn:"):
        key = f"arn:aws:kms:{call.region}:{call.account}:key/{key}"
    return [Access(f"kms:{call.operation}", key, {})]


def _cloudformation(call: Call) -> list[Access]:
    p = call.parameters
    stack = p.get("StackName") or p.get("StackId")
    if stack is None:
        return [Access(f"cloudformation:{call.operation}", "*", {})]
    arn = (
        stack
        if str(stack).startswith("arn:")
        else f"arn:aws:cloudformation:{call.region}:{call.account}:stack/{stack}/*"
    )
    found = [Access(f"cloudformation:{call.operation}", str(arn), {})]
    if p.get("RoleARN"):
        found.append(_pass_role(str(p["RoleARN"]), "cloudformation.amazonaws.com"))
    return found


def _events(call: Call) -> list[Access]:
    p = call.parameters
    rule = p.get("Rule") or (p.get("Name") if "Rule" in call.operation else None)
    arn = f"arn:aws:events:{call.region}:{call.account}:rule/{rule}" if rule else "*"
    return [Access(f"events:{call.operation}", arn, {})]


BUILDERS: Mapping[str, Callable[[Call], list[Access]]] = {
    "s3": _s3,
    "ssm": _ssm,
    "logs": _logs,
    "autoscaling": _autoscaling,
    "lambda": _lambda,
    "iam": _iam,
    "sts": _sts,
    "ec2": _ec2,
    "kms": _kms,
    "cloudformation": _cloudformation,
    "events": _events,
}
