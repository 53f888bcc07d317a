"""Who signs calls: the root principal, IAM users' access keys, and role sessions.

Signatures are not recomputed: an access key that this cloud issued, with its session token, is the proof of identity.
"""

from __future__ import annotations

import json
import secrets
import string
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moto.backends import get_backend

from localcloud.api import ApiError, Credentials, Principal
from localcloud.iam.policy import Access, verdict

ACCOUNT = "123456789012"
ROOT_ACCESS_KEY_ID = "AKIALOCALCLOUDROOT00"
_ALPHABET = string.ascii_uppercase + string.digits


@dataclass(frozen=True)
class Session:
    """A role session: its credentials, who it is, and its session tags."""

    credentials: Credentials
    principal: Principal
    tags: Mapping[str, str]


def _random(prefix: str, length: int) -> str:
    return prefix + "".join(secrets.choice(_ALPHABET) for _ in range(length - len(prefix)))


def iam_backend() -> Any:
    """Return moto's store of users, roles and policies."""
    return get_backend("iam")[ACCOUNT]["aws"]


def find_role(role_arn: str) -> Any:
    """Return moto's role with this ARN.

    Raises:
        ApiError: NoSuchEntity.
    """
    for role in iam_backend().roles.values():
        if role.arn == role_arn:
            return role
    raise ApiError("NoSuchEntity", f"The role with ARN {role_arn} cannot be found.", 404)


class Identity:
    """Knows every access key of the cloud; starts role sessions (api.CredentialIssuer)."""

    def __init__(self) -> None:
        self.root_secret = secrets.token_hex(20)
        self._sessions: dict[str, Session] = {}
        self._lock = threading.Lock()

    @property
    def root(self) -> Principal:
        """The account's root: every call passes."""
        return Principal(f"arn:aws:iam::{ACCOUNT}:root", ACCOUNT, "root", access_key_id=ROOT_ACCESS_KEY_ID)

    def authenticate(self, access_key_id: str, session_token: str | None) -> Principal:
        """Return who an access key belongs to.

        Raises:
            ApiError: InvalidClientTokenId for an unknown key, ExpiredToken for an old session.
        """
        if access_key_id == ROOT_ACCESS_KEY_ID:
            return self.root
        session = self._sessions.get(access_key_id)
        if session is not None:
            if session_token != session.credentials.session_token:
                raise ApiError("InvalidClientTokenId", "The security token included in the request is invalid.", 403)
            if time.time() >= session.credentials.expires_unix_seconds:
                raise ApiError("ExpiredToken", "The security token included in the request is expired", 403)
            return session.principal
        for user in iam_backend().users.values():
            if any(key.access_key_id == access_key_id and key.status == "Active" for key in user.access_keys):
                return Principal(user.arn, ACCOUNT, "user", access_key_id=access_key_id)
        raise ApiError("InvalidClientTokenId", "The security token included in the request is invalid.", 403)

    def session_tags(self, principal: Principal) -> Mapping[str, str]:
        """Return the tags that a session was started with."""
        session = self._sessions.get(principal.access_key_id or "")
        return session.tags if session is not None else {}

    def issue(self, role_arn: str, session_name: str, *, trusted_service: str, duration_seconds: int) -> Credentials:
        """Start a session of a role for an AWS service, when the role's trust policy admits it."""
        service = Principal(trusted_service, ACCOUNT, "service")
        return self.assume(role_arn, session_name, service, duration_seconds=duration_seconds)[0].credentials

    def assume(
        self,
        role_arn: str,
        session_name: str,
        caller: Principal,
        *,
        duration_seconds: int,
        tags: Mapping[str, str] | None = None,
        external_id: str | None = None,
    ) -> tuple[Session, str]:
        """Start a session of a role for a caller that its trust policy admits; return it and the assumed role's id.

        Raises:
            ApiError: AccessDenied, NoSuchEntity.
        """
        try:
            role = find_role(role_arn)
        except ApiError as missing:
            # STS does not tell a caller whether a role exists.
            raise _may_not_assume(caller, role_arn) from missing
        context: dict[str, list[str]] = {"aws:principalarn": [caller.role_arn or caller.arn]}
        context["aws:principalaccount"] = context["aws:sourceaccount"] = [caller.account]
        if external_id is not None:
            context["sts:externalid"] = [external_id]
        trust = role.assume_role_policy_document
        document = json.loads(trust) if isinstance(trust, str) else trust
        for action in ["sts:AssumeRole", *(["sts:TagSession"] if tags else [])]:
            # Trust policies have no Resource element: the role itself is the resource.
            # "delegated": the gateway has asked the caller's identity policies before.
            if verdict([document], Access(action, role_arn, {}), context, caller) not in ("allow", "delegated"):
                raise _may_not_assume(caller, role_arn)
        credentials = Credentials(
            _random("ASIA", 20), secrets.token_hex(20), secrets.token_urlsafe(96), time.time() + duration_seconds
        )
        name = role.name
        arn = f"arn:aws:sts::{ACCOUNT}:assumed-role/{name}/{session_name}"
        principal = Principal(arn, ACCOUNT, "role", role_arn, credentials.access_key_id, session_name)
        session = Session(credentials, principal, dict(tags or {}))
        with self._lock:
            self._sessions[credentials.access_key_id] = session
        return session, f"{role.id}:{session_name}"


def _may_not_assume(caller: Principal, role_arn: str) -> ApiError:
    return ApiError(
        "AccessDenied", f"{caller.arn} is not authorized to perform: sts:AssumeRole on resource: {role_arn}", 403
    )
