"""Maps each API call to the IAM actions and resources that it requires.

Source: https://docs.aws.amazon.com/service-authorization/latest/reference/ (2026-11), for calls by nodes,
functions, the CDK CLI's roles and CloudFormation's execution role. Any other call requires service:Operation on *.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

from localcloud.api import Call
from localcloud.iam.ec2_actions import ec2_accesses, template_accesses
from localcloud.iam.policy import Access
from localcloud.iam.s3_actions import s3_accesses
from localcloud.iam.storage_actions import dlm_accesses, fsx_accesses, resource_groups_accesses
from localcloud.iam.stored import key_arn, role_boundary

Parameters = Mapping[str, Any]
# IAM action prefixes by boto3 client name, where they differ.
PREFIXES = {
    "amp": "aps",
    "apigatewayv2": "apigateway",
    "efs": "elasticfilesystem",
    "elb": "elasticloadbalancing",
    "elbv2": "elasticloadbalancing",
    "emr": "elasticmapreduce",
    "opensearch": "es",
    "resourcegroupstaggingapi": "tag",
    "s3control": "s3",
    "service-quotas": "servicequotas",
    "sesv2": "ses",
    "stepfunctions": "states",
}


def accesses(call: Call) -> list[Access]:
    """Return the actions and resources that a call requires. All of them must be allowed."""
    builder = BUILDERS.get(call.service)
    if builder is not None:
        return builder(call)
    return [Access(f"{PREFIXES.get(call.service, call.service)}:{call.operation}", "*", {})]


def _ssm(call: Call) -> list[Access]:
    p = call.parameters
    named = [p[key] for key in ("Name", "Path") if key in p][:1]
    if p.get("ResourceType") == "Parameter":  # a parameter's tags
        named = [p["ResourceId"]]
    names = p.get("Names") or named
    if not names or call.operation.startswith("Describe"):
        return [Access(f"ssm:{call.operation}", "*", {})]
    prefix = f"arn:aws:ssm:{call.region}:{call.account}:parameter/"
    return [Access(f"ssm:{call.operation}", _ssm_arn(prefix, name), {}) for name in names]


def _ssm_arn(prefix: str, name: str) -> str:
    return name if name.startswith("arn:") else prefix + name.lstrip("/")


def _logs(call: Call) -> list[Access]:
    if call.parameters.get("resourceArn"):
        return [Access(f"logs:{call.operation}", str(call.parameters["resourceArn"]), {})]
    group = call.parameters.get("logGroupName") or call.parameters.get("logGroupIdentifier")
    if group is None or call.operation == "DescribeLogGroups":
        group = call.parameters.get("logGroupNamePrefix", "*") if call.operation == "DescribeLogGroups" else "*"
    stream = call.parameters.get("logStreamName")
    if stream is None and call.operation in ("DescribeLogStreams", "FilterLogEvents", "CreateLogStream"):
        stream = ""
    # In policies, log group ARNs end in ":*", and log stream ARNs are group:log-stream:name.
    tail = f":log-stream:{stream}" if stream is not None else ":log-stream:"
    return [Access(f"logs:{call.operation}", f"arn:aws:logs:{call.region}:{call.account}:log-group:{group}{tail}", {})]


def _autoscaling(call: Call) -> list[Access]:
    p = call.parameters
    action = f"autoscaling:{call.operation}"
    group = p.get("AutoScalingGroupName")
    if call.operation.startswith("Describe"):
        return [Access(action, "*", {})]
    named = [group] if group else list(dict.fromkeys(str(tag["ResourceId"]) for tag in p.get("Tags", [])))
    found = [Access(action, _group_arn(call, one), {}) for one in named] or [Access(action, "*", {})]
    if call.operation in ("CreateAutoScalingGroup", "UpdateAutoScalingGroup"):
        mixed = (p.get("MixedInstancesPolicy") or {}).get("LaunchTemplate") or {}
        specification = p.get("LaunchTemplate") or mixed.get("LaunchTemplateSpecification")
        found += template_accesses(call, specification) if specification else []
    return found


def _group_arn(call: Call, name: str) -> str:
    return f"arn:aws:autoscaling:{call.region}:{call.account}:autoScalingGroup:*:autoScalingGroupName/{name}"


def _lambda(call: Call) -> list[Access]:
    p = call.parameters
    action = "lambda:InvokeFunction" if call.operation == "Invoke" else f"lambda:{call.operation}"
    if call.operation.endswith(("EventSourceMapping", "EventSourceMappings")):
        named = p.get("UUID")  # these calls can name a mapping, but not a function
        place = f"arn:aws:lambda:{call.region}:{call.account}:event-source-mapping:{named}"
        return [Access(action, place if named else "*", {})]
    name = p.get("FunctionName")
    arn = str(name or p.get("Resource") or "*")
    if name is not None and not arn.startswith("arn:"):
        arn = f"arn:aws:lambda:{call.region}:{call.account}:function:{name}"
    found = [Access(action, arn, {})]
    if p.get("Role"):
        found.append(_pass_role(str(p["Role"]), "lambda.amazonaws.com"))
    return found


def _sqs(call: Call) -> list[Access]:
    """Return the access that a queue call requires. A batch call requires the permission for the single call."""
    p = call.parameters
    name = p.get("QueueName") or str(p.get("QueueUrl", "")).rpartition("/")[2]
    arn = f"arn:aws:sqs:{call.region}:{call.account}:{name}" if name else "*"
    return [Access(f"sqs:{call.operation.removesuffix('Batch')}", arn, {})]


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
    # The permissions boundary that the call sets, or the boundary of the role whose policies it changes.
    boundary_arn = p.get("PermissionsBoundary") or (role_boundary(str(p["RoleName"])) if p.get("RoleName") else None)
    boundary = {"iam:permissionsboundary": [str(boundary_arn)]} if boundary_arn else {}
    if "PolicyArn" in p and call.operation.startswith(("Attach", "Detach")):
        boundary["iam:policyarn"] = [p["PolicyArn"]]
    for name, kind in kinds:
        if p.get(name):
            path = p.get("Path", "/")
            found = [Access(action, f"arn:aws:iam::{call.account}:{kind}{path}{p[name]}", boundary)]
            if call.operation == "AddRoleToInstanceProfile":
                found.append(Access("iam:PassRole", f"arn:aws:iam::{call.account}:role/{p['RoleName']}", {}))
            return found
    if call.operation == "CreatePolicy":
        name = f"policy{p.get('Path', '/')}{p['PolicyName']}"
        return [Access(action, f"arn:aws:iam::{call.account}:{name}", {})]
    if "OpenIDConnectProvider" in call.operation and (p.get("OpenIDConnectProviderArn") or p.get("Url")):
        made = f"arn:aws:iam::{call.account}:oidc-provider/{str(p.get('Url')).removeprefix('https://')}"
        return [Access(action, str(p.get("OpenIDConnectProviderArn") or made), {})]
    if p.get("AWSServiceName"):
        service = str(p["AWSServiceName"])
        arn = f"arn:aws:iam::{call.account}:role/aws-service-role/{service}/*"
        return [Access(action, arn, {"iam:awsservicename": [service]})]
    return [Access(action, str(p.get("PolicyArn", "*")), boundary)]


def _sns(call: Call) -> list[Access]:
    p = call.parameters
    topic = p.get("TopicArn") or p.get("ResourceArn")
    if topic is None and p.get("SubscriptionArn"):
        topic = str(p["SubscriptionArn"]).rpartition(":")[0]  # authorized on the topic
    if topic is None and call.operation == "CreateTopic":
        topic = f"arn:aws:sns:{call.region}:{call.account}:{p['Name']}"
    return [Access(f"sns:{call.operation}", str(topic or "*"), {})]


def _ecr(call: Call) -> list[Access]:
    """Return the accesses to repositories. Creating one with tags also requires TagResource.

    Sources (2026-11): https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonelasticcontainerregistry.html
    and https://docs.aws.amazon.com/AmazonECR/latest/userguide/ecr-using-tags.html
    """
    p = call.parameters
    prefix = f"arn:aws:ecr:{call.region}:{call.account}:repository/"
    names = [p["repositoryName"]] if p.get("repositoryName") else p.get("repositoryNames") or []
    arns = [f"{prefix}{name}" for name in names] or [str(p.get("resourceArn", "*"))]
    actions = [call.operation, *(["TagResource"] if call.operation == "CreateRepository" and p.get("tags") else [])]
    return [Access(f"ecr:{action}", arn, {}) for action in actions for arn in arns]


def _budgets(call: Call) -> list[Access]:
    p = call.parameters
    if call.operation.endswith(("Resource", "ForResource")):
        return [Access(f"budgets:{call.operation}", str(p.get("ResourceARN", "*")), {})]
    # Two actions cover all budget operations.
    action = "budgets:ViewBudget" if call.operation.startswith("Describe") else "budgets:ModifyBudget"
    name = p.get("BudgetName") or (p.get("Budget") or p.get("NewBudget") or {}).get("BudgetName", "*")
    return [Access(action, f"arn:aws:budgets::{call.account}:budget/{name}", {})]


def _sts(call: Call) -> list[Access]:
    if call.operation == "GetCallerIdentity":
        return []  # does not require a permission
    return [Access(f"sts:{call.operation}", str(call.parameters.get("RoleArn", "*")), {})]


def _kms(call: Call) -> list[Access]:
    p = call.parameters
    action = f"kms:{call.operation}"
    key = p.get("KeyId") or p.get("TargetKeyId")
    alias = p.get("AliasName")
    context = {"kms:calleraccount": [call.account]}
    if call.operation == "CreateGrant":
        context["kms:grantoperations"] = [str(one) for one in p.get("Operations", [])]
    # Operations on an alias require access to both the alias and its key.
    found = [Access(action, f"arn:aws:kms:{call.region}:{call.account}:{alias}", context)] if alias else []
    if key is not None:
        found.append(Access(action, key_arn(call.region, str(key)), context))
    return found or [Access(action, "*", context)]


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
    action = f"events:{call.operation}"
    prefix = f"arn:aws:events:{call.region}:{call.account}:"
    if call.operation == "PutEvents":
        return [_put_event(action, f"{prefix}event-bus/", entry) for entry in p.get("Entries", [])]
    rule = p.get("Rule") or (p.get("Name") if "Rule" in call.operation else None)
    bus = p.get("EventBusName")
    path = f"{bus}/{rule}" if bus and bus != "default" else str(rule)
    found = [Access(action, f"{prefix}rule/{path}" if rule else str(p.get("ResourceARN", "*")), {})]
    roles = [p.get("RoleArn"), *(target.get("RoleArn") for target in p.get("Targets", []) if isinstance(target, dict))]
    return found + [_pass_role(str(role), "events.amazonaws.com") for role in dict.fromkeys(roles) if role]


def _put_event(action: str, prefix: str, entry: Parameters) -> Access:
    """Return the access that one entry requires. Its source and detail type are condition keys.

    Source (2026-11): https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-use-conditions.html
    """
    bus = str(entry.get("EventBusName", "default"))
    context = {"events:source": [str(entry.get("Source"))], "events:detail-type": [str(entry.get("DetailType"))]}
    return Access(action, bus if bus.startswith("arn:") else f"{prefix}{bus}", context)


def _token_owner(token: str) -> str:
    """Return the state machine in a task token, or "*" if the token is invalid."""
    try:
        return base64.urlsafe_b64decode(token.partition(".")[0]).decode()
    except ValueError:
        return "*"


def _stepfunctions(call: Call) -> list[Access]:
    """Return the accesses of a call. Those with a task token are authorized on its state machine.

    The token of a child execution of a map run belongs to `stateMachine:NAME/LABEL`.
    Sources (2026-11): https://github.com/aws/aws-cdk/pull/8486 (tried with a function's task),
    https://docs.aws.amazon.com/service-authorization/latest/reference/list_stepfunctions.md and
    https://docs.aws.amazon.com/step-functions/latest/dg/iam-policies-eg-dist-map.html
    """
    p = call.parameters
    prefix = f"arn:aws:states:{call.region}:{call.account}:stateMachine:"
    resource = p.get("stateMachineArn") or p.get("executionArn") or p.get("mapRunArn") or p.get("resourceArn")
    if call.operation == "CreateStateMachine":
        resource = f"{prefix}{p['name']}"
    if call.operation == "ListStateMachines":
        resource = "*"
    if p.get("taskToken"):
        resource = _token_owner(str(p["taskToken"]))
    found = [Access(f"states:{call.operation}", str(resource or "*"), {})]
    if call.operation == "CreateStateMachine" and p.get("tags"):
        found.append(Access("states:TagResource", str(resource), {}))
    return found + ([_pass_role(str(p["roleArn"]), "states.amazonaws.com")] if p.get("roleArn") else [])


def _cloudwatch(call: Call) -> list[Access]:
    p = call.parameters
    action = f"cloudwatch:{call.operation}"
    prefix = f"arn:aws:cloudwatch:{call.region}:{call.account}:"
    if call.operation in ("PutMetricData", "GetMetricData", "GetMetricStatistics", "ListMetrics"):
        context = {"cloudwatch:namespace": [str(p["Namespace"])]} if p.get("Namespace") else {}
        return [Access(action, "*", context)]
    alarms = [p["AlarmName"]] if p.get("AlarmName") else p.get("AlarmNames") or []
    if alarms:
        return [Access(action, f"{prefix}alarm:{name}", {}) for name in alarms]
    dashboards = [p["DashboardName"]] if p.get("DashboardName") else p.get("DashboardNames") or []
    if dashboards:
        return [Access(action, f"arn:aws:cloudwatch::{call.account}:dashboard/{name}", {}) for name in dashboards]
    return [Access(action, str(p.get("ResourceARN", "*")), {})]


BUILDERS: Mapping[str, Callable[[Call], list[Access]]] = {
    "s3": s3_accesses,
    "ssm": _ssm,
    "logs": _logs,
    "autoscaling": _autoscaling,
    "lambda": _lambda,
    "sqs": _sqs,
    "iam": _iam,
    "budgets": _budgets,
    "sns": _sns,
    "ecr": _ecr,
    "sts": _sts,
    "ec2": ec2_accesses,
    "kms": _kms,
    "cloudformation": _cloudformation,
    "events": _events,
    "cloudwatch": _cloudwatch,
    "stepfunctions": _stepfunctions,
    "fsx": fsx_accesses,
    "dlm": dlm_accesses,
    "resource-groups": resource_groups_accesses,
}
