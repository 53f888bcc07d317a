"""moto in this process, resources that other resources depend on, and a check of a resource's lifecycle."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import boto3
import cfnlint
import pytest
from botocore.validate import validate_parameters
from moto import mock_aws

from localcloud.cloudformation.provider import ResourceContext, ResourceFailure
from localcloud.cloudformation.providers import registry

REGION = "us-east-1"
ACCOUNT = "123456789012"
SYSTEM_TAG = "aws:cloudformation:stack-name"
TRUST = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": {"Service": "lambda.amazonaws.com"}, "Action": "sts:AssumeRole"}],
}


SCHEMAS = Path(cfnlint.__file__).parent / "data" / "schemas"
# Read-only properties missing from the provider's attributes, with the reason.
UNANSWERED = {
    "AWS::EC2::VPC": {"VpcEncryptionControl": "not emulated; rejected as a property"},
    "AWS::EC2::Subnet": {"BlockPublicAccessStates": "VPC block public access is not emulated"},
    "AWS::EC2::NatGateway": dict.fromkeys(
        ("AutoProvisionZones", "AutoScalingIps", "RouteTableId"), "regional NAT gateways are not emulated"
    ),
    "AWS::S3::Bucket": dict.fromkeys(
        ("MetadataConfiguration", "MetadataTableConfiguration"), "not emulated; rejected as a property"
    ),
    "AWS::Lambda::Function": {"SnapStartResponse": "moto does not emulate SnapStart"},
    "AWS::StepFunctions::StateMachine": {"StateMachineRevisionId": "only the embedded cloud's own service returns it"},
    "AWS::IAM::ManagedPolicy": {"PermissionsBoundaryUsageCount": "moto does not count boundaries"},
}
# Documented for Fn::GetAtt in the template reference, though the schema does not list them as read-only.
DOCUMENTED = {
    "AWS::EC2::VPC": {"CidrBlock"},
    "AWS::EC2::Subnet": {"AvailabilityZone", "AvailabilityZoneId", "CidrBlock", "VpcId"},
    "AWS::EC2::SecurityGroup": {"VpcId"},
    "AWS::SSM::Parameter": {"Type", "Value"},
    "AWS::SNS::Topic": {"TopicName"},
    "AWS::SQS::Queue": {"QueueName"},
}


@cache
def schema(type_name: str) -> dict[str, Any]:
    providers = json.loads((SCHEMAS / "providers" / "us-east-1.json").read_text())
    found: dict[str, Any] = json.loads((SCHEMAS / "resources" / f"{providers[type_name]}.json").read_text())
    return found


def read_only(type_name: str) -> set[str]:
    paths = (path.removeprefix("/properties/") for path in schema(type_name).get("readOnlyProperties", []))
    return {path.split("/")[0] for path in paths}


def attribute_names(type_name: str) -> set[str]:
    """Return the attributes that a provider must return."""
    return (read_only(type_name) - set(UNANSWERED.get(type_name, {}))) | DOCUMENTED.get(type_name, set())


@pytest.fixture(name="schema")
def schema_fixture() -> Callable[[str], dict[str, Any]]:
    return schema


STATEMENT = {"Effect": "Allow", "Action": "s3:Get*", "Resource": "*"}


@dataclass(frozen=True)
class Context(ResourceContext):
    """Context with policies (UpdatePolicy, CreationPolicy) set by a test."""

    attributes: Mapping[str, Any] = field(default_factory=dict)


class Scripted:
    """Client with scripted responses, for operations missing from moto. Validates inputs as boto3 does."""

    def __init__(self, service: str, answers: Mapping[str, Callable[..., Any]]) -> None:
        real = boto3.client(service)
        self.meta = real.meta
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self._answers = answers

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        if operation not in self._answers:
            raise AttributeError(operation)

        def call(**arguments: Any) -> Any:
            name = self.meta.method_to_api_mapping[operation]
            validate_parameters(arguments, self.meta.service_model.operation_model(name).input_shape)
            self.calls.append((operation, arguments))
            return self._answers[operation](**arguments)

        return call

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


class Boto:
    """Returns boto3 clients, or a test's replacements for them."""

    def __init__(self, **replaced: Any) -> None:
        self._replaced = replaced

    def client(self, service: str) -> Any:
        return self._replaced.get(service) or boto3.client(service)


def context(logical_id: str = "Thing", *, clients: Any = None, attributes: Mapping[str, Any] | None = None) -> Context:
    return Context(
        stack_name="Demo",
        stack_id=f"arn:aws:cloudformation:{REGION}:{ACCOUNT}:stack/Demo/1",
        logical_id=logical_id,
        region=REGION,
        account=ACCOUNT,
        partition="aws",
        tags={"team": "ml", SYSTEM_TAG: "Demo"},
        clients=clients or Boto(),
        attributes=attributes or {},
    )


def archive() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as out:
        out.writestr("index.py", "def handler(event, context):\n    return event\n")
    return buffer.getvalue()


_cached_client = cache(boto3.client)


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    # Creating a client takes longer than most calls.
    monkeypatch.setattr(boto3, "client", _cached_client)
    with mock_aws(config={"lambda": {"use_docker": False}}):
        yield


@cache  # listing moto's images takes one second; they are the same in every account
def an_image() -> str:
    return str(boto3.client("ec2").describe_images(Owners=["amazon"])["Images"][0]["ImageId"])


class World:
    """Resources that other resources depend on, created on first use."""

    def __init__(self) -> None:
        self.ec2 = boto3.client("ec2")
        self._made: dict[str, str] = {}

    def _once(self, name: str, make: Callable[[], str]) -> str:
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    @property
    def vpc(self) -> str:
        return self._once("vpc", lambda: self.ec2.create_vpc(CidrBlock="10.8.0.0/16")["Vpc"]["VpcId"])

    def subnet(self, index: int = 0) -> str:
        place = {"CidrBlock": f"10.8.{index}.0/24", "AvailabilityZone": f"us-east-1{'abc'[index]}"}
        return self._once(
            f"subnet{index}", lambda: self.ec2.create_subnet(VpcId=self.vpc, **place)["Subnet"]["SubnetId"]
        )

    def route_table(self, index: int = 0) -> str:
        make = self.ec2.create_route_table
        return self._once(f"table{index}", lambda: make(VpcId=self.vpc)["RouteTable"]["RouteTableId"])

    def gateway(self, index: int = 0) -> str:
        def make() -> str:
            made: str = self.ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
            return made

        return self._once(f"gateway{index}", make)

    def group(self, index: int = 0) -> str:
        name = {"GroupName": f"group{index}", "Description": "for tests"}
        return self._once(f"group{index}", lambda: self.ec2.create_security_group(VpcId=self.vpc, **name)["GroupId"])

    @property
    def address(self) -> str:
        return self._once("address", lambda: self.ec2.allocate_address(Domain="vpc")["AllocationId"])

    @property
    def image(self) -> str:
        return an_image()

    def instance(self, index: int = 0) -> str:
        where = {"ImageId": self.image, "SubnetId": self.subnet(), "InstanceType": "t3.micro"}
        run = self.ec2.run_instances
        return self._once(
            f"instance{index}", lambda: run(MinCount=1, MaxCount=1, **where)["Instances"][0]["InstanceId"]
        )

    @property
    def template(self) -> str:
        data = {"ImageId": self.image, "InstanceType": "t3.micro"}
        make = self.ec2.create_launch_template
        return self._once(
            "template",
            lambda: make(LaunchTemplateName="for-tests", LaunchTemplateData=data)["LaunchTemplate"]["LaunchTemplateId"],
        )

    def role(self, index: int = 0) -> str:
        make = boto3.client("iam").create_role
        document = json.dumps(TRUST)
        name = f"role{index}"
        return self._once(name, lambda: make(RoleName=name, AssumeRolePolicyDocument=document)["Role"]["RoleName"])

    def role_arn(self, index: int = 0) -> str:
        return f"arn:aws:iam::{ACCOUNT}:role/{self.role(index)}"

    def managed_policy(self, index: int = 0) -> str:
        make = boto3.client("iam").create_policy
        document = json.dumps({"Version": "2012-10-17", "Statement": [STATEMENT]})
        name = f"policy{index}"
        return self._once(name, lambda: make(PolicyName=name, PolicyDocument=document)["Policy"]["Arn"])

    def key(self, index: int = 0) -> str:
        return self._once(f"key{index}", lambda: boto3.client("kms").create_key()["KeyMetadata"]["KeyId"])

    def bucket(self, index: int = 0) -> str:
        def make() -> str:
            boto3.client("s3").create_bucket(Bucket=f"for-tests-{index}")
            boto3.client("s3").put_object(Bucket=f"for-tests-{index}", Key="code.zip", Body=archive())
            return f"for-tests-{index}"

        return self._once(f"bucket{index}", make)

    def function(self) -> str:
        make = boto3.client("lambda").create_function
        code = {"ZipFile": archive()}
        wanted = {"Role": self.role_arn(), "Handler": "index.handler", "Runtime": "python3.13"}
        return self._once("function", lambda: make(FunctionName="fn", Code=code, **wanted)["FunctionName"])

    def topic(self, index: int = 0) -> str:
        return self._once(f"topic{index}", lambda: boto3.client("sns").create_topic(Name=f"topic{index}")["TopicArn"])

    def queue(self, index: int = 0) -> str:
        make = boto3.client("sqs").create_queue
        return self._once(f"queue{index}", lambda: make(QueueName=f"queue{index}")["QueueUrl"])

    @property
    def log_group(self) -> str:
        def make() -> str:
            boto3.client("logs").create_log_group(logGroupName="/for/tests")
            return "/for/tests"

        return self._once("log group", make)


@pytest.fixture
def world(cloud: None) -> World:
    return World()


@pytest.fixture
def scripted() -> type[Scripted]:
    return Scripted


@pytest.fixture
def boto() -> type[Boto]:
    return Boto


@pytest.fixture(name="context")
def context_fixture(cloud: None) -> Callable[..., Context]:
    return context


Change = tuple[Mapping[str, Any], Callable[[str], Any], Any]


@pytest.fixture
def lifecycle(cloud: None) -> Callable[..., None]:
    return check_lifecycle


def check_lifecycle(
    type_name: str,
    properties: Mapping[str, Any],
    *changes: Change,
    ref: str,
    tags: Callable[[str], Mapping[str, str]] | None = None,
    unchanged: Mapping[str, str] | None = None,
    clients: Any = None,
) -> None:
    """Create, update and delete a resource.

    Args:
        changes: Properties to set (None removes one), a function that reads the result, and the expected result.
            Every updatable property of the provider must be in one of them, or in `unchanged`.
        ref: Regular expression for the physical ID.
        tags: Returns the tags of the resource with a physical ID.
        unchanged: Updatable properties that the changes do not cover, with the reason.
    """
    provider = registry()[type_name]
    where = context(clients=clients)
    with pytest.raises(ResourceFailure, match="Nonsense"):
        provider.create(where, {**properties, "Nonsense": 1})
    made = provider.create(where, properties)
    assert re.fullmatch(ref, made.physical_id)
    answered = {name.split(".")[0] for name in made.attributes}
    assert answered == attribute_names(type_name)
    assert provider.exists(where, made.physical_id, properties)
    if tags is not None:
        wanted = {"team": "ml", **({SYSTEM_TAG: "Demo"} if provider.system_tags else {})}
        assert wanted.items() <= tags(made.physical_id).items()
        assert provider.system_tags or SYSTEM_TAG not in tags(made.physical_id)
    covered = set(unchanged or {})
    for change, look, expected in changes:
        merged = {**properties, **change}
        new = {name: value for name, value in merged.items() if value is not None}
        with pytest.raises(ResourceFailure, match="Nonsense"):
            provider.update(where, made.physical_id, properties, {**new, "Nonsense": 1})
        again = provider.update(where, made.physical_id, properties, new)
        assert again.physical_id == made.physical_id
        assert look(made.physical_id) == expected
        properties = new
        covered |= set(change)
    assert provider.updatable - covered == set()
    provider.delete(where, made.physical_id, properties)
    assert not provider.exists(where, made.physical_id, properties)
    provider.delete(where, made.physical_id, properties)
