"""The CloudFormation engine with in-memory providers and clients, and a helper that calls its operations."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from localcloud.api import Call, Principal
from localcloud.cloudformation.provider import Provisioned, ResourceContext, ResourceFailure
from localcloud.cloudformation.service import CloudFormationService

ACCOUNT = "123456789012"
REGION = "eu-west-1"
NAMES = {
    "AWS::SSM::Parameter": "Name",
    "AWS::SNS::Topic": "TopicName",
    "AWS::SQS::Queue": "QueueName",
    "AWS::IAM::Role": "RoleName",
}
UNNAMED = ("AWS::EC2::Volume", "AWS::S3::Bucket", "AWS::EC2::LaunchTemplate", "AWS::AutoScaling::AutoScalingGroup")
TYPES = (*NAMES, *UNNAMED)


@dataclass
class FakeAccount:
    """Resources of the fake providers, their calls in order, and injected failures."""

    resources: dict[str, dict[str, Any]] = field(default_factory=dict)
    log: list[tuple[str, str, str]] = field(default_factory=list)
    updates: list[tuple[str, Any, Any]] = field(default_factory=list)
    failures: dict[tuple[str, str], str] = field(default_factory=dict)
    contexts: dict[str, ResourceContext] = field(default_factory=dict)
    before: Callable[[str, str], None] = lambda action, logical_id: None
    lock: threading.Lock = field(default_factory=threading.Lock)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def act(self, action: str, context: ResourceContext, physical_id: str) -> None:
        self.before(action, context.logical_id)
        with self.lock:
            self.log.append((action, context.logical_id, physical_id))
            self.contexts[context.logical_id] = context
        reason = self.failures.get((action, context.logical_id))
        if reason is not None:
            raise ResourceFailure(reason)

    def done(self, action: str) -> list[str]:
        return [logical_id for what, logical_id, _ in self.log if what == action]


class FakeProvider:
    """Stores resources of one type in a FakeAccount; as with real types, a name property is the physical ID."""

    def __init__(self, type_name: str, account: FakeAccount) -> None:
        self.type_name = type_name
        self.account = account

    def _made(self, physical_id: str, properties: Mapping[str, Any]) -> Provisioned:
        with self.account.lock:
            self.account.resources[physical_id] = {"Type": self.type_name, **properties}
        version = str(len(json.dumps(properties, sort_keys=True, default=str)))
        arn = f"arn:aws:fake:{REGION}:{ACCOUNT}:{physical_id}"
        return Provisioned(physical_id, {"Arn": arn, "QueueName": physical_id, "LatestVersionNumber": version})

    def create(self, context: ResourceContext, properties: Mapping[str, Any]) -> Provisioned:
        name = properties.get(NAMES.get(self.type_name, ""))
        physical_id = name or f"{context.generated_name()}-{next(self.account.numbers)}"
        self.account.act("create", context, physical_id)
        if physical_id in self.account.resources:
            raise ResourceFailure(f"{physical_id} already exists")
        return self._made(physical_id, properties)

    def update(
        self, context: ResourceContext, physical_id: str, old: Mapping[str, Any], new: Mapping[str, Any]
    ) -> Provisioned:
        self.account.updates.append((context.logical_id, dict(old), dict(new)))
        self.account.act("update", context, physical_id)
        return self._made(physical_id, new)

    def delete(self, context: ResourceContext, physical_id: str, properties: Mapping[str, Any]) -> None:
        self.account.act("delete", context, physical_id)
        with self.account.lock:
            self.account.resources.pop(physical_id, None)

    def exists(self, context: ResourceContext, physical_id: str, properties: Mapping[str, Any]) -> bool:
        return physical_id in self.account.resources


class FakeParameterStore:
    """The SSM operations that the engine calls."""

    class exceptions:  # noqa: N801 - botocore's name
        class ParameterNotFound(Exception):
            pass

    def __init__(self) -> None:
        self.values = {"/image": "ami-1"}

    def get_parameter(self, Name: str, **_: Any) -> dict[str, Any]:  # noqa: N803
        if Name not in self.values:
            raise self.exceptions.ParameterNotFound(Name)
        return {"Parameter": {"Name": Name, "Value": self.values[Name]}}


class FakeZones:
    """The EC2 operations that the engine calls."""

    def describe_availability_zones(self, **_: Any) -> dict[str, Any]:
        return {"AvailabilityZones": [{"ZoneName": f"{REGION}{letter}"} for letter in "cab"]}


class FakeLambda:
    """Runs a Python function in place of a Lambda function; `answer` returns the response document, or None."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.answer: Callable[[dict[str, Any]], dict[str, Any] | None] = lambda request: {"Status": "SUCCESS"}
        self.put: Callable[[str, bytes], Any] = lambda path, body: None

    def invoke(self, FunctionName: str, InvocationType: str, Payload: bytes) -> dict[str, Any]:  # noqa: N803
        request = json.loads(Payload)
        self.requests.append(request)
        answer = self.answer(request)
        if answer is not None:
            path = request["ResponseURL"].split("/_localcloud/cloudformation/", 1)[1]
            self.put(path, json.dumps(answer).encode())
        return {"StatusCode": 202}


class FakeClients:
    """In-memory service clients. Records the role for each requested client."""

    endpoint_url = "http://localhost:4566"
    region = REGION
    account = ACCOUNT

    def __init__(self) -> None:
        self.services: dict[str, Any] = {"ssm": FakeParameterStore(), "ec2": FakeZones(), "lambda": FakeLambda()}
        self.asked: list[tuple[str, str | None]] = []

    def client(self, service: str, *, role_arn: str | None = None, region: str | None = None) -> Any:
        self.asked.append((service, role_arn))
        return self.services[service]

    def direct(self, service: str, *, region: str | None = None) -> Any:
        return self.services[service]


class Caller:
    """Calls the service as the gateway does, and deploys as the CDK CLI does."""

    def __init__(self, service: CloudFormationService, account: FakeAccount, clients: FakeClients) -> None:
        self.service = service
        self.account = account
        self.clients = clients
        self._numbers = itertools.count()

    def __call__(self, operation: str, **parameters: Any) -> Mapping[str, Any]:
        principal = Principal(arn=f"arn:aws:iam::{ACCOUNT}:root", account=ACCOUNT, kind="root")
        call = Call("cloudformation", operation, parameters, principal, REGION, ACCOUNT)
        return self.service.operations()[operation](call)

    def change_set(self, stack: str, template: Any, **more: Any) -> Mapping[str, Any]:
        """Create a change set and return its description after it has completed or failed."""
        name = f"set-{next(self._numbers)}"
        kind = "UPDATE" if self.exists(stack) else "CREATE"
        body = template if isinstance(template, str) else json.dumps(template)
        given = {"ChangeSetType": kind, "TemplateBody": body, **more}
        self("CreateChangeSet", StackName=stack, ChangeSetName=name, **given)
        return self.until(
            lambda: self("DescribeChangeSet", StackName=stack, ChangeSetName=name),
            lambda answer: answer["Status"] in ("CREATE_COMPLETE", "FAILED"),
        )

    def deploy(self, stack: str, template: Any, **more: Any) -> str:
        """Create and execute a change set; return the stack's final status."""
        executing = {key: more.pop(key) for key in ("DisableRollback", "ClientRequestToken") if key in more}
        described = self.change_set(stack, template, **more)
        assert described["Status"] == "CREATE_COMPLETE", described
        self("ExecuteChangeSet", StackName=stack, ChangeSetName=described["ChangeSetName"], **executing)
        return self.settled(stack)

    def delete(self, stack: str, **more: Any) -> str:
        """Delete a stack and return its final status."""
        stack_id = self.stack(stack)["StackId"]
        self("DeleteStack", StackName=stack, **more)
        return self.settled(stack_id)

    def exists(self, stack: str) -> bool:
        names = [s["StackName"] for s in self("ListStacks")["StackSummaries"] if s["StackStatus"] != "DELETE_COMPLETE"]
        return stack in names and self.stack(stack)["StackStatus"] != "REVIEW_IN_PROGRESS"

    def stack(self, name: str) -> Mapping[str, Any]:
        described: Mapping[str, Any] = self("DescribeStacks", StackName=name)["Stacks"][0]
        return described

    def settled(self, name: str) -> str:
        """Wait until no operation is running and return the status."""
        return str(
            self.until(lambda: self.stack(name), lambda s: not s["StackStatus"].endswith("_IN_PROGRESS"))["StackStatus"]
        )

    def events(self, stack: str) -> list[Mapping[str, Any]]:
        """Return a stack's events, oldest first."""
        return list(reversed(self("DescribeStackEvents", StackName=stack)["StackEvents"]))

    def statuses(self, stack: str, logical_id: str | None = None) -> list[str]:
        """Return the statuses of a resource, or of the stack by default, oldest first."""
        wanted = logical_id or self.stack(stack)["StackName"]
        return [e["ResourceStatus"] for e in self.events(stack) if e["LogicalResourceId"] == wanted]

    def outputs(self, stack: str) -> dict[str, str]:
        return {o["OutputKey"]: o["OutputValue"] for o in self.stack(stack).get("Outputs", [])}

    def physical_id(self, stack: str, logical_id: str) -> str:
        answer = self("DescribeStackResource", StackName=stack, LogicalResourceId=logical_id)
        return str(answer["StackResourceDetail"]["PhysicalResourceId"])

    @staticmethod
    def until(ask: Callable[[], Any], holds: Callable[[Any], bool], seconds: float = 60) -> Any:
        deadline = time.monotonic() + seconds
        while True:
            answer = ask()
            if holds(answer):
                return answer
            assert time.monotonic() < deadline, f"condition not met within {seconds} s; last response: {answer}"
            time.sleep(0.002)


@pytest.fixture
def account() -> FakeAccount:
    return FakeAccount()


@pytest.fixture
def cloud(account: FakeAccount) -> Iterator[Caller]:
    clients = FakeClients()
    service = CloudFormationService(clients, {name: FakeProvider(name, account) for name in TYPES})
    clients.services["lambda"].put = lambda path, body: service.http("PUT", path, body)
    yield Caller(service, account, clients)
    service.close()
