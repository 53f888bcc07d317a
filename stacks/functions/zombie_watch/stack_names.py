"""Names of a deployment's stacks in CloudFormation, and the stacks that a region contains.

This module imports only the standard library, because functions and commands that must start fast use it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

TRAINING_STACK = "TrainingStack"
CLUSTER_STACKS = ("PcsStack", "HyperPodStack", "EksStack")
"""The stacks of managed clusters, whose services launch the nodes."""
NODE_STACKS = (TRAINING_STACK, *CLUSTER_STACKS)
"""The stacks with nodes. Each deployment has one of them, or several TrainingStacks."""
STACKS = ("NetworkStack", "StorageStack", *NODE_STACKS, "ObservabilityStack")
_NAME = re.compile(rf"([a-z0-9-]+)-(?:({'|'.join(STACKS)})|{TRAINING_STACK}-([a-z0-9-]+))")


@dataclass(frozen=True)
class StackName:
    """The parts of a stack's name.

    Attributes:
        deployment: Name of the deployment.
        kind: One of STACKS.
        slot: Suffix of the slot that the stack belongs to; "" for the first slot and for stacks of all slots.
    """

    deployment: str
    kind: str
    slot: str = ""

    @property
    def fleet(self) -> str:
        """Name of the fleet of a training stack."""
        return f"{self.deployment}-{self.slot}" if self.slot else self.deployment

    @property
    def construct(self) -> str:
        """Construct id of the stack."""
        return f"{self.kind}-{self.slot}" if self.slot else self.kind

    @classmethod
    def of(cls, deployment: str, construct: str) -> StackName:
        """Return the name of a deployment's stack with a construct id."""
        kind, _, slot = construct.partition("-")
        return cls(deployment, kind, slot)

    def __str__(self) -> str:
        """Return the name."""
        return f"{self.deployment}-{self.construct}"


def parse(name: str) -> StackName | None:
    """Return the parts of a stack's name, or None if the stack does not belong to a deployment."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    return StackName(found[1], found[2] or TRAINING_STACK, found[3] or "")


def candidates(fleet: str) -> list[StackName]:
    """Return the possible names of a fleet's training stack: `x-2` is a deployment, or slot `2` of deployment `x`."""
    splits = [(fleet[:index], fleet[index + 1 :]) for index in range(len(fleet) - 1, 0, -1) if fleet[index] == "-"]
    slots = [StackName(deployment, TRAINING_STACK, slot) for deployment, slot in splits if slot]
    return [StackName(fleet, TRAINING_STACK), *slots]


def deployments(client: Callable[[str], Any]) -> dict[str, frozenset[str]]:
    """Return the construct ids of the stacks that each fleet in the region has.

    A deployment's own entry contains the training stacks of all its slots. The entry of another slot contains its
    training stack as TrainingStack, and the stacks that all slots share. If another deployment has the same name, the
    entry contains the stacks of both.

    Raises:
        botocore.exceptions.ClientError: AWS rejected the call.
    """
    found: dict[str, set[str]] = {}
    slots: dict[str, str] = {}
    for page in client("cloudformation").get_paginator("list_stacks").paginate():
        for stack in page["StackSummaries"]:
            name = parse(stack["StackName"])
            if name is None or stack["StackStatus"] == "DELETE_COMPLETE":  # listed for 90 days
                continue
            found.setdefault(name.deployment, set()).add(name.construct)
            if name.slot:
                slots[name.fleet] = name.deployment
    shared = {fleet: found[owner] & set(STACKS) | {TRAINING_STACK} for fleet, owner in slots.items()}
    return {name: frozenset(found.get(name, set()) | shared.get(name, set())) for name in {**found, **shared}}


def slots_by_deployment(stacks: Mapping[str, frozenset[str]]) -> dict[str, list[StackName]]:
    """Return the training stacks of each deployment, from the result of `deployments`."""
    found = {
        owner: [StackName.of(owner, kind) for kind in sorted(kinds) if kind.startswith(TRAINING_STACK)]
        for owner, kinds in stacks.items()
    }
    others = {slot.fleet for slots in found.values() for slot in slots if slot.slot}
    return {owner: slots for owner, slots in found.items() if slots and owner not in others}
