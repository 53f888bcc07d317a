"""Deletes the fleet and all other billed resources except the data, and lists the data with its monthly price.

CloudFormation deletes the stacks with the role that deployed them, so a deployment can be destroyed without synthesis.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from stacks.changes.effects.fixed_costs import PRICES_DATE, PRICES_REGION
from stacks.config import TRAINING_STACK, WORKFLOW_STACK, DeploymentConfig
from stacks.delivery.deploy import run_cdk
from stacks.delivery.failed_create import describe, resources
from stacks.delivery.remaining import Remaining, remaining
from stacks.delivery.sessions import deploy_session, lookup_session
from stacks.errors import DeployError
from stacks.functions.zombie_watch.stack_names import parse

IDLE_NETWORK = "idle-network"
"""The context key that synthesizes NetworkStack without endpoints, NAT gateway and flow logs."""
POLL_SECONDS = 5.0
DEADLINE_SECONDS = 3600.0


def destroy(config: DeploymentConfig, file: Path, *, is_confirmed: bool) -> None:
    """Delete all stacks except StorageStack, and print what remains.

    If the data includes a Lustre file system, NetworkStack remains without its billed parts, because the file
    system is connected to it.

    Raises:
        DeployError: A stack could not be deleted, or the deletion was not confirmed.
        AccountError: A bootstrap role cannot be assumed.
    """
    try:
        client = deploy_session(config).client("cloudformation")
        has_file_system = _has_file_system(client, f"{config.name}-StorageStack")
        network = [] if has_file_system else [f"{config.name}-NetworkStack"]
        names = [*_stacks_on_network(client, config), *network]
        present = [name for name in names if describe(client, name) is not None]  # each uses exports of later ones
        if present and not is_confirmed:
            _confirm(present)
        for name in present:
            delete_stack(client, name)
        if has_file_system and describe(client, f"{config.name}-NetworkStack") is not None:
            print(f"{config.name}-NetworkStack: the file system uses it; removing endpoints, NAT gateway and flow logs")
            arguments = ["deploy", "NetworkStack", "--exclusively", "--require-approval", "never"]
            run_cdk(config, file, [*arguments, "--context", f"{IDLE_NETWORK}=true"], is_interactive=False)
        print_remaining(lookup_session(config), config.name)
    except (BotoCoreError, ClientError) as error:
        raise DeployError(f"{config.name}: {error}") from error


def _stacks_on_network(client: Any, config: DeploymentConfig) -> list[str]:
    """Return the names of the stacks that use the network, in deletion order."""
    if config.engine == "fleet":
        first = [f"{config.name}-ObservabilityStack", f"{config.name}-{WORKFLOW_STACK}"]
        return [*first, *training_stacks(client, config.name)]
    return [f"{config.name}-{stack}" for stack in config.stacks if stack not in ("NetworkStack", "StorageStack")]


def training_stacks(client: Any, deployment: str) -> list[str]:
    """Return the names of the stacks of a deployment's slots, including slots that its file no longer contains."""
    pages = client.get_paginator("describe_stacks").paginate()
    names = (parse(stack["StackName"]) for page in pages for stack in page["Stacks"])
    found = [name for name in names if name is not None and name.deployment == deployment]
    return sorted(str(name) for name in found if name.kind == TRAINING_STACK)


def _has_file_system(client: Any, stack: str) -> bool:
    if describe(client, stack) is None:
        return False
    return any(
        one["ResourceType"] == "AWS::FSx::FileSystem" and one["ResourceStatus"] != "DELETE_COMPLETE"
        for one in resources(client, stack)
    )


def _confirm(stacks: Sequence[str]) -> None:
    if not sys.stdin.isatty():
        raise DeployError(f"would delete {', '.join(stacks)}; pass --force to confirm without a terminal")
    if input(f"Delete {', '.join(stacks)}? The data remains. [y/N] ").strip().lower() not in ("y", "yes"):
        raise DeployError("nothing was deleted")


def delete_stack(client: Any, name: str) -> None:
    """Delete a stack, and print the number of remaining resources whenever it changes.

    Raises:
        DeployError: CloudFormation could not delete the stack, or the deadline passed.
    """
    stack = describe(client, name)
    assert stack is not None
    stack_id = str(stack["StackId"])
    print(f"{name}: deleting", flush=True)
    client.delete_stack(StackName=stack_id)
    deadline, shown = time.monotonic() + DEADLINE_SECONDS, -1
    while time.monotonic() < deadline:
        described = describe(client, stack_id)
        status = "DELETE_COMPLETE" if described is None else str(described["StackStatus"])
        if status == "DELETE_COMPLETE":
            print(f"{name}: deleted", flush=True)
            return
        if status == "DELETE_FAILED":
            raise DeployError(f"{name}: CloudFormation could not delete it:\n{_reasons(client, stack_id)}")
        left = sum(one["ResourceStatus"] != "DELETE_COMPLETE" for one in resources(client, stack_id))
        if left != shown:
            print(f"{name}: {left} resources left", flush=True)
            shown = left
        time.sleep(POLL_SECONDS)
    raise DeployError(
        f"{name}: still being deleted after {DEADLINE_SECONDS:.0f} s; run the command again to wait longer"
    )


def _reasons(client: Any, stack_id: str) -> str:
    failed = [one for one in resources(client, stack_id) if one["ResourceStatus"] == "DELETE_FAILED"]
    return "\n".join(f"  {one['LogicalResourceId']}: {one.get('ResourceStatusReason', 'no reason')}" for one in failed)


def print_remaining(session: boto3.Session, deployment: str) -> None:
    """Print the data that remains, with its monthly price."""
    left = remaining(session, deployment)
    client = session.client("cloudformation")
    if describe(client, f"{deployment}-PipelineStack") is not None:
        print(
            f"{deployment}-PipelineStack remains, and the next merge deploys its files again: to remove it, run "
            f"`cdk destroy PipelineStack`"
        )
    if not left:
        print("no data remains")
        return
    print(f"remaining data (list prices of {PRICES_REGION}, {PRICES_DATE}):")
    for one in left:
        print(f"  {one}")
    print(f"  {_total(left)}; docs/runbook.md contains the commands that delete data")


def _total(left: Sequence[Remaining]) -> str:
    unknown = sum(one.usd_per_month is None for one in left)
    text = f"total: {sum(one.usd_per_month or 0.0 for one in left):.2f} USD per month"
    return f"{text}, excluding {unknown} unknown prices" if unknown else text
