"""boto3 clients that talk to this cloud: as root, as a role, or straight to moto."""

from __future__ import annotations

import secrets
import threading
import time
from functools import cache
from typing import Any

import boto3
from botocore.config import Config

from localcloud.identity import ACCOUNT, ROOT_ACCESS_KEY_ID, Identity

DIRECT_HEADER = "X-Localcloud-Direct"
SESSION_SECONDS = 3600
RENEW_SECONDS = 300
# One session for all: a session reads each service's model anew, which takes longer than most calls; and to make
# clients of one session is not thread-safe.
_session = cache(boto3.session.Session)
_making = threading.Lock()


class LocalClients:
    """Makes and keeps boto3 clients (api.Clients)."""

    def __init__(self, endpoint_url: str, region: str, identity: Identity) -> None:
        self.endpoint_url = endpoint_url
        self.region = region
        self.account = ACCOUNT
        self.direct_secret = secrets.token_hex(16)
        self._identity = identity
        self._kept: dict[tuple[str, str, str | None], tuple[float, Any]] = {}

    def client(self, service: str, *, role_arn: str | None = None, region: str | None = None) -> Any:
        """Return a boto3 client signed by root, or by a session of `role_arn` started for CloudFormation."""
        return self._keep(service, region or self.region, role_arn)

    def direct(self, service: str, *, region: str | None = None) -> Any:
        """Return a boto3 client that reaches moto past IAM and past the local cloud's own services."""
        return self._keep(service, region or self.region, "direct")

    def _keep(self, service: str, region: str, who: str | None) -> Any:
        key = (service, region, who)
        with _making:
            expires, client = self._kept.get(key, (0.0, None))
            if client is None or time.time() > expires - RENEW_SECONDS:
                expires, client = self._make(service, region, who)
                self._kept[key] = (expires, client)
            return client

    def _make(self, service: str, region: str, who: str | None) -> tuple[float, Any]:
        keys = {"aws_access_key_id": ROOT_ACCESS_KEY_ID, "aws_secret_access_key": self._identity.root_secret}
        expires = float("inf")
        if who not in (None, "direct"):
            assert who is not None
            session = self._identity.issue(
                who,
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
        if who == "direct":
            client.meta.events.register("before-send", self._mark_direct)
        return expires, client

    def _mark_direct(self, request: Any, **_: Any) -> None:
        request.headers[DIRECT_HEADER] = self.direct_secret
