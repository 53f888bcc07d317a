"""boto3 clients with timeouts, so that calls to a missing endpoint fail within seconds instead of hanging.

The region comes from the node document. boto3 finds endpoints and credentials (AWS_ENDPOINT_URL, instance role).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import quote

import boto3
import botocore.session
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
from botocore.parsers import ResponseParserError

AWS_ERRORS = (BotoCoreError, ClientError, ResponseParserError)
"""Errors that a call can raise: AWS refused the request or did not respond, or a proxy responded in its place."""

DEPLOYMENT_TAG = "trainstack:deployment"
"""Tag with a resource's deployment name. `stacks` sets it on every resource, and the node's policy checks it."""
CONNECT_TIMEOUT_SECONDS = 3
Patience = Literal["low", "normal", "high"]
"""`low`: for small requests that the caller will repeat anyway. `high`: for requests during boot, because a failed boot
terminates the instance. While many nodes start, S3 may return 503 (Slow Down), and DNS may not respond yet."""
READ_TIMEOUT_SECONDS = 10
_READ_TIMEOUTS: dict[Patience, int] = {"low": 4, "normal": READ_TIMEOUT_SECONDS, "high": READ_TIMEOUT_SECONDS}
ATTEMPTS: dict[Patience, int] = {"low": 2, "normal": 3, "high": 8}
"""Number of attempts. botocore pauses for a random time of up to 1, 2, 4, 8, 16 and then 20 seconds between them.
Source (2026-11):
https://docs.aws.amazon.com/sdkref/latest/guide/feature-retry-behavior.html (standard mode)."""


class Aws:
    """Creates and caches one client per service. This class and the clients are thread-safe."""

    def __init__(self, region: str) -> None:
        core = botocore.session.Session()
        # botocore's default is one attempt of one second, which fails on a busy machine.
        core.set_config_variable("metadata_service_num_attempts", 4)
        core.set_config_variable("metadata_service_timeout", 2)
        self._session = boto3.Session(botocore_session=core, region_name=region)
        self._clients: dict[tuple[str, Patience], Any] = {}
        self._lock = threading.Lock()

    def client(self, service: str, *, patience: Patience = "normal") -> Any:
        """Return the client for a service ("s3", "ssm", "logs", "autoscaling")."""
        with self._lock:
            if (service, patience) not in self._clients:
                config = Config(
                    connect_timeout=CONNECT_TIMEOUT_SECONDS,
                    read_timeout=_READ_TIMEOUTS[patience],
                    retries={"mode": "standard", "total_max_attempts": ATTEMPTS[patience]},
                    max_pool_connections=20,
                    # Transfer acceleration helps only across regions, and the buckets are in the node's region. This
                    # setting overrides the image's AWS configuration. Source (2026-11):
                    # https://docs.aws.amazon.com/AmazonS3/latest/userguide/transfer-acceleration.html
                    s3={"use_accelerate_endpoint": False},
                )
                self._clients[service, patience] = self._session.client(service, config=config)
            return self._clients[service, patience]

    def signed_get(self, bucket: str, key: str, headers: Mapping[str, str]) -> tuple[str, dict[str, str]]:
        """Return the URL and headers of a signed GET request for an object. The signature is valid for a few minutes.

        Raises:
            BotoCoreError: There are no credentials, or they cannot be renewed.
        """
        client = self.client("s3")
        scheme, _, host = client.meta.endpoint_url.rstrip("/").partition("://")
        # Use the host name that boto3 uses for calls. (Its presigned URLs omit the region.) Only AWS supports bucket
        # names in host names.
        address = f"{bucket}.{host}" if ".amazonaws.com" in host and "." not in bucket else f"{host}/{bucket}"
        url = f"{scheme}://{address}/{quote(key, safe='/~')}"
        credentials = self._session.get_credentials()
        if credentials is None:
            raise NoCredentialsError
        request = AWSRequest("GET", url, headers=dict(headers))
        S3SigV4Auth(credentials.get_frozen_credentials(), "s3", client.meta.region_name).add_auth(request)
        return url, dict(request.headers.items())
