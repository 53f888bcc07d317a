"""Identifies principals by access key: root, IAM users and role sessions."""

from __future__ import annotations

import json
import secrets
import string
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moto.backends import get_backend

from localcloud.api import ApiError, Credentials, Principal
from localcloud.iam.policy import Access, Document, verdict

ACCOUNT = "123456789012"
ROOT_ACCESS_KEY_ID = "AKIALOCALCLOUDROOT00"
CHAINED_SECONDS = 3600
_ALPHABET = string.ascii_uppercase + string.digits


@dataclass(frozen=True)
class Session:
    """A role session with its credentials, principal, tags and policies."""

    credentials: Credentials
    principal: Principal
    tags: Mapping[str, str]
    user_id: str
    policies: Sequence[Document] = ()


def _random(prefix: str, length: int) -> str:
    return prefix + "".join(secrets.choice(_ALPHABET) for _ in range(length - len(prefix)))


def iam_backend() -> Any:
    """Return moto's IAM store."""
    return get_backend("iam")[ACCOUNT]["aws"]


def find_role(role_arn: str) -> Any:
    """Return moto's role with this ARN.

    Raises:
        ApiError: NoSuchEntity if the role does not exist.
    """
    for role in iam_backend().roles.values():
        if role.arn == role_arn:
            return role
    raise ApiError("NoSuchEntity", f"The role with ARN {role_arn} cannot be found.", 404)


class Identity:
    """Holds all of the cloud's access keys and starts role sessions (api.CredentialIssuer)."""

    def __init__(self) -> None:
        self.root_secret = secrets.token_hex(20)
        self._sessions: dict[str, Session] = {}
        self._lock = threading.Lock()

    @property
    def root(self) -> Principal:
        """The root principal, which can make any call."""
        return Principal(f"arn:aws:iam::{ACCOUNT}:root", ACCOUNT, "root", access_key_id=ROOT_ACCESS_KEY_ID)

    def authenticate(self, access_key_id: str, session_token: str | None) -> Principal:
        """Return the principal that owns an access key.

        Raises:
            ApiError: InvalidClientTokenId for an unknown key, ExpiredToken for an expired session.
        """
        if access_key_id == ROOT_ACCESS_KEY_ID:
            return self.root
        session = self._sessions.get(access_key_id)
        if session is not None:
            if session_token != session.credentials.session_token:
                raise ApiError("InvalidClientTokenId", "The security token included in the request is invalid.", 403)
            if time.time() >= session.credentials.expires_unix_seconds:
                raise ApiError("ExpiredToken", "The security token included in the request is expired", 403)
            if not any(role.arn == session.principal.role_arn for role in iam_backend().roles.values()):
                # A deleted role's sessions are invalid.
                raise ApiError("InvalidClientTokenId", "The security token included in the request is invalid.", 403)
            return session.principal
        for user in iam_backend().users.values():
            if any(key.access_key_id == access_key_id and key.status == "Active" for key in user.access_keys):
                return Principal(user.arn, ACCOUNT, "user", access_key_id=access_key_id)
        raise ApiError("InvalidClientTokenId", "The security token included in the request is invalid.", 403)

    def secret(self, access_key_id: str) -> str:
        """Return the secret key for an access key that `authenticate` has accepted."""
        if access_key_id == ROOT_ACCESS_KEY_ID:
            return self.root_secret
        session = self._sessions.get(access_key_id)
        if session is not None:
            return session.credentials.secret_access_key
        keys = (key for user in iam_backend().users.values() for key in user.access_keys)
        return str(next(key.secret_access_key for key in keys if key.access_key_id == access_key_id))

    def session(self, principal: Principal) -> Session | None:
        """Return a principal's session, or None for root, users and services."""
        return self._sessions.get(principal.access_key_id or "")

    def user_id(self, principal: Principal) -> str:
        """Return a principal's unique ID, as in GetCallerIdentity and aws:userid."""
        session = self.session(principal)
        if session is not None:
            return session.user_id
        if principal.kind == "user":
            return next((str(user.id) for user in iam_backend().users.values() if user.arn == principal.arn), "")
        return principal.account

    def principal_tags(self, principal: Principal) -> Mapping[str, str]:
        """Return a user's or role's tags, overridden by any session tags."""
        tags: dict[str, str] = {}
        if principal.role_arn is not None:
            tags = {tag["Key"]: tag["Value"] for tag in find_role(principal.role_arn).tags}
        elif principal.kind == "user":
            tags = {
                tag["Key"]: tag["Value"] for tag in iam_backend().tagger.list_tags_for_resource(principal.arn)["Tags"]
            }
        session = self.session(principal)
        return {**tags, **(session.tags if session is not None else {})}

    def issue(
        self,
        role_arn: str,
        session_name: str,
        *,
        trusted_service: str,
        duration_seconds: int,
        source_arn: str | None = None,
    ) -> Credentials:
        """Start a role session for an AWS service, which acts for the resource `source_arn`."""
        service = Principal(trusted_service, ACCOUNT, "service")
        session = self.assume(role_arn, session_name, service, duration_seconds=duration_seconds, source_arn=source_arn)
        return session.credentials

    def assume(
        self,
        role_arn: str,
        session_name: str,
        caller: Principal,
        *,
        duration_seconds: int,
        tags: Mapping[str, str] | None = None,
        external_id: str | None = None,
        source_identity: str | None = None,
        policies: Sequence[Document] = (),
        source_arn: str | None = None,
    ) -> Session:
        """Start a role session if the role's trust policy allows the caller.

        Args:
            policies: Session policies. If there are any, one of them must also allow each action in the session.
            source_arn: The resource for which a service starts the session.

        Raises:
            ApiError: AccessDenied if the trust policy denies the caller; ValidationError if the duration exceeds
                the limit for the role or for role chaining.
        """
        try:
            role = find_role(role_arn)
        except ApiError as missing:
            # STS does not disclose whether a role exists.
            raise _access_denied(caller, role_arn) from missing
        _check_duration(role, caller, duration_seconds)
        context: dict[str, list[str]] = {
            "aws:principalarn": [caller.role_arn or caller.arn],
            "aws:principalaccount": [caller.account],
            "aws:sourceaccount": [caller.account],
            "sts:rolesessionname": [session_name],
        }
        context.update({f"aws:principaltag/{k.lower()}": [v] for k, v in self.principal_tags(caller).items()})
        context.update({f"aws:requesttag/{k.lower()}": [v] for k, v in (tags or {}).items()})
        if tags:
            context["aws:tagkeys"] = list(tags)
        if source_arn is not None:
            context["aws:sourcearn"] = [source_arn]
        if external_id is not None:
            context["sts:externalid"] = [external_id]
        if source_identity is not None:
            context["sts:sourceidentity"] = [source_identity]
        trust = role.assume_role_policy_document
        document = json.loads(trust) if isinstance(trust, str) else trust
        asked = ["sts:AssumeRole", *(["sts:TagSession"] if tags else [])]
        for action in [*asked, *(["sts:SetSourceIdentity"] if source_identity else [])]:
            # Trust policies do not have a Resource element. The role itself is the resource.
            # For "delegated", the gateway has already checked the caller's identity policies.
            if verdict([document], Access(action, role_arn, {}), context, caller) not in ("allow", "delegated"):
                raise _access_denied(caller, role_arn)
        credentials = Credentials(
            _random("ASIA", 20), secrets.token_hex(20), secrets.token_urlsafe(96), time.time() + duration_seconds
        )
        arn = f"arn:aws:sts::{ACCOUNT}:assumed-role/{role.name}/{session_name}"
        principal = Principal(arn, ACCOUNT, "role", role_arn, credentials.access_key_id, session_name)
        session = Session(credentials, principal, dict(tags or {}), f"{role.id}:{session_name}", policies)
        with self._lock:
            self._sessions[credentials.access_key_id] = session
        return session


def _check_duration(role: Any, caller: Principal, seconds: int) -> None:
    """Check that a session's duration is within the role's limit, and within one hour if a role assumes another role.

    Source: https://docs.aws.amazon.com/IAM/latest/UserGuide/id_roles_terms-and-concepts.html (role chaining; 2026-11).
    """
    longest = int(role.max_session_duration or CHAINED_SECONDS)
    if caller.kind == "service":
        return
    if seconds > longest:
        raise ApiError(
            "ValidationError",
            f"The requested DurationSeconds exceeds the MaxSessionDuration set for this role: {seconds} > {longest}",
        )
    if caller.kind == "role" and seconds > CHAINED_SECONDS:
        raise ApiError(
            "ValidationError",
            "The requested DurationSeconds exceeds the 1 hour session limit for roles assumed by role chaining",
        )


def _access_denied(caller: Principal, role_arn: str) -> ApiError:
    return ApiError(
        "AccessDenied", f"{caller.arn} is not authorized to perform: sts:AssumeRole on resource: {role_arn}", 403
    )
