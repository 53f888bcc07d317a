"""A cloud with compute behind the real gateway, a recording event bus, and an adjustable clock."""

from __future__ import annotations

import base64
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from moto.ec2.models import ec2_backends
from moto.ec2.models.amis import Ami

from localcloud.account.pricing import Pricing
from localcloud.account.public_parameters import PublicParameters
from localcloud.account.quotas import ServiceQuotas
from localcloud.account.resource_groups import ResourceGroups
from localcloud.api import Service
from localcloud.cloud import LocalCloud
from localcloud.cloudformation.service import CloudFormationService
from localcloud.compute.launch.instance_types import InstanceTypes
from localcloud.compute.services import ComputeServices
from localcloud.iam.security_token import SecurityTokenService
from localcloud.iam.volume_keys import may_encrypt
from localcloud.storage.dlm_service import DlmService
from localcloud.storage.fsx_service import FsxService
from localcloud.storage.object_writes import ObjectWrites
from localcloud.tokens import TOKEN_HEADER
from tests.localcloud.compute.controlled_fleets import create_roles, empty

T = TypeVar("T")
DEADLINE_SECONDS = 90.0
REGION = "eu-west-1"
ZONES = ("eu-west-1a", "eu-west-1b", "eu-west-1c")
IMAGE = "ami-0123456789abcdef0"
OTHER_IMAGE = "ami-0fedcba9876543210"


class RecordingBus:
    """An api.EventBus that records the published events."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: list[dict[str, Any]] = []

    def publish(
        self, source: str, detail_type: str, detail: Mapping[str, Any], resources: list[str] | None = None
    ) -> None:
        with self._lock:
            self._events.append(
                {"source": source, "type": detail_type, "detail": dict(detail), "resources": list(resources or [])}
            )

    def of(self, detail_type: str, **detail: Any) -> list[dict[str, Any]]:
        """Return the events of a type with the given values in their detail (underscores replace hyphens)."""
        wanted = {key.replace("_", "-"): value for key, value in detail.items()}
        with self._lock:
            return [
                event
                for event in self._events
                if event["type"] == detail_type and wanted.items() <= event["detail"].items()
            ]


class ComputeCloud(LocalCloud):
    """The embedded cloud with only the compute services, a recording event bus and an adjustable clock."""

    def __init__(self, state: Path) -> None:
        self.bus = RecordingBus()
        self.ahead_seconds = 0.0
        super().__init__(state, region=REGION)
        backend = ec2_backends[self.clients.account][REGION]
        for image in (IMAGE, OTHER_IMAGE):
            backend.amis[image] = Ami(backend, image, name=image, region_name=f"{REGION}a")

    def _build_services(self) -> list[Service]:
        self._object_writes = ObjectWrites(self.clients.account)
        groups = ResourceGroups(self.clients)
        self.compute = ComputeServices(
            self.clients,
            self.bus,
            self.identity,
            self.state_directory,
            groups.members,
            partial(may_encrypt, REGION),
            self.clock,
        )
        others: list[Service] = [SecurityTokenService(self.identity), PublicParameters(self.clients), groups]
        others += [ServiceQuotas(), Pricing(InstanceTypes(), REGION)]
        self.lifecycle_manager = DlmService(self.clients, self.clock)
        others += [self.lifecycle_manager, FsxService(self.clients, self.clock), CloudFormationService(self.clients)]
        return [*others, *self.compute.services()]

    def clock(self) -> float:
        return time.time() + self.ahead_seconds


class Cloud:
    """Helpers for tests of a cloud that has a network and a role for launches."""

    def __init__(self, state: Path) -> None:
        self._cloud = ComputeCloud(state)
        self._cloud.start()
        self.state = self._cloud.state_directory
        self.bus, self.compute, self.clients = self._cloud.bus, self._cloud.compute, self._cloud.clients
        self.identity, self.endpoint_url = self._cloud.identity, self._cloud.endpoint_url
        self.ec2, self.autoscaling = self.client("ec2"), self.client("autoscaling")
        self._number = 0
        self._make_network()

    def advance(self, seconds: float) -> None:
        """Advance the cloud's clock and start a round of its control loops."""
        self._cloud.ahead_seconds += seconds
        self.compute.wake()
        self._cloud.lifecycle_manager.loop.wake()

    def now(self) -> float:
        """Return the cloud's time, in Unix seconds."""
        return self._cloud.clock()

    def client(self, service: str) -> Any:
        return self.clients.client(service)

    def close(self) -> None:
        self._cloud.close()

    def name(self, prefix: str) -> str:
        """Return a new unique name."""
        self._number += 1
        return f"{prefix}-{self._number}"

    def _make_network(self) -> None:
        self.vpc = self.ec2.create_vpc(CidrBlock="127.64.0.0/16")["Vpc"]["VpcId"]
        self.subnets = [
            self.ec2.create_subnet(VpcId=self.vpc, CidrBlock=f"127.64.{number}.0/24", AvailabilityZone=zone)["Subnet"][
                "SubnetId"
            ]
            for number, zone in enumerate(ZONES)
        ]
        self.security_group = self.ec2.create_security_group(GroupName="nodes", Description="nodes", VpcId=self.vpc)[
            "GroupId"
        ]
        trust = {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}
        policy = {"Effect": "Allow", "Action": ["s3:ListBucket", "s3:GetObject"], "Resource": "*"}
        iam = self.client("iam")
        for name, statement in (
            ("node", trust),
            ("broken", trust | {"Principal": {"Service": "lambda.amazonaws.com"}}),
        ):
            document = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
            iam.create_role(RoleName=name, AssumeRolePolicyDocument=document)
            iam.create_instance_profile(InstanceProfileName=name)
            iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)
        iam.put_role_policy(
            RoleName="node", PolicyName="p",
            PolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [policy]}),
        )  # fmt: skip

    def run(self, script: str = "", *, count: int = 1, **parameters: Any) -> list[str]:
        """Run instances in the first subnet with a shell script as user data; return their IDs."""
        defaults = {"ImageId": IMAGE, "InstanceType": "m5.large", "SubnetId": self.subnets[0]}
        if script:
            defaults["UserData"] = f"#!/bin/sh\n{script}\n"
        answer = self.ec2.run_instances(MinCount=count, MaxCount=count, **(defaults | parameters))
        return [one["InstanceId"] for one in answer["Instances"]]

    def template(self, script: str = "", **data: Any) -> str:
        """Create a launch template; return its ID."""
        user_data = {"UserData": base64.b64encode(f"#!/bin/sh\n{script}\n".encode()).decode()} if script else {}
        answer = self.ec2.create_launch_template(
            LaunchTemplateName=self.name("template"),
            LaunchTemplateData={"ImageId": IMAGE, "SecurityGroupIds": [self.security_group]} | user_data | data,
        )
        return str(answer["LaunchTemplate"]["LaunchTemplateId"])

    def group(self, *, minimum: int = 0, maximum: int = 4, subnets: int = 2, **parameters: Any) -> str:
        """Create a group, by default of on-demand instances; return its name."""
        name = self.name("group")
        if "MixedInstancesPolicy" not in parameters and "LaunchTemplate" not in parameters:
            template = self.template(InstanceType="m5.large")
            parameters["LaunchTemplate"] = {"LaunchTemplateId": template, "Version": "1"}
        parameters.setdefault("VPCZoneIdentifier", ",".join(self.subnets[:subnets]))
        self.autoscaling.create_auto_scaling_group(
            AutoScalingGroupName=name, MinSize=minimum, MaxSize=maximum, **parameters
        )
        return name

    def spot_policy(self, *types: str, template: str | None = None, **distribution: Any) -> dict[str, Any]:
        """Return a mixed instances policy of spot instances."""
        reference = {"LaunchTemplateId": template or self.template(), "Version": "1"}
        return {
            "LaunchTemplate": {
                "LaunchTemplateSpecification": reference,
                "Overrides": [{"InstanceType": one} for one in types],
            },
            "InstancesDistribution": {
                "OnDemandPercentageAboveBaseCapacity": 0, "SpotAllocationStrategy": "price-capacity-optimized",
            } | distribution,
        }  # fmt: skip

    def deploy(self, stack: str, resources: Mapping[str, Any]) -> dict[str, str]:
        """Create or update a stack, wait for completion, and return its resources' physical IDs."""
        cloudformation = self.client("cloudformation")
        template = json.dumps({"Resources": resources})
        body = {"StackName": stack, "TemplateBody": template, "Capabilities": ["CAPABILITY_IAM"]}
        known = [one["StackName"] for one in cloudformation.describe_stacks()["Stacks"]]
        getattr(cloudformation, "update_stack" if stack in known else "create_stack")(**body)

        def settled() -> str | None:
            status = str(cloudformation.describe_stacks(StackName=stack)["Stacks"][0]["StackStatus"])
            return None if status.endswith("IN_PROGRESS") else status

        status = self.until(settled, f"stack {stack}")
        if status not in ("CREATE_COMPLETE", "UPDATE_COMPLETE"):
            events = cloudformation.describe_stack_events(StackName=stack)["StackEvents"]
            raise AssertionError([one.get("ResourceStatusReason") for one in events])
        found = cloudformation.describe_stack_resources(StackName=stack)["StackResources"]
        return {one["LogicalResourceId"]: one["PhysicalResourceId"] for one in found}

    def destroy(self, stack: str) -> None:
        """Delete a stack and wait for completion."""
        cloudformation = self.client("cloudformation")
        stack_id = cloudformation.describe_stacks(StackName=stack)["Stacks"][0]["StackId"]
        cloudformation.delete_stack(StackName=stack)

        def is_deleted() -> bool:
            status = cloudformation.describe_stacks(StackName=stack_id)["Stacks"][0]["StackStatus"]
            assert status != "DELETE_FAILED"
            return bool(status == "DELETE_COMPLETE")

        self.until(is_deleted, f"stack {stack} to be deleted")

    def described(self, group: str) -> dict[str, Any]:
        found = self.autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=[group])["AutoScalingGroups"]
        return dict(found[0])

    def in_service(self, group: str) -> list[str]:
        return [one["InstanceId"] for one in self.described(group)["Instances"] if one["LifecycleState"] == "InService"]

    def until_in_service(self, group: str, count: int) -> list[str]:
        """Wait until the group has exactly `count` instances, all in service; return their IDs."""

        def settled() -> list[str] | None:
            ids = self.in_service(group)
            return ids if len(ids) == count == len(self.described(group)["Instances"]) else None

        return self.until(settled, f"{count} instances in service")

    def lifecycle(self, group: str, instance_id: str) -> str | None:
        states = {one["InstanceId"]: one["LifecycleState"] for one in self.described(group)["Instances"]}
        return states.get(instance_id)

    def activities(self, group: str) -> list[dict[str, Any]]:
        return list(self.autoscaling.describe_scaling_activities(AutoScalingGroupName=group)["Activities"])

    def state_of(self, instance_id: str) -> str:
        answer = self.ec2.describe_instances(InstanceIds=[instance_id])
        return str(answer["Reservations"][0]["Instances"][0]["State"]["Name"])

    def until_state(self, instance_id: str, state: str) -> None:
        self.until(lambda: self.state_of(instance_id) == state, f"{instance_id} to be {state}")

    def console(self, instance_id: str) -> str:
        path = self.state / "instances" / instance_id / "console.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def until_printed(self, instance_id: str, text: str) -> str:
        return self.until(
            lambda: self.console(instance_id) if text in self.console(instance_id) else None,
            f"{instance_id} to print {text!r}; console: {self.console(instance_id)!r}",
        )

    def post(self, verb: str, body: Mapping[str, Any]) -> int:
        """Post to /_localcloud/compute/<verb>; return the status."""
        return self.control(f"compute/{verb}", body)[0]

    def control(self, path: str, body: Mapping[str, Any] | None = None, token: str | None = None) -> tuple[int, Any]:
        """Call the control API, with POST if there is a body; return the status and the response."""
        headers = {TOKEN_HEADER: self._cloud.control_token if token is None else token}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.endpoint_url}/_localcloud/{path}", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return int(answer.status), json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"null")

    def records(self, kind: str) -> list[dict[str, Any]]:
        lines = (self.state / "records.jsonl").read_text().splitlines()
        return [record for record in map(json.loads, lines) if record["kind"] == kind]

    @staticmethod
    def until(condition: Callable[[], T | None], what: str) -> T:
        """Wait until the condition returns a true value; return that value."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not (found := condition()):
            assert time.monotonic() < deadline, f"waited {DEADLINE_SECONDS:g} s for {what}"
            time.sleep(0.02)
        return found


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    made = Cloud(tmp_path_factory.mktemp("cloud"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def fleet_roles(cloud: Cloud) -> None:
    """Create the roles that all back ends need."""
    create_roles(cloud)


@pytest.fixture
def empty_cloud(cloud: Cloud) -> Iterator[None]:
    """Leave no capacity limits and no instances to the next test."""
    yield
    empty(cloud, ZONES)
