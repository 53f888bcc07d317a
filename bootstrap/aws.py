"""boto3 clients with bounds: a missing endpoint ends in an error within seconds, never in a hang.

Region from the node document; endpoints and credentials are found by boto3 itself (AWS_ENDPOINT_URL, instance role).
"""

from __future__ import annotations

import threading
from typing import Any

import boto3
import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
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
                )
                self._clients[service, impatient] = self._session.client(service, config=config)
            return self._clients[service, impatient]
