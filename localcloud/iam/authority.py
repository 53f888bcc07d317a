"""Authorizes calls against the policies that apply to them.

Identity policies, permissions boundaries, bucket policies, key policies and Lambda resource policies are read from the
services' stores. aws:SecureTransport is true for every call, although the endpoint does not use TLS.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import unquote

from localcloud.api import ApiError, Call, Principal
from localcloud.iam.actions import accesses
from localcloud.iam.identity import Identity, find_role, iam_backend
from localcloud.iam.policy import Access, Document, grants, verdict
from localcloud.iam.stored import (
    bucket_key,
    document,
    ec2_tags,
    key_arn,
    managed_document,
    object_key,
    resource_policies,
)
from localcloud.journal import append_record

# S3 data-plane operations that use the bucket's key on the caller's behalf.
KMS_FOR_S3 = {
    "GetObject": ("kms:Decrypt",),
    "PutObject": ("kms:GenerateDataKey",),
    "CreateMultipartUpload": ("kms:GenerateDataKey",),
    "UploadPart": ("kms:GenerateDataKey", "kms:Decrypt"),
    "CompleteMultipartUpload": ("kms:Decrypt",),
    "CopyObject": ("kms:Decrypt", "kms:GenerateDataKey"),
    "UploadPartCopy": ("kms:Decrypt", "kms:GenerateDataKey"),
}
# An instance's role session is named after the instance ID.
INSTANCE_SESSION = re.compile(r"i-[0-9a-f]{8,17}")
DENIED_CODES = {"ec2": "UnauthorizedOperation", "s3": "AccessDenied"}
JSON_SERVICES = {
    *("ssm", "logs", "kms", "lambda", "events", "ecr", "dynamodb", "fsx", "dlm", "resource-groups", "pricing"),
    *("service-quotas", "stepfunctions"),
}


class Authority:
    """Allows or denies calls, records denied calls in `denied_log`, and counts used and required permissions."""

    def __init__(self, identity: Identity, denied_log: Path, denied_actions: Sequence[str] = ()) -> None:
        self._identity = identity
        self._denied_actions = [one.lower() for one in denied_actions]
        self._denied_log = denied_log
        self._lock = threading.Lock()
        self._tag_readers: dict[str, Callable[[str], Mapping[str, str]]] = {}
        self.used: Counter[tuple[str, str]] = Counter()
        self.needed: Counter[tuple[str, str, str]] = Counter()

    def authorise(self, call: Call) -> None:
        """Check that a call is allowed.

        Raises:
            ApiError: The service's access-denied error, which names the principal, action, resource and reason.
        """
        if call.principal.kind == "service":
            return
        for access in accesses(call) if self._denied_actions else ():
            if any(fnmatchcase(access.action.lower(), pattern) for pattern in self._denied_actions):
                by_organization = "with an explicit deny in a service control policy"
                self._record(call.principal, access, by_organization)
                raise self._denied(call, access, by_organization)
        if call.principal.kind == "root":
            return
        needed = accesses(call) + self._kms_accesses(call)
        for access in needed:
            reason = self._denial_reason(call, access)
            if reason is not None:
                self._record(call.principal, access, reason)
                raise self._denied(call, access, reason)
        holder = call.principal.role_arn or call.principal.arn
        sole = [(holder, sid, access.action) for access in needed for sid in self._sole_grants(call, access)]
        with self._lock:
            self.used.update((holder, access.action) for access in needed)
            self.needed.update(sole)

    def usage(self) -> list[tuple[tuple[str, str], int]]:
        """Return the number of allowed calls, keyed by (role, action)."""
        with self._lock:
            return sorted(self.used.items())

    def needs(self) -> list[tuple[tuple[str, str, str], int]]:
        """Return how often a statement was the only one that allowed an action, keyed by (role, Sid, action)."""
        with self._lock:
            return sorted(self.needed.items())

    def _sole_grants(self, call: Call, access: Access) -> list[str]:
        """Return the Sid of the caller's only policy statement that allows an action, as a list of at most one item."""
        context = self._context(call, access)
        if verdict(resource_policies(access), access, context, call.principal) == "allow":
            return []
        identity_policies, _ = _identity_policies(call.principal)
        granting = grants(identity_policies, access, context)
        return [str(granting[0]["Sid"])] if len(granting) == 1 and "Sid" in granting[0] else []

    def _denial_reason(self, call: Call, access: Access) -> str | None:
        """Return the reason for denying an action on a resource, or None if it is allowed."""
        context = self._context(call, access)
        identity_policies, boundary = _identity_policies(call.principal)
        identity_verdict = verdict(identity_policies, access, context, None)
        attached = resource_policies(access)
        resource_verdict = verdict(attached, access, context, call.principal)
        if "deny" in (identity_verdict, resource_verdict):
            return (
                "with an explicit deny in "
                + ("an identity-based" if identity_verdict == "deny" else "a resource-based")
                + " policy"
            )
        if boundary is not None and verdict([boundary], access, context, None) != "allow":
            return "because no permissions boundary allows the action"
        session = self._identity.session(call.principal)
        if session is not None and session.policies and verdict(session.policies, access, context, None) != "allow":
            return "because no session policy allows the action"
        if access.action.startswith("kms:") and attached and resource_verdict == "silent":
            return "because no resource-based policy allows the action"
        if identity_verdict == "allow" or resource_verdict == "allow":
            return None
        return "because no identity-based policy allows the action"

    def _context(self, call: Call, access: Access) -> dict[str, Sequence[str]]:
        principal = call.principal
        context: dict[str, Sequence[str]] = {
            "aws:principalarn": [principal.role_arn or principal.arn],
            "aws:principalaccount": [principal.account],
            "aws:resourceaccount": [call.account],
            "aws:requestedregion": [call.region],
            "aws:sourceip": [call.source_address],
            "aws:securetransport": ["true"],
            "aws:currenttime": [time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())],
            "aws:epochtime": [str(int(time.time()))],
            "aws:userid": [self._identity.user_id(principal)],
            "aws:principaltype": ["AssumedRole" if principal.kind == "role" else "User"],
        }
        if principal.session_name and INSTANCE_SESSION.fullmatch(principal.session_name):
            arn = f"arn:aws:ec2:{call.region}:{principal.account}:instance/{principal.session_name}"
            context["ec2:sourceinstancearn"] = [arn]
        if principal.kind == "user":
            context["aws:username"] = [principal.arn.rpartition("/")[2]]
        for name, value in self._identity.principal_tags(principal).items():
            context[f"aws:principaltag/{name.lower()}"] = [value]
        for name, value in _request_tags(call).items():
            context[f"aws:requesttag/{name.lower()}"] = [value]
        tag_keys = [*_request_tags(call), *_removed_tag_keys(call)]
        if tag_keys:
            context["aws:tagkeys"] = tag_keys
        for name, value in self._resource_tags(call, access).items():
            for key in (f"aws:resourcetag/{name.lower()}", f"{call.service}:resourcetag/{name.lower()}"):
                context[key] = [value]
        context.update(access.context)
        return context

    def resource_tags_from(self, service: str, reader: Callable[[str], Mapping[str, str]]) -> None:
        """Register a function that reads a service's resource tags: `reader(resource_arn) -> mapping`."""
        self._tag_readers[service] = reader

    def _resource_tags(self, call: Call, access: Access) -> Mapping[str, str]:
        if access.resource == "*":
            return {}  # the call does not act on a resource
        if call.service == "ec2":
            return ec2_tags(call.region, access.resource)
        reader = self._tag_readers.get(call.service)
        return reader(access.resource) if reader is not None else {}

    def _kms_accesses(self, call: Call) -> list[Access]:
        """Return the KMS actions that S3 performs on the caller's behalf for buckets with a customer-managed key."""
        actions = KMS_FOR_S3.get(call.operation, ()) if call.service == "s3" else ()
        p = call.parameters
        needed: list[tuple[str, str | None]] = []
        for action in actions:
            if action == "kms:Decrypt" and call.operation == "GetObject":
                needed.append((action, object_key(p["Bucket"], p["Key"], p.get("VersionId"))))
            elif action == "kms:Decrypt" and call.operation in ("CopyObject", "UploadPartCopy"):
                needed.append((action, _source_key(p["CopySource"])))
            elif p.get("ServerSideEncryption") != "AES256":
                needed.append((action, p.get("SSEKMSKeyId") or bucket_key(p["Bucket"])))
        context = {"kms:viaservice": [f"s3.{call.region}.amazonaws.com"], "kms:calleraccount": [call.account]}
        return [Access(action, key_arn(call.region, key), context) for action, key in needed if key]

    def _record(self, principal: Principal, access: Access, reason: str) -> None:
        call = {"principal": principal.arn, "action": access.action, "resource": access.resource, "reason": reason}
        append_record(self._denied_log, call)

    def _denied(self, call: Call, access: Access, reason: str) -> ApiError:
        default = "AccessDeniedException" if call.service in JSON_SERVICES else "AccessDenied"
        code = DENIED_CODES.get(call.service, default)
        what = f"{access.action} on resource: {access.resource} {reason}"
        message = f"User: {call.principal.arn} is not authorized to perform: {what}"
        return ApiError(code, message, 400 if call.service in JSON_SERVICES else 403)


def _identity_policies(principal: Principal) -> tuple[list[Document], Document | None]:
    """Return a user's or role's policies and its permissions boundary."""
    holder = find_role(principal.role_arn) if principal.role_arn else None
    if holder is None:
        holder = next(user for user in iam_backend().users.values() if user.arn == principal.arn)
        inline = list(holder.policies.values())
        groups = [group for group in iam_backend().groups.values() if holder in group.users]
        inline += [d for group in groups for d in group.policies.values()]
        managed = [*holder.managed_policies.values(), *(p for g in groups for p in g.managed_policies.values())]
    else:
        inline = list(holder.policies.values())
        managed = list(holder.managed_policies.values())
    documents = [document(d) for d in inline] + [managed_document(policy) for policy in managed]
    boundary_arn = getattr(holder, "permissions_boundary_arn", None) or getattr(holder, "permissions_boundary", None)
    if isinstance(boundary_arn, Mapping):
        boundary_arn = boundary_arn.get("PermissionsBoundaryArn")
    if not boundary_arn:
        return documents, None
    return documents, managed_document(iam_backend().managed_policies[boundary_arn])


def _source_key(copied: str | Mapping[str, str]) -> str | None:
    """Return the KMS key that encrypts a copy's source object, or None."""
    if not isinstance(copied, str):
        return object_key(copied["Bucket"], copied["Key"], copied.get("VersionId"))
    name, _, version = unquote(copied).lstrip("/").partition("?versionId=")
    bucket_name, _, key = name.partition("/")
    return object_key(bucket_name, key, version or None)


def _removed_tag_keys(call: Call) -> list[str]:
    """Return the keys of tags that a call removes."""
    return [str(key) for key in call.parameters.get("TagKeys") or [] if isinstance(key, str)]


def _request_tags(call: Call) -> dict[str, str]:
    """Return the tags that a call sets."""
    tags = call.parameters.get("Tags") or call.parameters.get("TagSpecifications") or []
    if isinstance(tags, Mapping):
        return {str(k): str(v) for k, v in tags.items()}
    flat = [t for spec in tags for t in spec.get("Tags", [])] if tags and "ResourceType" in tags[0] else tags
    return {str(t["Key"]): str(t.get("Value", "")) for t in flat if isinstance(t, Mapping) and "Key" in t}
