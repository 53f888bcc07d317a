"""Finds deployments in an account and region, and reads the records of their runs.

One observation makes six calls: DescribeStacks and GetObject twice each, GetParameters and DescribeInstances.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from bootstrap.documents import RunDocument
from bootstrap.documents.desired_state import RUNNING, DesiredState, desired_parameter
from bootstrap.documents.object_keys import control_prefix
from bootstrap.errors import BootstrapError
from bootstrap.supervise.membership.control import STATUS_NAME
from bootstrap.supervise.membership.records import RunStatus, run_status_from_bytes
from stacks.functions.run_controller import records
from stacks.functions.run_controller.policy import ControllerState
from stacks.functions.zombie_watch.stack_names import TRAINING_STACK, StackName, candidates, parse

Clients = Callable[[str], Any]
"""Returns the boto3 client of a service, for one account and region."""

STORAGE_STACK = "StorageStack"
DEPLOYMENT_TAG = "trainstack:deployment"
_LIVE = ("pending", "running", "stopping", "shutting-down")
MAX_BYTES = records.MAX_RECORD_BYTES


class NotDeployed(Exception):
    """The account and region do not contain the deployment."""


@dataclass(frozen=True)
class Deployment:
    """A deployed training stack: a slot of a deployment.

    Attributes:
        name: Name of the fleet: the deployment's name, followed by `-<slot>` except in the first slot.
        slot: Suffix of the slot; "" for the first slot.
    """

    name: str
    log_group: str
    run_parameter: str
    checkpoint_bucket: str
    control_bucket: str
    dataset_bucket: str
    slot: str = ""

    @property
    def owner(self) -> str:
        """Name from the deployment file."""
        return self.name.removesuffix(f"-{self.slot}") if self.slot else self.name

    @property
    def stack(self) -> str:
        """Name of the training stack in CloudFormation."""
        return str(StackName(self.owner, TRAINING_STACK, self.slot))


@dataclass(frozen=True)
class Node:
    """A live instance of a deployment.

    Attributes:
        market: `spot` or `on_demand`.
        state: EC2's state, such as `running`.
        launched_unix_seconds: Launch time.
    """

    instance_id: str
    instance_type: str
    zone: str
    market: str
    state: str
    launched_unix_seconds: float


@dataclass(frozen=True)
class Observation:
    """A deployment's records at one point in time.

    Attributes:
        run: The run document, or None if the parameter is missing or invalid.
        desired: The operator's desired state of the deployment.
        controller: The run controller's state, or None before its first step for this run.
        controller_unix_seconds: Time when the controller last changed its state.
        status: The first member's latest status, or None before the first generation.
        nodes: The live instances, oldest first.
        problems: Records that could not be read, with the reason.
    """

    deployment: Deployment
    run: RunDocument | None
    controller: ControllerState | None
    controller_unix_seconds: float | None
    status: RunStatus | None
    nodes: tuple[Node, ...]
    problems: tuple[str, ...]
    desired: DesiredState = RUNNING


def find(client: Clients, name: str) -> Deployment:
    """Return the first slot of a deployment by the deployment's name, or another slot by its fleet's name.

    Raises:
        NotDeployed: There is no training stack with this name.
        botocore.exceptions.ClientError: AWS rejected the call.
    """
    training: Mapping[str, Any] | None = None
    for stack in candidates(name):
        if training := described(client, str(stack)):
            break
    if training is None:
        raise _missing(name, f"{name}-{TRAINING_STACK}")
    storage_name = f"{stack.deployment}-{STORAGE_STACK}"
    storage = described(client, storage_name)
    if storage is None:
        raise _missing(name, storage_name)
    deployment = _deployment(stack, training, storage)
    if deployment is None:
        raise NotDeployed(f"{name}: stack {stack} is {training['StackStatus']} and has no outputs; deploy it again")
    return deployment


def described(client: Clients, stack: str) -> Mapping[str, Any] | None:
    """Return CloudFormation's description of a stack, or None if the stack does not exist."""
    try:
        found: Mapping[str, Any] = client("cloudformation").describe_stacks(StackName=stack)["Stacks"][0]
    except ClientError as error:
        if error.response["Error"]["Code"] != "ValidationError":
            raise
        return None
    return found


def _missing(name: str, stack: str) -> NotDeployed:
    return NotDeployed(
        f"{name}: the account has no stack {stack} in this region; list the deployments with "
        "`trainstack runs`, or set --region"
    )


def get_template(client: Clients, stack: str) -> dict[str, Any]:
    """Return the deployed template of a stack. Raises ClientError."""
    body = client("cloudformation").get_template(StackName=stack)["TemplateBody"]
    template: dict[str, Any] = body if isinstance(body, dict) else json.loads(body)
    return template


def slots(client: Clients, owner: str) -> list[Deployment]:
    """Return the deployed slots of a deployment, the first one first. Raises ClientError."""
    return sorted(
        (each for each in find_all(client) if each.owner == owner),
        key=lambda each: (len(each.slot), each.slot),
    )


def find_all(client: Clients) -> Iterator[Deployment]:
    """Yield the deployments in the region, each slot separately."""
    pages = client("cloudformation").get_paginator("describe_stacks").paginate()
    stacks = {stack["StackName"]: stack for page in pages for stack in page["Stacks"]}
    for name, training in stacks.items():
        stack = parse(name)
        if stack is None or stack.kind != TRAINING_STACK:
            continue
        storage = stacks.get(f"{stack.deployment}-{STORAGE_STACK}")
        deployment = None if storage is None else _deployment(stack, training, storage)
        if deployment is not None:
            yield deployment


def _deployment(stack: StackName, training: Mapping[str, Any], storage: Mapping[str, Any]) -> Deployment | None:
    """Return a deployment, or None if a stack has not been created completely."""
    outputs = {
        each["OutputKey"]: each["OutputValue"] for stack in (storage, training) for each in stack.get("Outputs", [])
    }
    try:
        return Deployment(
            name=stack.fleet,
            slot=stack.slot,
            log_group=outputs["LogGroup"],
            run_parameter=outputs["RunParameter"],
            checkpoint_bucket=outputs["CheckpointBucket"],
            control_bucket=outputs["ControlBucket"],
            dataset_bucket=outputs["DatasetBucket"],
        )
    except KeyError:
        return None


def claim_key(fleet: str) -> str:
    """Return the key of a slot's claim in the control bucket (`operate.slots`). No role of the stacks may access it."""
    return f"slots/{fleet}/claim.json"


def observe(client: Clients, deployment: Deployment, now_unix_seconds: float) -> Observation:
    """Read a deployment's records and instances, in parallel.

    Raises:
        botocore.exceptions.ClientError: AWS rejected a call.
    """
    problems: list[str] = []
    with ThreadPoolExecutor(4) as pool:
        nodes = pool.submit(live_nodes, client, deployment.name)
        run, desired = parameters(client, deployment, problems)
        state: ControllerState | None = None
        changed: float | None = None
        status: RunStatus | None = None
        if run is not None:
            prefix = control_prefix(deployment.name, run.run)
            state_key = records.state_key(deployment.name, run.run)
            control = pool.submit(stored_object, client, deployment, state_key)
            reported = pool.submit(stored_object, client, deployment, prefix + STATUS_NAME)
            if (found := control.result()) is not None:
                changed = found.changed_unix_seconds
                try:
                    state = records.state_of(records.json_object(found.content), now_unix_seconds)
                except records.InvalidRecord as error:
                    problems.append(f"{state_key}: {error}")
            if (found := reported.result()) is not None:
                try:
                    status = run_status_from_bytes(found.content, prefix + STATUS_NAME)
                except BootstrapError as error:
                    problems.append(str(error))
        return Observation(deployment, run, state, changed, status, nodes.result(), tuple(problems), desired)


def live_nodes(client: Clients, name: str) -> tuple[Node, ...]:
    """Return the deployment's instances that are not terminated, oldest first."""
    filters = [
        {"Name": f"tag:{DEPLOYMENT_TAG}", "Values": [name]},
        {"Name": "instance-state-name", "Values": list(_LIVE)},
    ]
    pages = client("ec2").get_paginator("describe_instances").paginate(Filters=filters)
    found = [_node(each) for page in pages for group in page["Reservations"] for each in group["Instances"]]
    return tuple(sorted(found, key=lambda node: (node.launched_unix_seconds, node.instance_id)))


def _node(instance: Mapping[str, Any]) -> Node:
    return Node(
        instance_id=instance["InstanceId"],
        instance_type=instance["InstanceType"],
        zone=instance.get("Placement", {}).get("AvailabilityZone", ""),
        market="spot" if instance.get("InstanceLifecycle") == "spot" else "on_demand",
        state=instance["State"]["Name"],
        launched_unix_seconds=instance["LaunchTime"].timestamp(),
    )


def run_document(client: Clients, deployment: Deployment, problems: list[str]) -> RunDocument | None:
    """Return the run document, or None after adding the reason to `problems`. Raises ClientError."""
    return parameters(client, deployment, problems)[0]


def parameters(client: Clients, deployment: Deployment, problems: list[str]) -> tuple[RunDocument | None, DesiredState]:
    """Return the run document and the desired state. If one is missing or invalid, add the reason to `problems`.

    Raises:
        botocore.exceptions.ClientError: AWS rejected the call.
    """
    name, desired_name = deployment.run_parameter, desired_parameter(deployment.name)
    answer = client("ssm").get_parameters(Names=[name, desired_name])
    texts = {each["Name"]: each["Value"] for each in answer["Parameters"]}
    run, desired = None, RUNNING
    if name not in texts and not deployment.slot:  # the parameter of another slot exists only while it has a run
        problems.append(f"{name}: the parameter does not exist; deploy again")
    try:
        run = RunDocument.from_text(texts[name], document=name) if name in texts else None
    except BootstrapError as error:
        problems.append(str(error))
    try:
        if desired_name in texts:
            desired = DesiredState.from_text(texts[desired_name], document=desired_name)
    except BootstrapError as error:
        problems.append(f"{error}; replace it with `trainstack resume {deployment.name}`")
    return run, desired


def object_keys(s3: Any, bucket: str, prefix: str) -> Iterator[str]:
    """Yield the keys of the objects with a prefix, in order. Raises ClientError."""
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        yield from (str(item["Key"]) for item in page.get("Contents", []))


@dataclass(frozen=True)
class StoredObject:
    """An object in a control bucket.

    Attributes:
        content: At most MAX_BYTES + 1 bytes.
    """

    content: bytes
    etag: str
    changed_unix_seconds: float


def stored_object(client: Clients, deployment: Deployment, key: str) -> StoredObject | None:
    """Return an object in a deployment's control bucket, or None if it does not exist. Raises ClientError."""
    try:
        response = client("s3").get_object(Bucket=deployment.control_bucket, Key=key)
    except ClientError as error:
        if error.response["Error"]["Code"] in ("NoSuchKey", "404"):
            return None
        raise
    content = response["Body"].read(MAX_BYTES + 1)
    return StoredObject(content, response["ETag"], response["LastModified"].timestamp())
