"""boto3 clients with bounds: a missing endpoint ends in an error within seconds, never in a hang.

Region from the node document; endpoints and credentials are found by boto3 itself (AWS_ENDPOINT_URL, instance role).
"""

from __future__ import annotations

import threading
from typing import Any

import boto3
import botocore.session
from botocore.config import Config

CONNECT_TIMEOUT_SECONDS = 3
READ_TIMEOUT_SECONDS = 10
ATTEMPTS = 3


class Aws:
    """Makes and keeps one client per service; the clients may be used from any thread."""

    def __init__(self, region: str) -> None:
        core = botocore.session.Session()
        # One attempt of one second is botocore's default, and a busy machine misses it.
        core.set_config_variable("metadata_service_num_attempts", 4)
        core.set_config_variable("metadata_service_timeout", 2)
        self._session = boto3.Session(botocore_session=core, region_name=region)
        self._clients: dict[str, Any] = {}
        self._lock = threading.Lock()

    def client(self, service: str) -> Any:
        """Return the client of a service ("s3", "ssm", "logs", "autoscaling")."""
        with self._lock:
            if service not in self._clients:
                config = Config(
                    connect_timeout=CONNECT_TIMEOUT_SECONDS,
                    read_timeout=READ_TIMEOUT_SECONDS,
                    retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
                    max_pool_connections=20,
                )
                self._clients[service] = self._session.client(service, config=config)
            return self._clients[service]
