"""Makes change sets: reads what was asked, checks it before anything is made, and finds the changes."""

from __future__ import annotations

import re
import urllib.parse
import uuid
from collections.abc import Mapping
from typing import Any

from localcloud.api import ApiError, Call
from localcloud.cloudformation.accepted import ACCEPTED_TYPES
from localcloud.cloudformation.errors import NoSuchStack, TemplateError
from localcloud.cloudformation.operations import Stacks
from localcloud.cloudformation.parameters import resolve_parameters
from localcloud.cloudformation.planning import plan_changes
from localcloud.cloudformation.replacement import required_properties
from localcloud.cloudformation.stack import ChangeSet, Stack
from localcloud.cloudformation.template import load_template

# The CDK CLI recognises an empty change set by this sentence.
NO_CHANGES = "The submitted information didn't contain changes. Submit different information to create a change set."
STACK_NAME = re.compile(r"[a-zA-Z][-a-zA-Z0-9]{0,127}")
NAMED_IAM = {
    "AWS::IAM::Role": "RoleName",
    "AWS::IAM::User": "UserName",
    "AWS::IAM::Group": "GroupName",
    "AWS::IAM::ManagedPolicy": "ManagedPolicyName",
    "AWS::IAM::InstanceProfile": "InstanceProfileName",
}


def template_body(stacks: Stacks, call: Call, previous: str) -> str:
    """Return the template that a call gives: inline, from S3, or the stack's own.

    Raises:
        TemplateError: None is given, or it cannot be read.
    """
    p = call.parameters
    if p.get("TemplateBody"):
        return str(p["TemplateBody"])
    if p.get("UsePreviousTemplate") and previous:
        return previous
    if not p.get("TemplateURL"):
        raise TemplateError("Either Template URL or Template Body must be specified.")
    return _from_s3(stacks, str(p["TemplateURL"]), call.region)


def _from_s3(stacks: Stacks, url: str, region: str) -> str:
    parsed = urllib.parse.urlparse(url)
    host, path = parsed.hostname or "", urllib.parse.unquote(parsed.path.lstrip("/"))
    virtual = re.match(r"^(.+?)\.(s3[.-]|localhost$)", host)
    bucket, key = (virtual.group(1), path) if virtual else path.split("/", 1)
    s3 = stacks.clients.client("s3", region=region)
    try:
        body: bytes = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
    except (s3.exceptions.NoSuchKey, s3.exceptions.NoSuchBucket) as error:
        raise TemplateError(f"S3 error: {url}: {error}") from error
    return body.decode()


def make_change_set(stacks: Stacks, call: Call, kind: str, stack: Stack, name: str) -> ChangeSet:
    """Return the change set that a CreateChangeSet, CreateStack or UpdateStack call asks for; it may be empty or failed."""
    p = call.parameters
    body = template_body(stacks, call, stack.template_body)
    template = load_template(body)
    raw, resolved = resolve_parameters(
        template, list(p.get("Parameters", [])), stack.raw_parameters, lambda name: stacks.read_ssm(name, call.region)
    )
    resolved |= _pseudo(stack, p)
    maker = stacks.resolver_maker(call.region, template, resolved, set())
    _check(stacks, template, list(p.get("Capabilities", [])))
    changes = plan_changes(template, stack.resources, maker)
    tags = {t["Key"]: t["Value"] for t in p.get("Tags", [])} if "Tags" in p else dict(stack.tags)
    change_set = ChangeSet(
        name=name,
        change_set_id=f"arn:aws:cloudformation:{call.region}:{call.account}:changeSet/{name}/{uuid.uuid4()}",
        kind=kind,
        template_body=body,
        template=template,
        raw_parameters=raw,
        parameters=resolved,
        tags=tags,
        role_arn=p.get("RoleARN") or stack.role_arn,
        capabilities=list(p.get("Capabilities", [])),
        changes=changes,
        description=p.get("Description"),
        on_failure=p.get("OnStackFailure") or p.get("OnFailure"),
    )
    if kind == "UPDATE" and not changes and not _outputs_or_tags_changed(stack, change_set):
        change_set.status, change_set.reason = "FAILED", NO_CHANGES
        change_set.execution_status = "UNAVAILABLE"
    return change_set


def _pseudo(stack: Stack, p: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "AWS::AccountId": stack.account,
        "AWS::Region": stack.region,
        "AWS::Partition": "aws",
        "AWS::URLSuffix": "amazonaws.com",
        "AWS::StackName": stack.name,
        "AWS::StackId": stack.stack_id,
        "AWS::NotificationARNs": list(p.get("NotificationARNs", [])),
    }


def _outputs_or_tags_changed(stack: Stack, change_set: ChangeSet) -> bool:
    return stack.tags != change_set.tags or stack.template.get("Outputs", {}) != change_set.template.get("Outputs", {})


def _check(stacks: Stacks, template: Mapping[str, Any], capabilities: list[str]) -> None:
    """Refuse a template that cannot be deployed here, with every reason."""
    problems = []
    for logical_id, item in template["Resources"].items():
        kind = item["Type"]
        is_custom = kind.startswith("Custom::") or kind == "AWS::CloudFormation::CustomResource"
        if not is_custom and kind not in stacks.providers and kind not in ACCEPTED_TYPES:
            problems.append(f"{logical_id}: {kind} is not emulated by the local cloud, and not on the accepted list")
        missing = [name for name in required_properties(kind) if name not in item.get("Properties", {})]
        if missing:
            problems.append(f"{logical_id}: {kind} needs the properties {missing}")
    if problems:
        raise TemplateError("; ".join(problems))
    needed = _needed_capability(template)
    if needed is not None and not {needed, "CAPABILITY_NAMED_IAM"} & set(capabilities):
        raise ApiError("InsufficientCapabilitiesException", f"Requires capabilities : [{needed}]")


def _needed_capability(template: Mapping[str, Any]) -> str | None:
    needed = None
    for item in template["Resources"].values():
        if item["Type"] in NAMED_IAM and NAMED_IAM[item["Type"]] in item.get("Properties", {}):
            return "CAPABILITY_NAMED_IAM"
        if item["Type"].startswith("AWS::IAM::"):
            needed = "CAPABILITY_IAM"
    return needed


def stack_for(stacks: Stacks, call: Call, kind: str) -> Stack:
    """Return the stack that a change set is for; a CREATE makes it known, in review.

    Raises:
        ApiError: AlreadyExistsException for CREATE of an existing stack; ValidationError for an UPDATE without one.
    """
    name = str(call.parameters["StackName"])
    try:
        stack = stacks.find(name, call.region)
    except NoSuchStack:
        if kind != "CREATE":
            raise
        if STACK_NAME.fullmatch(name) is None:
            raise TemplateError(
                f"Stack name {name}: letters, digits and hyphens, at most 128, first a letter"
            ) from None
        stack_id = f"arn:aws:cloudformation:{call.region}:{call.account}:stack/{name}/{uuid.uuid4()}"
        stack = Stack(name, stack_id, call.region, call.account)
        stack.event(name, "AWS::CloudFormation::Stack", stack_id, "REVIEW_IN_PROGRESS", None, "User Initiated")
        stacks.add(stack)
        return stack
    if kind == "CREATE" and stack.exists:
        raise ApiError("AlreadyExistsException", f"Stack [{name}] already exists")
    if kind == "UPDATE" and not stack.exists:
        raise NoSuchStack(name)
    if stack.is_busy or stack.status.startswith("ROLLBACK_COMPLETE"):
        raise TemplateError(f"Stack:{stack.stack_id} is in {stack.status} state and can not be updated.")
    return stack
