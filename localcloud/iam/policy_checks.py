"""Checks the policies that IAM, KMS and S3 store: sizes, principals, lockouts and resources.

Sources: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html (sizes),
https://docs.aws.amazon.com/kms/latest/APIReference/API_PutKeyPolicy.html (lockout safety check) and
https://docs.aws.amazon.com/AmazonS3/latest/userguide/access-control-block-public-access.html (2026-11).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from localcloud.api import ApiError, Call
from localcloud.iam.identity import ACCOUNT, find_role, iam_backend
from localcloud.iam.stored import bucket

ROLE_NAME_CHARACTERS = 64
"""Source: RoleName of CreateRole in botocore's model (1.44)."""
TRUST_CHARACTERS, INLINE_CHARACTERS, MANAGED_CHARACTERS, MANAGED_POLICIES = 2_048, 10_240, 6_144, 10
ROOT = f"arn:aws:iam::{ACCOUNT}:root"
ROLE = re.compile(rf"arn:aws:iam::{ACCOUNT}:(role|user)/(?:.*/)?([\w+=,.@-]+)")
# Conditions that keep a bucket policy from being public.
FIXED_CONDITIONS = ("aws:principalorgid", "aws:sourceaccount", "aws:sourcearn", "aws:sourcevpc", "aws:sourcevpce")


def check_iam(call: Call) -> None:
    """Check the name and tags of a role, and the policy that an IAM call stores.

    Raises:
        ApiError: ValidationError, InvalidInput, LimitExceeded, or MalformedPolicyDocument for a principal that does not
            exist.
    """
    p = call.parameters
    if any(str(tag["Key"]).lower().startswith("aws:") for tag in p.get("Tags", [])):
        raise ApiError("InvalidInput", "aws: prefixed tag key names are not allowed for external use.")
    if call.operation == "CreateRole" and len(str(p["RoleName"])) > ROLE_NAME_CHARACTERS:
        raise ApiError(
            "ValidationError",
            f"1 validation error detected: Value '{p['RoleName']}' at 'roleName' failed to satisfy constraint: Member "
            f"must have length less than or equal to {ROLE_NAME_CHARACTERS}",
        )
    if call.operation in ("CreateRole", "UpdateAssumeRolePolicy"):
        text = str(p.get("AssumeRolePolicyDocument") or p.get("PolicyDocument"))
        if not _statements(text):
            raise ApiError("MalformedPolicyDocument", "This policy contains invalid Json")
        if _characters(text) > TRUST_CHARACTERS:
            raise _exceeded(f"Cannot exceed quota for ACLSizePerRole: {TRUST_CHARACTERS}")
        unknown = next(_unknown_principals(text), None)
        if unknown is not None:
            raise ApiError("MalformedPolicyDocument", f'Invalid principal in policy: "AWS":"{unknown}"')
    elif call.operation in ("CreatePolicy", "CreatePolicyVersion"):
        if _characters(str(p["PolicyDocument"])) > MANAGED_CHARACTERS:
            raise _exceeded(f"Cannot exceed quota for PolicySize: {MANAGED_CHARACTERS}")
    elif call.operation == "PutRolePolicy":
        role = _role(str(p["RoleName"]))
        others = {} if role is None else {n: text for n, text in role.policies.items() if n != p["PolicyName"]}
        if sum(map(_characters, [*map(str, others.values()), str(p["PolicyDocument"])])) > INLINE_CHARACTERS:
            raise _exceeded(f"Maximum policy size of {INLINE_CHARACTERS} bytes exceeded for role {p['RoleName']}")
    elif call.operation == "AttachRolePolicy":
        role = _role(str(p["RoleName"]))
        attached = set() if role is None else set(role.managed_policies)
        if len(attached | {p["PolicyArn"]}) > MANAGED_POLICIES:
            raise _exceeded(f"Cannot exceed quota for PoliciesPerRole: {MANAGED_POLICIES}")
    elif call.operation == "DeletePolicy" and any(
        p["PolicyArn"] in role.managed_policies for role in iam_backend().roles.values()
    ):
        raise ApiError("DeleteConflict", "Cannot delete a policy attached to entities.", 409)


def check_kms(call: Call) -> None:
    """Check that a key policy lets the caller change it later.

    Raises:
        ApiError: MalformedPolicyDocumentException.
    """
    p = call.parameters
    if call.operation not in ("CreateKey", "PutKeyPolicy") or not p.get("Policy"):
        return
    unknown = next(_unknown_principals(str(p["Policy"])), None)
    if unknown is not None:
        words = "Policy contains a statement with one or more invalid principals."
        raise ApiError("MalformedPolicyDocumentException", words)
    callers = {"*", ACCOUNT, ROOT, call.principal.arn, call.principal.role_arn}
    for statement in _statements(str(p["Policy"])):
        actions = [str(action).lower() for action in _listed(statement.get("Action"))]
        can_put = any(action in ("*", "kms:*", "kms:put*", "kms:putkeypolicy") for action in actions)
        if statement.get("Effect") == "Allow" and can_put and callers & set(_aws_principals(statement)):
            return
    if not p.get("BypassPolicyLockoutSafetyCheck"):
        raise ApiError(
            "MalformedPolicyDocumentException",
            "The new key policy will not allow you to update the key policy in the future.",
        )


def check_bucket_policy(call: Call) -> None:
    """Check a bucket policy's principals and resources. Reject a public policy if the bucket blocks public policies.

    Raises:
        ApiError: MalformedPolicy or AccessDenied.
    """
    if call.operation != "PutBucketPolicy":
        return
    text, name = str(call.parameters["Policy"]), str(call.parameters["Bucket"])
    if not text.startswith("{") or not _is_json(text):
        raise ApiError("MalformedPolicy", "Policies must be valid JSON and the first byte must be '{'")
    if next(_unknown_principals(text), None) is not None:
        raise ApiError("MalformedPolicy", "Invalid principal in policy")
    for statement in _statements(text):
        resources = [str(resource) for resource in _listed(statement.get("Resource"))]
        actions = [str(action) for action in _listed(statement.get("Action"))]
        has_objects = any("/" in resource or resource.endswith("*") for resource in resources)
        if resources and not has_objects and any(re.match(r"s3:\w+Object", action) for action in actions):
            raise ApiError("MalformedPolicy", "Action does not apply to any resource(s) in statement")
        if _is_public(statement) and _blocks_public_policies(name):
            raise ApiError(
                "AccessDenied",
                f"User: {call.principal.arn} is not authorized to perform: s3:PutBucketPolicy on resource: "
                f'"arn:aws:s3:::{name}" because public policies are prevented by the BlockPublicPolicy setting in S3 '
                "Block Public Access.",
                403,
            )


def _is_public(statement: Mapping[str, Any]) -> bool:
    keys = {key.lower() for condition in (statement.get("Condition") or {}).values() for key in condition}
    return statement.get("Effect") == "Allow" and "*" in _aws_principals(statement) and not keys & {*FIXED_CONDITIONS}


def _blocks_public_policies(name: str) -> bool:
    found = bucket(name)
    block = getattr(found, "public_access_block", None)
    return block is not None and str(getattr(block, "block_public_policy", False)).lower() == "true"


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _statements(text: str) -> list[Mapping[str, Any]]:
    try:
        found = json.loads(text).get("Statement", [])
    except (ValueError, AttributeError):
        return []  # not JSON
    return [one for one in (found if isinstance(found, list) else [found]) if isinstance(one, Mapping)]


def _unknown_principals(text: str) -> Iterator[str]:
    """Yield this account's roles and users that a policy names but that do not exist."""
    for statement in _statements(text):
        for principal in _aws_principals(statement):
            named = ROLE.fullmatch(principal)
            if named is not None and not _exists(principal, *named.groups()):
                yield principal


def _exists(arn: str, kind: str, name: str) -> bool:
    if kind == "user":
        return name in iam_backend().users
    try:
        find_role(arn)
    except ApiError:
        return False
    return True


def _aws_principals(statement: Mapping[str, Any]) -> list[str]:
    principal = statement.get("Principal")
    found = principal.get("AWS") if isinstance(principal, Mapping) else principal
    return [str(one) for one in _listed(found)]


def _listed(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]


def _characters(text: str) -> int:
    """Return the size of a policy, excluding white space."""
    return len(re.sub(r"\s", "", text))


def _role(name: str) -> Any:
    return next((role for role in iam_backend().roles.values() if role.name == name), None)


def _exceeded(words: str) -> ApiError:
    return ApiError("LimitExceeded", words, 409)
