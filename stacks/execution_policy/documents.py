"""Policy documents with one statement per scope, packed to stay within the size limit for managed policies."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from stacks.config import DeploymentConfig
from stacks.constructs.cdk_bootstrap_roles import DEFAULT_QUALIFIER
from stacks.execution_policy.scopes import ADDITIONAL_SCOPES, NAME, QUALIFIER, SCOPES, Scope, condition

# White space does not count toward these limits.
# Source (2026-11): https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html
MAX_CHARACTERS = 6144
MAX_DOCUMENTS = 10
Document = dict[str, Any]


class PolicyTooLarge(ValueError):
    """The statements exceed the limits for a role's managed policies. The message contains the remedy."""


@dataclass(frozen=True)
class Deployments:
    """The deployments that a policy covers, with their partition, names, regions and permissions boundaries.

    `qualifier` is the qualifier of the bootstrap that deploys them.
    """

    partition: str
    names: tuple[str, ...]
    regions: tuple[str, ...]
    boundaries: tuple[str, ...]
    qualifier: str = DEFAULT_QUALIFIER

    @classmethod
    def of(cls, configs: Iterable[DeploymentConfig], *, qualifier: str = DEFAULT_QUALIFIER) -> Deployments:
        """Return the deployments for a list of deployment files."""
        every = list(configs)
        regions = sorted({one.region for one in every})
        partition = {"cn": "aws-cn", "us-gov": "aws-us-gov"}.get(regions[0].rsplit("-", 2)[0], "aws")
        own = {f"arn:{partition}:iam::*:policy/trainstack-{one.name}-*" for one in every}
        given = {one.node.permissions_boundary for one in every if one.node.permissions_boundary is not None}
        return cls(
            partition, tuple(sorted({one.name for one in every})), tuple(regions), tuple(sorted(own | given)), qualifier
        )


def documents(actions: Iterable[str], deployments: Deployments) -> list[Document]:
    """Return the policy documents that allow the given actions on the deployments' resources.

    Raises:
        PolicyTooLarge: The documents exceed the limits for a role's managed policies.
    """
    chosen: dict[Scope, list[str]] = {}
    for action in sorted(set(actions)):
        scope = next(one for one in SCOPES if one.holds(action))
        chosen.setdefault(scope, []).append(action)
        for additional in ADDITIONAL_SCOPES:
            if additional.holds(action):
                chosen.setdefault(additional, []).append(action)
    statements = [
        part
        for scope in (*SCOPES, *ADDITIONAL_SCOPES)
        if scope in chosen
        for part in _split(_statement(scope, _without_covered(chosen[scope]), deployments))
    ]
    packed = _pack(statements)
    if len(packed) > MAX_DOCUMENTS:
        raise PolicyTooLarge(
            f"{len(packed)} policies of {MAX_CHARACTERS} characters exceed the limit of {MAX_DOCUMENTS} per role: pass "
            "fewer deployment files, and bootstrap the others in a separate account"
        )
    return packed


def size_characters(document: Mapping[str, Any]) -> int:
    """Return a document's size in characters, as counted by IAM."""
    return len(json.dumps(document, separators=(",", ":")))


def _statement(scope: Scope, actions: Sequence[str], deployments: Deployments) -> Document:
    resources = [
        f"arn:{deployments.partition}:{pattern.replace(NAME, name).replace(QUALIFIER, deployments.qualifier)}"
        if pattern != "*"
        else pattern
        for pattern in scope.resources
        for name in (deployments.names if NAME in pattern else ("",))
    ]
    limit = condition(scope.limit, regions=deployments.regions, boundaries=deployments.boundaries)
    statement: Document = {"Sid": scope.sid, "Effect": "Allow", "Action": list(actions), "Resource": resources}
    return statement if limit is None else statement | {"Condition": limit}


def _without_covered(actions: Sequence[str]) -> list[str]:
    """Return the actions that no other pattern in the list covers."""
    patterns = [action for action in actions if action.endswith("*")]
    return [action for action in actions if not any(action != wide and fnmatchcase(action, wide) for wide in patterns)]


def _split(statement: Document) -> list[Document]:
    """Split the actions of a statement that is too large for one document."""
    if size_characters(_document([statement])) <= MAX_CHARACTERS:
        return [statement]
    actions: list[str] = statement["Action"]
    if len(actions) == 1:
        raise PolicyTooLarge(f"{statement['Sid']}: too many deployments for one policy; pass fewer deployment files")
    half = len(actions) // 2
    parts = (
        statement | {"Sid": statement["Sid"] + "A", "Action": actions[:half]},
        statement | {"Sid": statement["Sid"] + "B", "Action": actions[half:]},
    )
    return [piece for part in parts for piece in _split(part)]


def _pack(statements: Iterable[Document]) -> list[Document]:
    """Pack statements into documents. Place each statement, largest first, in the first document with enough space."""
    bins: list[list[Document]] = []
    for statement in sorted(statements, key=lambda one: (-size_characters(one), one["Sid"])):
        for room in bins:
            if size_characters(_document([*room, statement])) <= MAX_CHARACTERS:
                room.append(statement)
                break
        else:
            bins.append([statement])
    return [_document(room) for room in bins]


def _document(statements: Sequence[Document]) -> Document:
    return {"Version": "2012-10-17", "Statement": list(statements)}
