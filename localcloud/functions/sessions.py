"""Provides functions' role sessions, issued for lambda.amazonaws.com and renewed shortly before they expire."""

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
    """Provides credentials and clients for functions' roles.

    A function process receives its credentials once, in its environment. If its session would expire during an
    invocation, a new process replaces it.
    """

    def __init__(self, clients: Clients, issuer: CredentialIssuer) -> None:
        self._clients = clients
        self._issuer = issuer
        self._lock = threading.Lock()
        self._credentials: dict[tuple[str, str], Credentials] = {}
        self._boto_clients: dict[tuple[str, str, str], tuple[Credentials, Any]] = {}

    def credentials(self, role_arn: str, session_name: str, needed_seconds: float = 0.0) -> Credentials:
        """Return a session that is valid for at least `needed_seconds` plus the margin.

        Raises:
            ApiError: The role does not exist or does not trust Lambda.
        """
        with self._lock:
            return self._current(role_arn, session_name, needed_seconds)

    def client(self, service: str, role_arn: str, session_name: str) -> Any:
        """Return a boto3 client that uses the role's session.

        Raises:
            ApiError: The role does not exist or does not trust Lambda.
        """
        with self._lock:
            credentials = self._current(role_arn, session_name, 0.0)
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
                config=Config(connect_timeout=2, read_timeout=10, retries={"total_max_attempts": 2}),
            )
            self._boto_clients[service, role_arn, session_name] = (credentials, client)
            return client

    def _current(self, role_arn: str, session_name: str, needed_seconds: float) -> Credentials:
        known = self._credentials.get((role_arn, session_name))
        if known is not None and outlasts(known, needed_seconds):
            return known
        issued = self._issuer.issue(
            role_arn, session_name, trusted_service="lambda.amazonaws.com", duration_seconds=SESSION_SECONDS
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
