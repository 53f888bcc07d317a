"""Provides role sessions for a service, renewed shortly before they expire."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import boto3
import botocore.session
from botocore.config import Config

from localcloud.api import Clients, CredentialIssuer, Credentials

SESSION_SECONDS = 3600
RENEWAL_MARGIN_SECONDS = 300


class RoleSessions:
    """Provides credentials and clients for the roles of functions or state machines.

    A function process receives its credentials once, in its environment. If its session would expire during an
    invocation, a new process replaces it.
    """

    def __init__(
        self,
        clients: Clients,
        issuer: CredentialIssuer,
        *,
        service: str = "lambda.amazonaws.com",
        read_timeout_seconds: float = 10.0,
        attempts: int = 2,
    ) -> None:
        """Create the sessions. `service` is the principal that the roles trust; the others configure its clients."""
        self._clients = clients
        self._issuer = issuer
        self._service = service
        self._config = Config(
            connect_timeout=2, read_timeout=read_timeout_seconds, retries={"total_max_attempts": attempts}
        )
        self._lock = threading.Lock()
        self._credentials: dict[tuple[str, str], Credentials] = {}
        self._boto_clients: dict[tuple[str, str, str], tuple[Credentials, Any]] = {}

    def credentials(
        self, role_arn: str, session_name: str, needed_seconds: float = 0.0, *, source_arn: str | None = None
    ) -> Credentials:
        """Return a session that is valid for at least `needed_seconds` plus the margin.

        Raises:
            ApiError: The role does not exist or does not trust the service.
        """
        with self._lock:
            return self._current(role_arn, session_name, needed_seconds, source_arn)

    def client(self, service: str, role_arn: str, session_name: str, *, source_arn: str | None = None) -> Any:
        """Return a boto3 client that uses the role's session.

        Raises:
            ApiError: The role does not exist or does not trust the service.
        """
        with self._lock:
            credentials = self._current(role_arn, session_name, 0.0, source_arn)
            known = self._boto_clients.get((service, role_arn, session_name))
            if known is not None and known[0] is credentials:
                return known[1]
            client = boto3.session.Session(botocore_session=_isolated_session()).client(
                service,
                region_name=self._clients.region,
                endpoint_url=self._clients.endpoint_url,
                aws_access_key_id=credentials.access_key_id,
                aws_secret_access_key=credentials.secret_access_key,
                aws_session_token=credentials.session_token,
                config=self._config,
            )
            self._boto_clients[service, role_arn, session_name] = (credentials, client)
            return client

    def _current(self, role_arn: str, session_name: str, needed_seconds: float, source_arn: str | None) -> Credentials:
        known = self._credentials.get((role_arn, session_name))
        if known is not None and outlasts(known, needed_seconds):
            return known
        issued = self._issuer.issue(
            role_arn,
            session_name,
            trusted_service=self._service,
            duration_seconds=SESSION_SECONDS,
            source_arn=source_arn,
        )
        self._credentials[role_arn, session_name] = issued
        return issued


def _isolated_session() -> botocore.session.Session:
    """Return a session that ignores the profile and configuration files of the embedded cloud's user."""
    nothing = {
        "profile": (None, None, None, None),
        "config_file": (None, None, os.devnull, None),
        "credentials_file": (None, None, os.devnull, None),
    }
    return botocore.session.Session(session_vars=nothing)


def outlasts(credentials: Credentials, needed_seconds: float) -> bool:
    """Return True if a session is valid for `needed_seconds` plus the margin from now."""
    return credentials.expires_unix_seconds - time.time() > needed_seconds + RENEWAL_MARGIN_SECONDS
