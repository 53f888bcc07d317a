"""Evaluates policies for an action on a resource: explicit denies first, then allows, then the implicit deny.

Source: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic.html (2026-11).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from localcloud.api import Principal
from localcloud.iam.conditions import as_list, conditions_hold, substitute, wildcard_match

Document = Mapping[str, Any]
Context = Mapping[str, Sequence[str]]
Verdict = Literal["allow", "delegated", "deny", "silent"]


@dataclass(frozen=True)
class Access:
    """A required permission: an IAM action on a resource, with its condition keys in lower case."""

    action: str
    resource: str
    context: Mapping[str, Sequence[str]]


def verdict(documents: Iterable[Document], access: Access, context: Context, principal: Principal | None) -> Verdict:
    """Return the verdict of a set of policies on an action and resource.

    Args:
        principal: The caller, for resource and trust policies, or None for identity policies. The verdict "delegated"
            means that a resource policy allows the principal's account, so identity policies decide.
    """
    found: Verdict = "silent"
    for statement in _statements(documents):
        if not _applies(statement, access, context, principal):
            continue
        if statement["Effect"] == "Deny":
            return "deny"
        if principal is not None and not _names_principal(statement, principal):
            found = "delegated" if found == "silent" else found
        else:
            found = "allow"
    return found


def grants(documents: Iterable[Document], access: Access, context: Context) -> list[Mapping[str, Any]]:
    """Return the identity policy statements that allow an action on a resource."""
    return [
        statement
        for statement in _statements(documents)
        if statement["Effect"] == "Allow" and _applies(statement, access, context, None)
    ]


def _statements(documents: Iterable[Document]) -> Iterator[Mapping[str, Any]]:
    for document in documents:
        statements = document.get("Statement", [])
        yield from statements if isinstance(statements, list) else [statements]


def _applies(statement: Mapping[str, Any], access: Access, context: Context, principal: Principal | None) -> bool:
    if "Action" in statement and not _any(as_list(statement["Action"]), access.action, ignore_case=True):
        return False
    if "NotAction" in statement and _any(as_list(statement["NotAction"]), access.action, ignore_case=True):
        return False
    if "Resource" in statement and not _any(
        [substitute(r, context) for r in as_list(statement["Resource"])], access.resource
    ):
        return False
    if "NotResource" in statement and _any(
        [substitute(r, context) for r in as_list(statement["NotResource"])], access.resource
    ):
        return False
    if principal is not None and not _principal_matches(statement, principal):
        return False
    return conditions_hold(statement.get("Condition", {}), context)


def _any(patterns: Iterable[str], value: str, *, ignore_case: bool = False) -> bool:
    if ignore_case:
        return any(wildcard_match(pattern.lower(), value.lower()) for pattern in patterns)
    return any(wildcard_match(pattern, value) for pattern in patterns)


def _names_principal(statement: Mapping[str, Any], principal: Principal) -> bool:
    """Return True if a statement names this principal and not only its account."""
    if principal.kind in ("service", "root"):
        return True
    element = statement.get("Principal")
    named = as_list(element.get("AWS", [])) if isinstance(element, Mapping) else []
    return element == "*" or "*" in named or bool({principal.arn, principal.role_arn} & set(named))


def _principal_matches(statement: Mapping[str, Any], principal: Principal) -> bool:
    if "NotPrincipal" in statement:
        return not _names(statement["NotPrincipal"], principal)
    return "Principal" in statement and _names(statement["Principal"], principal)


def _names(element: Any, principal: Principal) -> bool:
    if element == "*":
        return True
    mine = {principal.arn, principal.account, f"arn:aws:iam::{principal.account}:root"}
    if principal.role_arn is not None:
        mine.add(principal.role_arn)
    for kind, named in element.items():
        names = as_list(named)
        if kind == "AWS" and principal.kind != "service" and ("*" in names or mine & set(names)):
            return True
        if kind == "Service" and principal.kind == "service" and principal.arn in names:
            return True
    return False
