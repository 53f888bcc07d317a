"""Makes change sets: reads what was asked, checks it before anything is made, and finds the changes."""

from __future__ import annotations

import re
import urllib.parse
import uuid
from collections.abc import Mapping
from typing import Any

from botocore.exceptions import ClientError

from localcloud.api import ApiError, Call
from localcloud.cloudformation.errors import NoSuchStack, RequestRefused, TemplateError
from localcloud.cloudformation.operations import Stacks
from localcloud.cloudformation.parameters import resolve_parameters
from localcloud.cloudformation.planning import Plan
from localcloud.cloudformation.stack import STACK_TYPE, UPDATABLE, ChangeSet, Configuration, Stack
from localcloud.cloudformation.template import load_template
from localcloud.cloudformation.validation import require_capabilities, validate

# The CDK CLI recognises an empty change set by this sentence.
NO_CHANGES = "The submitted information didn't contain changes. Submit different information to create a change set."
STACK_NAME = re.compile(r"[a-zA-Z][-a-zA-Z0-9]{0,127}")
# Bucket before ".s3", ".s3-region", ".s3.region"; the local cloud's own endpoint takes the bucket before its name.
VIRTUAL_HOST = re.compile(r"(?P<bucket>.+?)\.(s3[.-].+|s3|localhost|localhost\..+)")


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
    bucket, key = bucket_and_key(url)
    try:
        answer = stacks.clients.client("s3", region=region).get_object(Bucket=bucket, Key=key)
    except ClientError as error:
        raise TemplateError(f"S3 error: {error} (TemplateURL {url})") from error
    body: bytes = answer["Body"].read()
    return body.decode()


def bucket_and_key(url: str) -> tuple[str, str]:
    """Return what a template URL names, in virtual-hosted or path style, at AWS's endpoints or the local cloud's.

    Raises:
        TemplateError: The URL names no object.
    """
    parsed = urllib.parse.urlparse(url)
    path = urllib.parse.unquote(parsed.path.lstrip("/"))
    virtual = VIRTUAL_HOST.fullmatch(parsed.hostname or "")
    bucket, key = (virtual["bucket"], path) if virtual else (path.partition("/")[0], path.partition("/")[2])
    if not bucket or not key:
        raise TemplateError(f"TemplateURL {url}: must be the URL of an object in S3")
    return bucket, key


def make_change_set(stacks: Stacks, call: Call, kind: str, stack: Stack, name: str) -> ChangeSet:
    """Return the change set that a CreateChangeSet, CreateStack or UpdateStack call asks for; it may have failed.

    Raises:
        ApiError: What was asked cannot be deployed; every reason that was found in one message.
    """
    p = call.parameters
    refuse_parameters(
        call, "NotificationARNs", "ResourceTypes", "StackPolicyBody", "StackPolicyURL", "TimeoutInMinutes"
    )
    if p.get("RollbackConfiguration", {}).get("RollbackTriggers"):
        raise RequestRefused("RollbackConfiguration: the local cloud watches no alarms while it deploys; leave it out")
    old = stack.configuration
    body = template_body(stacks, call, old.template_body)
    template = load_template(body)
    validate(template, stacks.providers)
    require_capabilities(template, p.get("Capabilities", []))
    raw, resolved = resolve_parameters(
        template, list(p.get("Parameters", [])), old.raw_parameters, lambda name: stacks.read_ssm(name, call.region)
    )
    configuration = Configuration(
        template_body=body,
        template=template,
        raw_parameters=raw,
        parameters=resolved | _pseudo(stack),
        tags={t["Key"]: t["Value"] for t in p["Tags"]} if "Tags" in p else old.tags,
        capabilities=tuple(p.get("Capabilities", [])),
    )
    maker = stacks.resolver_maker(call.region, configuration, set())
    plan = Plan(template, stack.resources, maker)
    plan.require_rules()
    changes = plan.changes(tags_changed=configuration.tags != old.tags)
    change_set = ChangeSet(
        name=name,
        change_set_id=f"arn:aws:cloudformation:{call.region}:{call.account}:changeSet/{name}/{uuid.uuid4()}",
        kind=kind,
        configuration=configuration,
        role_arn=p.get("RoleARN") or stack.role_arn,
        changes=changes,
        description=p.get("Description"),
        on_failure=p.get("OnStackFailure") or p.get("OnFailure"),
        deployment_config=p.get("DeploymentConfig", {}),
    )
    if kind == "UPDATE" and not changes and not _differs_otherwise(stack, change_set):
        change_set.status, change_set.reason = "FAILED", NO_CHANGES
        change_set.execution_status = "UNAVAILABLE"
    return change_set


def _pseudo(stack: Stack) -> dict[str, Any]:
    return {
        "AWS::AccountId": stack.account,
        "AWS::Region": stack.region,
        "AWS::Partition": "aws",
        "AWS::URLSuffix": "amazonaws.com",
        "AWS::StackName": stack.name,
        "AWS::StackId": stack.stack_id,
        "AWS::NotificationARNs": [],
    }


def _differs_otherwise(stack: Stack, change_set: ChangeSet) -> bool:
    """Tell whether something that is no resource changes; a stack left failed can always be deployed again."""
    old, new = stack.configuration, change_set.configuration
    return (
        stack.status in ("CREATE_FAILED", "UPDATE_FAILED")
        or old.tags != new.tags
        or _output_definitions(old.template) != _output_definitions(new.template)
    )


def _output_definitions(template: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = template.get("Outputs", {})
    return found


def stack_for(stacks: Stacks, call: Call, kind: str) -> Stack:
    """Return the stack that a change set is for; a CREATE makes it known, in review.

    Raises:
        ApiError: AlreadyExistsException for CREATE of an existing stack; ValidationError for an UPDATE without one, or
            when its state admits none.
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
        stack.event(name, STACK_TYPE, stack_id, "REVIEW_IN_PROGRESS", None, "User Initiated")
        stacks.add(stack)
        return stack
    if kind == "CREATE" and stack.exists:
        raise ApiError("AlreadyExistsException", f"Stack [{name}] already exists")
    if kind == "UPDATE" and not stack.exists:
        raise NoSuchStack(name)
    if kind == "UPDATE":
        require_updatable(stack)
    return stack


def refuse_parameters(call: Call, *names: str) -> None:
    """Refuse what the local cloud would otherwise have to ignore.

    Raises:
        RequestRefused: One of these parameters is given, and not empty.
    """
    given = [name for name in names if call.parameters.get(name)]
    if given:
        raise RequestRefused(f"{call.operation}: the local cloud does not have {', '.join(given)}; leave it out")


def require_updatable(stack: Stack) -> None:
    """Refuse a change of a stack whose state admits none.

    Raises:
        RequestRefused: In CloudFormation's words.
    """
    if stack.status not in UPDATABLE:
        raise RequestRefused(f"Stack:{stack.stack_id} is in {stack.status} state and can not be updated.")
