"""Runs the embedded cloud's HTTP server, gateway and services in one process."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from moto.moto_api._internal.models import moto_api_backend

from localcloud.account.account_file import AccountDescription
from localcloud.account.account_limits import AccountConcurrency, AccountNetworks, create_vpcs
from localcloud.account.pricing import Pricing
from localcloud.account.public_parameters import PublicParameters, check_value
from localcloud.account.quotas import ServiceQuotas
from localcloud.account.resource_groups import ResourceGroups
from localcloud.api import Service
from localcloud.clients import LocalClients
from localcloud.cloudformation.service import CloudFormationService
from localcloud.compute.launch.instance_types import InstanceTypes
from localcloud.compute.launch.user_data import check_template
from localcloud.compute.services import ComputeServices
from localcloud.events.bus import LocalEventBus
from localcloud.functions.service import FunctionService
from localcloud.functions.sessions import RoleSessions
from localcloud.functions.states.service import FUNCTION_SECONDS, StatesService
from localcloud.gateway import Gateway
from localcloud.http.server import ADDRESS, listen
from localcloud.iam.authority import Authority
from localcloud.iam.identity import Identity
from localcloud.iam.policy_checks import check_bucket_policy, check_iam, check_kms
from localcloud.iam.security_token import SecurityTokenService
from localcloud.iam.volume_keys import may_encrypt
from localcloud.monitoring.alarm_service import AlarmService
from localcloud.monitoring.metric_data import Series, publish
from localcloud.monitoring.metric_filters import MetricFilters
from localcloud.storage.dlm_service import DlmService
from localcloud.storage.fsx_service import FsxService
from localcloud.storage.object_writes import ObjectWrites
from localcloud.tokens import control_token

logger = logging.getLogger(__name__)

MANAGED_POLICIES = "MOTO_IAM_LOAD_MANAGED_POLICIES"


class LocalCloud:
    """An emulated AWS account.

    Args:
        state_directory: Directory for instances, functions, logs and records; created if missing.
        region: Region for the services and the root user's clients.
        port: Preferred port on 127.0.0.1. If it is 0 or in use, any free port is used.
        account: The account's limits, zones, denied actions, images and networks. None: an unlimited account.
        check_models: Record how requests and responses differ from botocore's models.
    """

    def __init__(
        self,
        state_directory: Path,
        *,
        region: str = "us-east-1",
        port: int = 0,
        account: AccountDescription | None = None,
        check_models: bool = False,
    ) -> None:
        self.account = account or AccountDescription()
        self.state_directory = state_directory.resolve()
        self.state_directory.mkdir(parents=True, exist_ok=True)
        self.region = region
        # moto keeps one store per process; clear it in case an earlier cloud ran in this process.
        moto_api_backend.reset()
        # moto reads this setting when it creates its IAM store. Every account has AWS's managed policies.
        os.environ[MANAGED_POLICIES] = "true"
        self._server = listen(port)
        self.endpoint_url = f"http://{ADDRESS}:{self._server.bind_addr[1]}"
        self.identity = Identity()
        self.clients = LocalClients(self.endpoint_url, region, self.identity)
        self.authority = Authority(self.identity, self.state_directory / "calls.jsonl", self.account.denied_actions)
        self.authority.resource_tags_from("autoscaling", self._group_tags)
        self.services = self._build_services()
        records = self.state_directory / "records.jsonl"
        gateway = Gateway(self.identity, self.authority, self.clients, records, check_models=check_models)
        for service in self.services:
            gateway.add(service)
        gateway.guard("s3", self._object_writes.guard)
        for checked, check in {
            "ec2": check_template,
            "iam": check_iam,
            "kms": check_kms,
            "s3": check_bucket_policy,
            "ssm": check_value,
        }.items():
            gateway.check(checked, check)
        self._server.wsgi_app = gateway
        self._thread = threading.Thread(target=self._server.serve, name="gateway", daemon=True)

    @property
    def control_token(self) -> str:
        """The token for the control API."""
        return control_token(self.identity.root_secret)

    def _build_services(self) -> list[Service]:
        functions = FunctionService(self.clients, self.identity, self.state_directory, invoked=self._function_invoked)
        bus = LocalEventBus(self.clients, functions)
        groups = ResourceGroups(self.clients)
        compute = ComputeServices(
            self.clients, bus, self.identity, self.state_directory, groups.members, partial(may_encrypt, self.region)
        )
        account: list[Service] = [
            groups,
            ServiceQuotas(self.account.quotas),
            Pricing(InstanceTypes(), self.region),
            AccountNetworks(self.account, self.clients),
            AccountConcurrency(self.account, self.clients),
        ]
        cloudformation = CloudFormationService(self.clients)
        stores: list[Service] = [FsxService(self.clients), DlmService(self.clients)]
        sessions = RoleSessions(
            self.clients,
            self.identity,
            service="states.amazonaws.com",
            read_timeout_seconds=FUNCTION_SECONDS,
            attempts=1,
        )
        stores.append(StatesService(self.clients, sessions, bus, self.authority.authorise, self.identity.authenticate))
        self._object_writes = ObjectWrites(self.clients.account)
        stores.append(self._object_writes)
        parameters = PublicParameters(self.clients, self.account.images)
        monitoring: list[Service] = [MetricFilters(self.clients), AlarmService(self.clients, functions.records)]
        own: list[Service] = [SecurityTokenService(self.identity), parameters, functions, bus, cloudformation]
        return [*own, *account, *stores, *monitoring, *compute.services()]

    def _function_invoked(self, name: str, failed: bool) -> None:
        """Publish the metrics of an invocation."""
        dimensions = frozenset({("FunctionName", name)})
        for metric, value in (("Invocations", 1.0), ("Errors", float(failed))):
            publish(self.clients.account, self.region, Series("AWS/Lambda", metric, dimensions), value, "Count")

    def _group_tags(self, group_arn: str) -> Mapping[str, str]:
        """Return the tags of an Auto Scaling group, for conditions on autoscaling:ResourceTag."""
        name = group_arn.rpartition("/")[2]
        groups = self.clients.client("autoscaling", region=group_arn.split(":")[3])
        found = groups.describe_tags(Filters=[{"Name": "auto-scaling-group", "Values": [name]}])["Tags"]
        return {tag["Key"]: tag.get("Value", "") for tag in found}

    def start(self) -> None:
        """Start serving requests."""
        self._thread.start()
        create_vpcs(self.account, self.clients)
        logger.info("listening on %s", self.endpoint_url)

    def close(self) -> None:
        """Stop all of the cloud's services, processes and threads."""
        for service in reversed(self.services):
            service.close()
        self._server.stop()
        self._thread.join(timeout=5)
        os.environ.pop(MANAGED_POLICIES, None)
