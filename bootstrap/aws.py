"""boto3 clients with bounds: a missing endpoint ends in an error within seconds, never in a hang.

Region from the node document; endpoints and credentials are found by boto3 itself (AWS_ENDPOINT_URL, instance role).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import boto3
import botocore.session
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
from botocore.parsers import ResponseParserError

AWS_ERRORS = (BotoCoreError, ClientError, ResponseParserError)
"""What a call may raise: a refusal, no answer, or (a proxy's error page, say) an answer that is not AWS's."""

CONNECT_TIMEOUT_SECONDS = 3
READ_TIMEOUT_SECONDS = 10
IMPATIENT_READ_TIMEOUT_SECONDS = 4
ATTEMPTS = 3


class Aws:
    """Makes and keeps one client per service; the clients may be used from any thread."""

    def __init__(self, region: str) -> None:
        core = botocore.session.Session()
        # One attempt of one second is botocore's default, and a busy machine misses it.
        core.set_config_variable("metadata_service_num_attempts", 4)
        core.set_config_variable("metadata_service_timeout", 2)
        self._session = boto3.Session(botocore_session=core, region_name=region)
        self._clients: dict[tuple[str, bool], Any] = {}
        self._lock = threading.Lock()

    def client(self, service: str, *, impatient: bool = False) -> Any:
        """Return the client of a service ("s3", "ssm", "logs", "autoscaling").

        An `impatient` one gives up sooner: for small requests that are made again soon anyway.
        """
        with self._lock:
            if (service, impatient) not in self._clients:
                config = Config(
                    connect_timeout=CONNECT_TIMEOUT_SECONDS,
                    read_timeout=IMPATIENT_READ_TIMEOUT_SECONDS if impatient else READ_TIMEOUT_SECONDS,
                    retries={"mode": "standard", "total_max_attempts": 2 if impatient else ATTEMPTS},
                    max_pool_connections=20,
                    # Acceleration pays between regions, and a node is in its buckets' region, whatever the image's
                    # configuration says. Source (2026-11):
                    # https://docs.aws.amazon.com/AmazonS3/latest/userguide/transfer-acceleration.html
                    s3={"use_accelerate_endpoint": False},
                )
                self._clients[service, impatient] = self._session.client(service, config=config)
            return self._clients[service, impatient]

    def signed_get(self, bucket: str, key: str, headers: Mapping[str, str]) -> tuple[str, dict[str, str]]:
        """Return URL and headers of a request for an object, signed for some minutes, that any HTTP client may make.

        Raises:
            BotoCoreError: There are no credentials, or they cannot be renewed.
        """
        client = self.client("s3")
        scheme, _, host = client.meta.endpoint_url.rstrip("/").partition("://")
        # As boto3 has it, but for its presigned URLs, which name no region: other servers know no names of buckets.
        place = f"{bucket}.{host}" if ".amazonaws.com" in host and "." not in bucket else f"{host}/{bucket}"
        url = f"{scheme}://{place}/{quote(key, safe='/~')}"
        credentials = self._session.get_credentials()
        if credentials is None:
            raise NoCredentialsError
        request = AWSRequest("GET", url, headers=dict(headers))
        S3SigV4Auth(credentials.get_frozen_credentials(), "s3", client.meta.region_name).add_auth(request)
        return url, dict(request.headers.items())
