"""The whole cloud in one process: the server, the gateway, and the services behind it."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path

from moto.moto_api._internal.models import moto_api_backend

from localcloud.api import Service
from localcloud.clients import LocalClients
from localcloud.cloudformation.service import CloudFormationService
from localcloud.compute import ComputeServices
from localcloud.functions import FunctionService, LocalEventBus
from localcloud.gateway import Gateway
from localcloud.iam.authority import Authority
from localcloud.identity import Identity
from localcloud.public_parameters import PublicParameters
from localcloud.security_token import SecurityTokenService
from localcloud.server import ADDRESS, listen
from localcloud.storage.dlm_service import DlmService
from localcloud.storage.fsx_service import FsxService

logger = logging.getLogger(__name__)

MANAGED_POLICIES = "MOTO_IAM_LOAD_MANAGED_POLICIES"


class LocalCloud:
    """An AWS account on this machine.

    Args:
        state_directory: Where instances, functions, logs and records live; made when absent.
        region: The region that root's clients and the account's services start in.
        port: Preferred port on 127.0.0.1; another is taken when it is busy. 0 takes any.
    """

    def __init__(self, state_directory: Path, *, region: str = "us-east-1", port: int = 0) -> None:
        self.state_directory = state_directory.resolve()
        self.state_directory.mkdir(parents=True, exist_ok=True)
        self.region = region
        # moto keeps its stores per process: a second cloud in this process starts empty as well.
        moto_api_backend.reset()
        # moto reads it when its IAM store is made: AWS's managed policies exist in every account.
        os.environ[MANAGED_POLICIES] = "true"
        self._server = listen(port)
        self.endpoint_url = f"http://{ADDRESS}:{self._server.bind_addr[1]}"
        self.identity = Identity()
        self.clients = LocalClients(self.endpoint_url, region, self.identity)
        self.authority = Authority(self.identity, self.state_directory / "calls.jsonl")
        self.authority.resource_tags_from("autoscaling", self._group_tags)
        self.services = self._build_services()
        records = self.state_directory / "records.jsonl"
        gateway = Gateway(self.identity, self.authority, self.clients, records)
        for service in self.services:
            gateway.add(service)
        self._server.wsgi_app = gateway
        self._thread = threading.Thread(target=self._server.serve, name="gateway", daemon=True)

    def _build_services(self) -> list[Service]:
        functions = FunctionService(self.clients, self.identity, self.state_directory)
        bus = LocalEventBus(self.clients, functions)
        compute = ComputeServices(self.clients, bus, self.identity, self.state_directory)
        cloudformation = CloudFormationService(self.clients)
        stores: list[Service] = [FsxService(self.clients), DlmService(self.clients)]
        parameters = PublicParameters(self.clients)
        own: list[Service] = [SecurityTokenService(self.identity), parameters, functions, bus, cloudformation]
        return [*own, *stores, *compute.services()]

    def _group_tags(self, group_arn: str) -> Mapping[str, str]:
        """Return the tags of an Auto Scaling group, for conditions on autoscaling:ResourceTag."""
        name = group_arn.rpartition("/")[2]
        groups = self.clients.client("autoscaling", region=group_arn.split(":")[3])
        found = groups.describe_tags(Filters=[{"Name": "auto-scaling-group", "Values": [name]}])["Tags"]
        return {tag["Key"]: tag.get("Value", "") for tag in found}

    def start(self) -> None:
        """Answer requests from now on."""
        self._thread.start()
        logger.info("listening on %s", self.endpoint_url)

    def close(self) -> None:
        """End every service, process and thread of the cloud."""
        for service in reversed(self.services):
            service.close()
        self._server.stop()
        self._thread.join(timeout=5)
        os.environ.pop(MANAGED_POLICIES, None)
