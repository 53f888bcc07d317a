"""Creates change sets: reads and validates requests, then computes the changes."""

from __future__ import annotations

import re
import urllib.parse
import uuid
from collections.abc import Mapping
from typing import Any

from botocore.exceptions import ClientError

from localcloud.api import ApiError, Call
from localcloud.cloudformation.engine.operations import Stacks
from localcloud.cloudformation.engine.planning import Plan
from localcloud.cloudformation.engine.stack import STACK_TYPE, UPDATABLE, ChangeSet, Configuration, Stack
from localcloud.cloudformation.errors import InvalidRequest, NoSuchStack, TemplateError
from localcloud.cloudformation.templates.parameters import resolve_parameters
from localcloud.cloudformation.templates.template import load_template
from localcloud.cloudformation.templates.validation import require_capabilities, validate

# The CDK CLI recognizes an empty change set by this message.
NO_CHANGES = "The submitted information didn't contain changes. Submit different information to create a change set."
# Source: https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/cloudformation-limits.html (2026-11).
MAX_BODY_BYTES, MAX_OBJECT_BYTES = 51_200, 1_000_000
STACK_NAME = re.compile(r"[a-zA-Z][-a-zA-Z0-9]{0,127}")
# The bucket name precedes ".s3", ".s3-region" or ".s3.region", or the host name of the embedded cloud's endpoint.
VIRTUAL_HOST = re.compile(r"(?P<bucket>.+?)\.(s3[.-].+|s3|localhost|localhost\..+)")


def template_body(stacks: Stacks, call: Call, previous: str) -> str:
    """Return a call's template: inline, stored in S3, or the stack's current template.

    Raises:
        TemplateError: The call does not specify a template, or the template cannot be read.
    """
    p = call.parameters
    if p.get("TemplateBody"):
        body = str(p["TemplateBody"])
        if len(body.encode()) > MAX_BODY_BYTES:
            raise TemplateError(
                f"1 validation error detected: Value '{body[:100]}...' at 'templateBody' failed to satisfy constraint: "
                f"Member must have length less than or equal to {MAX_BODY_BYTES}"
            )
        return body
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
    if len(body) > MAX_OBJECT_BYTES:
        raise TemplateError(f"Template may not exceed {MAX_OBJECT_BYTES} bytes in size.")
    return body.decode()


def bucket_and_key(url: str) -> tuple[str, str]:
    """Return the bucket and key from a virtual-hosted or path-style template URL for AWS or the embedded cloud.

    Raises:
        TemplateError: The URL does not contain a bucket or a key.
    """
    parsed = urllib.parse.urlparse(url)
    path = urllib.parse.unquote(parsed.path.lstrip("/"))
    if parsed.scheme == "s3":
        raise TemplateError(f"S3 error: Domain name specified in {parsed.netloc} is not a valid S3 domain")
    virtual = VIRTUAL_HOST.fullmatch(parsed.hostname or "")
    bucket, key = (virtual["bucket"], path) if virtual else (path.partition("/")[0], path.partition("/")[2])
    if not bucket or not key:
        raise TemplateError("TemplateURL must be a supported URL.")
    return bucket, key


def create_change_set(stacks: Stacks, call: Call, kind: str, stack: Stack, name: str) -> ChangeSet:
    """Return the change set for a CreateChangeSet, CreateStack or UpdateStack call (FAILED if nothing changes).

    Raises:
        ApiError: The request is invalid; the message lists all problems.
    """
    p = call.parameters
    reject_parameters(
        call, "NotificationARNs", "ResourceTypes", "StackPolicyBody", "StackPolicyURL", "TimeoutInMinutes"
    )
    if p.get("RollbackConfiguration", {}).get("RollbackTriggers"):
        raise InvalidRequest("RollbackConfiguration: rollback triggers are not emulated; remove them")
    if p.get("RoleARN"):
        stacks.require_role(str(p["RoleARN"]))
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
    notes: list[str] = []
    maker = stacks.resolver_maker(call.region, configuration, set(), notes)
    changed = frozenset(name for name, value in raw.items() if old.raw_parameters.get(name) != value)
    plan = Plan(template, stack.resources, maker, changed, old.template, notes)
    plan.require_rules()
    changes = plan.changes(tags_changed=configuration.tags != old.tags)
    change_set = ChangeSet(
        name=name,
        change_set_id=f"arn:aws:cloudformation:{call.region}:{call.account}:changeSet/{name}/{uuid.uuid4()}",
        kind=kind,
        configuration=configuration,
        role_arn=p.get("RoleARN") or stack.role_arn,
        changes=changes,
        warnings=plan.warnings,
        description=p.get("Description"),
        on_failure=p.get("OnStackFailure") or p.get("OnFailure"),
        deployment_config=p.get("DeploymentConfig", {}),
    )
    if kind == "UPDATE" and not changes and not _is_deployable_without_changes(stack, change_set):
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


def _is_deployable_without_changes(stack: Stack, change_set: ChangeSet) -> bool:
    """Return True if tags or outputs change, or if the stack is in a failed state and can be deployed again."""
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
    """Return the stack for a change set; CREATE adds a stack in status REVIEW_IN_PROGRESS.

    Raises:
        ApiError: AlreadyExistsException if CREATE names an existing stack; ValidationError if UPDATE names a stack that
            does not exist or whose status does not allow updates.
    """
    name = str(call.parameters["StackName"])
    try:
        stack = stacks.find(name, call.region)
    except NoSuchStack:
        if kind != "CREATE":
            raise NoSuchStack(name, "Stack [{name}] does not exist") from None
        if STACK_NAME.fullmatch(name) is None:
            raise TemplateError(
                f"Stack name {name}: must be at most 128 letters, digits and hyphens, starting with a letter"
            ) from None
        stack_id = f"arn:aws:cloudformation:{call.region}:{call.account}:stack/{name}/{uuid.uuid4()}"
        stack = Stack(name, stack_id, call.region, call.account)
        stack.event(name, STACK_TYPE, stack_id, "REVIEW_IN_PROGRESS", None, "User Initiated")
        stacks.add(stack)
        return stack
    if kind == "CREATE" and stack.status != "REVIEW_IN_PROGRESS":
        change_set = call.parameters.get("ChangeSetName")
        if change_set is None:
            raise ApiError("AlreadyExistsException", f"Stack [{name}] already exists")
        raise InvalidRequest(
            f"Stack [{name}] already exists and cannot be created again with the changeSet [{change_set}]."
        )
    if kind == "UPDATE" and not stack.exists:
        raise NoSuchStack(name, "Stack [{name}] does not exist")
    if kind == "UPDATE":
        require_updatable(stack)
    return stack


def reject_parameters(call: Call, *names: str) -> None:
    """Reject parameters that are not emulated instead of ignoring them.

    Raises:
        InvalidRequest: One of the parameters is set and not empty.
    """
    given = [name for name in names if call.parameters.get(name)]
    if given:
        raise InvalidRequest(f"{call.operation}: parameters not emulated: {', '.join(given)}; remove them")


def require_updatable(stack: Stack) -> None:
    """Check that a stack can be updated.

    Raises:
        InvalidRequest: The stack's status does not allow updates. The message matches CloudFormation's.
    """
    if stack.status not in UPDATABLE:
        raise InvalidRequest(f"Stack:{stack.stack_id} is in {stack.status} state and can not be updated.")
