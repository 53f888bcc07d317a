"""The policy as IAM takes it: statements by scope, packed into documents of the size that a managed policy may have."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from stacks.config import DeploymentConfig
from stacks.execution_policy.scopes import NAME, SCOPES, Scope, condition

# Source (2026-11): https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html; blanks do not count.
MAXIMUM_CHARACTERS = 6144
MAXIMUM_DOCUMENTS = 10
Document = dict[str, Any]


class PolicyTooLarge(ValueError):
    """More statements than a role's managed policies hold; the message says what to do."""


@dataclass(frozen=True)
class Deployments:
    """For which deployments the policy is: what of their files it depends on."""

    partition: str
    names: tuple[str, ...]
    regions: tuple[str, ...]
    ceilings: tuple[str, ...]

    @classmethod
    def of(cls, configs: Iterable[DeploymentConfig]) -> Deployments:
        """Return those of deployment files."""
        every = list(configs)
        regions = sorted({one.region for one in every})
        partition = {"cn": "aws-cn", "us-gov": "aws-us-gov"}.get(regions[0].rsplit("-", 2)[0], "aws")
        own = {f"arn:{partition}:iam::*:policy/trainstack-{one.name}-*" for one in every}
        given = {one.node.permissions_boundary for one in every if one.node.permissions_boundary is not None}
        return cls(partition, tuple(sorted({one.name for one in every})), tuple(regions), tuple(sorted(own | given)))


def documents(actions: Iterable[str], deployments: Deployments) -> list[Document]:
    """Return the policy documents that allow these actions where the deployments need them.

    Raises:
        PolicyTooLarge: They do not fit into a role's managed policies.
    """
    chosen: dict[Scope, list[str]] = {}
    for action in sorted(set(actions)):
        scope = next(one for one in SCOPES if one.holds(action))
        chosen.setdefault(scope, []).append(action)
    statements = [
        part
        for scope in SCOPES
        if scope in chosen
        for part in _split(_statement(scope, _without_covered(chosen[scope]), deployments))
    ]
    packed = _pack(statements)
    if len(packed) > MAXIMUM_DOCUMENTS:
        raise PolicyTooLarge(
            f"{len(packed)} policies of {MAXIMUM_CHARACTERS} characters, and a role takes {MAXIMUM_DOCUMENTS}: name "
            "fewer deployment files, and bootstrap the others in an account of their own"
        )
    return packed


def size_characters(document: Mapping[str, Any]) -> int:
    """Return a document's size as IAM counts it."""
    return len(json.dumps(document, separators=(",", ":")))


def _statement(scope: Scope, actions: Sequence[str], deployments: Deployments) -> Document:
    resources = [
        f"arn:{deployments.partition}:{pattern.replace(NAME, name)}" if pattern != "*" else pattern
        for pattern in scope.resources
        for name in (deployments.names if NAME in pattern else ("",))
    ]
    limit = condition(scope.limit, regions=deployments.regions, ceilings=deployments.ceilings)
    statement: Document = {"Sid": scope.sid, "Effect": "Allow", "Action": list(actions), "Resource": resources}
    return statement if limit is None else statement | {"Condition": limit}


def _without_covered(actions: Sequence[str]) -> list[str]:
    """Leave out what a pattern beside it allows already."""
    patterns = [action for action in actions if action.endswith("*")]
    return [action for action in actions if not any(action != wide and fnmatchcase(action, wide) for wide in patterns)]


def _split(statement: Document) -> list[Document]:
    """Halve the actions of a statement that alone is too large for a document."""
    if size_characters(_document([statement])) <= MAXIMUM_CHARACTERS:
        return [statement]
    actions: list[str] = statement["Action"]
    if len(actions) == 1:
        raise PolicyTooLarge(f"{statement['Sid']}: too many deployments for one policy; name fewer deployment files")
    half = len(actions) // 2
    parts = (
        statement | {"Sid": statement["Sid"] + "A", "Action": actions[:half]},
        statement | {"Sid": statement["Sid"] + "B", "Action": actions[half:]},
    )
    return [piece for part in parts for piece in _split(part)]


def _pack(statements: Iterable[Document]) -> list[Document]:
    """Fill documents, largest statement first, each into the first one with room."""
    bins: list[list[Document]] = []
    for statement in sorted(statements, key=lambda one: (-size_characters(one), one["Sid"])):
        for room in bins:
            if size_characters(_document([*room, statement])) <= MAXIMUM_CHARACTERS:
                room.append(statement)
                break
        else:
            bins.append([statement])
    return [_document(room) for room in bins]


def _document(statements: Sequence[Document]) -> Document:
    return {"Version": "2012-10-17", "Statement": list(statements)}
