"""boto3 clients for this cloud that sign as root or as a role, or call moto directly."""

from __future__ import annotations

import secrets
import threading
import time
from functools import cache
from typing import Any

import boto3
from botocore.config import Config

from localcloud.iam.identity import ACCOUNT, ROOT_ACCESS_KEY_ID, Identity
from localcloud.tokens import power_token

DIRECT_HEADER = "X-Localcloud-Direct"
SESSION_SECONDS = 3600
RENEW_SECONDS = 300
# One shared session, since each new session reloads the service models, which takes longer than most calls. Creating
# clients from one session is not thread-safe.
_session = cache(boto3.session.Session)
_creating = threading.Lock()


class LocalClients:
    """Cache of boto3 clients (api.Clients)."""

    def __init__(self, endpoint_url: str, region: str, identity: Identity) -> None:
        self.endpoint_url = endpoint_url
        self.region = region
        self.account = ACCOUNT
        self.direct_secret = secrets.token_hex(16)
        self._identity = identity
        self._cache: dict[tuple[str, str, str | None], tuple[float, Any]] = {}

    def power_token(self, instance_id: str) -> str:
        """Return the token that lets an instance power itself off."""
        return power_token(self._identity.root_secret, instance_id)

    def client(self, service: str, *, role_arn: str | None = None, region: str | None = None) -> Any:
        """Return a boto3 client that signs as root, or as a session of `role_arn` started for CloudFormation."""
        return self._cached(service, region or self.region, role_arn)

    def direct(self, service: str, *, region: str | None = None) -> Any:
        """Return a boto3 client that calls moto directly, bypassing IAM and the embedded cloud's services."""
        return self._cached(service, region or self.region, "direct")

    def _cached(self, service: str, region: str, signer: str | None) -> Any:
        key = (service, region, signer)
        with _creating:
            expires, client = self._cache.get(key, (0.0, None))
            if client is None or time.time() > expires - RENEW_SECONDS:
                expires, client = self._create(service, region, signer)
                self._cache[key] = (expires, client)
            return client

    def _create(self, service: str, region: str, signer: str | None) -> tuple[float, Any]:
        keys = {"aws_access_key_id": ROOT_ACCESS_KEY_ID, "aws_secret_access_key": self._identity.root_secret}
        expires = float("inf")
        if signer not in (None, "direct"):
            assert signer is not None
            session = self._identity.issue(
                signer,
                "AWSCloudFormation",
                trusted_service="cloudformation.amazonaws.com",
                duration_seconds=SESSION_SECONDS,
            )
            keys = {
                "aws_access_key_id": session.access_key_id,
                "aws_secret_access_key": session.secret_access_key,
                "aws_session_token": session.session_token,
            }
            expires = session.expires_unix_seconds
        config = Config(
            retries={"total_max_attempts": 1},
            connect_timeout=5,
            read_timeout=60,
            max_pool_connections=32,
            s3={"addressing_style": "path"},
            signature_version="v4" if service != "s3" else "s3v4",
            inject_host_prefix=False,
        )
        client = _session().client(service, region_name=region, endpoint_url=self.endpoint_url, config=config, **keys)
        if signer == "direct":
            client.meta.events.register("before-send", self._mark_direct)
        return expires, client

    def _mark_direct(self, request: Any, **_: Any) -> None:
        request.headers[DIRECT_HEADER] = self.direct_secret
