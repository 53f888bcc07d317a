"""Security Token Service (STS): caller identity and role sessions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from localcloud.api import ApiError, Call, Handler, Service
from localcloud.iam.identity import Identity, iam_backend
from localcloud.iam.policy import Document
from localcloud.iam.stored import document, managed_document

DEFAULT_SECONDS = 3600
# Source: https://docs.aws.amazon.com/STS/latest/APIReference/API_AssumeRole.html (2026-11).
SESSION_NAME = re.compile(r"[\w+=,.@-]{2,64}", re.ASCII)


class SecurityTokenService(Service):
    """GetCallerIdentity and AssumeRole (api.Service); moto implements STS's other operations."""

    name = "sts"

    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers, keyed by operation."""
        return {"GetCallerIdentity": self._caller, "AssumeRole": self._assume}

    def _caller(self, call: Call) -> Mapping[str, Any]:
        principal = call.principal
        return {"UserId": self._identity.user_id(principal), "Account": principal.account, "Arn": principal.arn}

    def _assume(self, call: Call) -> Mapping[str, Any]:
        p = call.parameters
        name, seconds = str(p["RoleSessionName"]), int(p.get("DurationSeconds", DEFAULT_SECONDS))
        if not 900 <= seconds <= 43200:
            raise ApiError("ValidationError", f"DurationSeconds {seconds}: must be from 900 to 43200")
        if not SESSION_NAME.fullmatch(name):
            raise ApiError("ValidationError", f"RoleSessionName {name!r}: must be 2 to 64 letters, digits and _+=,.@-")
        session = self._identity.assume(
            str(p["RoleArn"]),
            name,
            call.principal,
            duration_seconds=seconds,
            tags={t["Key"]: t["Value"] for t in p.get("Tags", [])},
            external_id=p.get("ExternalId"),
            source_identity=p.get("SourceIdentity"),
            policies=_session_policies(p),
        )
        credentials = session.credentials
        return {
            "Credentials": {
                "AccessKeyId": credentials.access_key_id,
                "SecretAccessKey": credentials.secret_access_key,
                "SessionToken": credentials.session_token,
                "Expiration": datetime.fromtimestamp(credentials.expires_unix_seconds, tz=UTC),
            },
            "AssumedRoleUser": {"AssumedRoleId": session.user_id, "Arn": session.principal.arn},
            "PackedPolicySize": 0,
        }


def _session_policies(p: Mapping[str, Any]) -> list[Document]:
    """Return an AssumeRole call's session policies.

    Raises:
        ApiError: MalformedPolicyDocument for an invalid policy, NoSuchEntity for a missing managed policy.
    """
    found: list[Document] = []
    if p.get("Policy"):
        try:
            found.append(document(p["Policy"]))
        except json.JSONDecodeError as error:
            raise ApiError("MalformedPolicyDocument", f"Policy: {error}") from error
    for one in p.get("PolicyArns", []):
        policy = iam_backend().managed_policies.get(one["arn"])
        if policy is None:
            raise ApiError("NoSuchEntity", f"Policy {one['arn']} does not exist or is not attachable.", 404)
        found.append(managed_document(policy))
    return found
