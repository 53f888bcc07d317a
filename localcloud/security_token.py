"""The security token service (STS): who am I, and sessions of roles."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from localcloud.api import ApiError, Call, Handler, Observer
from localcloud.identity import Identity

DEFAULT_SECONDS = 3600


class SecurityTokenService:
    """Answers GetCallerIdentity and AssumeRole (api.Service); the other operations of STS go to moto."""

    name = "sts"

    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers by operation."""
        return {"GetCallerIdentity": self._caller, "AssumeRole": self._assume}

    def observers(self) -> Mapping[tuple[str, str], Observer]:
        """Observe nothing."""
        return {}

    def http(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Answer nothing unsigned."""
        return 404, b""

    def close(self) -> None:
        """Nothing runs."""

    def _caller(self, call: Call) -> Mapping[str, Any]:
        principal = call.principal
        user_id = f"{principal.access_key_id}:{principal.session_name}" if principal.session_name else principal.account
        return {"UserId": user_id, "Account": principal.account, "Arn": principal.arn}

    def _assume(self, call: Call) -> Mapping[str, Any]:
        p = call.parameters
        seconds = int(p.get("DurationSeconds", DEFAULT_SECONDS))
        if not 900 <= seconds <= 43200:
            raise ApiError("ValidationError", f"DurationSeconds {seconds}: between 900 and 43200")
        session, role_id = self._identity.assume(
            str(p["RoleArn"]),
            str(p["RoleSessionName"]),
            call.principal,
            duration_seconds=seconds,
            tags={t["Key"]: t["Value"] for t in p.get("Tags", [])},
            external_id=p.get("ExternalId"),
        )
        credentials = session.credentials
        return {
            "Credentials": {
                "AccessKeyId": credentials.access_key_id,
                "SecretAccessKey": credentials.secret_access_key,
                "SessionToken": credentials.session_token,
                "Expiration": datetime.fromtimestamp(credentials.expires_unix_seconds, tz=timezone.utc),
            },
            "AssumedRoleUser": {"AssumedRoleId": role_id, "Arn": session.principal.arn},
            "PackedPolicySize": 0,
        }
