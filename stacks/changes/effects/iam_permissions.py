"""Converts policy statements to permissions, and compares two sets of permissions.

A permission allows or denies one set of actions on one set of resources for one set of principals under conditions. It
is covered if a single permission of the other side includes it. Patterns are compared with patterns: `s3:Get*` covers
both `s3:GetObject` and `s3:GetB*`. NotAction is compared as the complement of a set of patterns, so the comparison does
not depend on a list of all actions and remains valid when AWS adds actions. If a comparison is undecidable, the
permission is reported as not covered, so a reviewer checks it. Source of the rules (2026-11):
https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements.html
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stacks.changes.effects.patterns import are_disjoint, pattern_covers
from stacks.changes.templates.values import text_of

ANYONE = "*"
UNREADABLE = "unreadable"
"""The effect of a statement that cannot be interpreted. It could allow or deny anything."""
_ELEMENTS = {
    "Sid",
    "Effect",
    "Principal",
    "NotPrincipal",
    "Action",
    "NotAction",
    "Resource",
    "NotResource",
    "Condition",
}
_PAIRS = (("Action", "NotAction"), ("Resource", "NotResource"), ("Principal", "NotPrincipal"))
# Operators for which a subset of the values matches fewer requests. Patterns in values are compared as patterns.
_EQUAL = ("stringequals", "stringequalsignorecase", "numericequals", "dateequals", "binaryequals", "ipaddress")
_LIKE = ("stringlike", "arnlike", "arnequals")
# Operators for which a superset of the values matches fewer requests.
_NOT_EQUAL = (
    "stringnotequals", "stringnotequalsignorecase", "numericnotequals", "datenotequals", "notipaddress",
    "stringnotlike", "arnnotlike", "arnnotequals",
)  # fmt: skip
VARIABLES = re.compile(r"\$\{\s*(?:[A-Za-z0-9-]+:(?!:)|[*?$]\s*\})")
"""A policy variable, such as ${aws:userid}. References in templates, such as ${Role.Arn}, do not match."""
_WITH_VARIABLES = "2012-10-17"
Condition = tuple[str, str, frozenset[str]]
"""An operator, a key and values."""


@dataclass(frozen=True)
class Names:
    """The actions, resources or principals that match one of the patterns or, if excluded, none of them."""

    patterns: tuple[str, ...]
    is_excluded: bool = False

    def text(self, kind: str) -> str:
        """Return the names as text. `kind` is their plural, such as "actions"."""
        listed = ", ".join(self.patterns)
        return f"all {kind} except {listed}" if self.is_excluded else listed


@dataclass(frozen=True)
class Permission:
    """Actions on resources for principals.

    `conditions` must all be satisfied. The principal is "" in an identity policy. The resource is "" in a trust policy.
    """

    effect: str
    action: Names
    resource: Names
    principal: Names
    conditions: frozenset[Condition] = frozenset()
    has_literal_variables: bool = False
    """Whether policy variables are plain text, as in policies of the older version."""

    def __str__(self) -> str:
        """Return the permission as text."""
        parts = [self.action.text("actions")]
        if self.resource.patterns != ("",):
            parts.append(f"on {self.resource.text('resources')}")
        if self.principal.patterns != ("",):
            parts.append(f"by {self.principal.text('principals')}")
        if self.conditions:
            parts.append("if " + " and ".join(sorted(_condition_text(*one) for one in self.conditions)))
        if self.has_literal_variables:
            parts.append("with variables as plain text")
        return " ".join(parts)


ALL_PERMISSIONS = Permission("Allow", Names((ANYONE,)), Names((ANYONE,)), Names((ANYONE,)))
"""The permission that an endpoint grants if it does not have a policy."""


def _condition_text(operator: str, key: str, values: frozenset[str]) -> str:
    return f"{key} {operator} {', '.join(sorted(values))}"


def permissions_of(document: Any, principal: str = "") -> list[Permission]:
    """Return the permissions in a policy document, which may be JSON text.

    `principal` applies to statements that do not specify one. None means a document without statements.
    """
    if document is None:
        return []
    if isinstance(document, str):
        try:
            document = json.loads(document)
        except (ValueError, RecursionError):
            return [_unreadable(document)]
    if not isinstance(document, Mapping) or "Statement" not in document:
        return [_unreadable(document)] if document else []
    statements = document["Statement"]
    listed = statements if isinstance(statements, list) else [statements]
    found = [permission for one in listed for permission in _permissions(one, principal)]
    return found if document.get("Version") == _WITH_VARIABLES else [_with_literal_variables(one) for one in found]


def _with_literal_variables(permission: Permission) -> Permission:
    """Mark a permission whose policy variables are plain text, as in policies of the older version.

    Source (2026-11): https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements_version.html
    """
    values = (value for _, _, values in permission.conditions for value in values)
    texts = (*permission.resource.patterns, *permission.principal.patterns, *values)
    return replace(permission, has_literal_variables=True) if any(map(VARIABLES.search, texts)) else permission


def _unreadable(value: Any) -> Permission:
    nothing = Names(("",))
    return Permission(UNREADABLE, Names((text_of(value),)), nothing, nothing)


def _is_readable(statement: Any) -> bool:
    return (
        isinstance(statement, Mapping)
        and statement.keys() <= _ELEMENTS
        and statement.get("Effect") in ("Allow", "Deny")
        and not any(one in statement and other in statement for one, other in _PAIRS)
        and ("Action" in statement or "NotAction" in statement)
        and isinstance(statement.get("Condition", {}), Mapping)
        and all(isinstance(keys, Mapping) for keys in statement.get("Condition", {}).values())
    )


def _permissions(statement: Any, principal: str) -> Iterator[Permission]:
    if not _is_readable(statement):
        yield _unreadable(statement)
        return
    conditions = frozenset(
        (operator, key, frozenset(text_of(value) for value in _list(values)))
        for operator, keys in statement.get("Condition", {}).items()
        for key, values in keys.items()
    )
    for action in _names(statement, "Action", "NotAction"):
        for resource in _names(statement, "Resource", "NotResource"):
            for each in _principals(statement, principal):
                yield Permission(statement["Effect"], action, resource, each, conditions)


def _names(statement: Mapping[str, Any], name: str, excluded: str) -> list[Names]:
    if excluded in statement:
        return [Names(tuple(sorted({text_of(one) for one in _list(statement[excluded])})), is_excluded=True)]
    return [Names((text_of(one),)) for one in _list(statement.get(name, ""))]


def _principals(statement: Mapping[str, Any], default: str) -> list[Names]:
    if "NotPrincipal" in statement:
        return [Names(tuple(sorted(set(_principal_texts(statement["NotPrincipal"])))), is_excluded=True)]
    return [Names((text,)) for text in _principal_texts(statement.get("Principal", default))]


def _principal_texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping) and all(kind in ("AWS", "Service", "Federated", "CanonicalUser") for kind in value):
        for kind, names in value.items():
            for name in _list(names):
                text = text_of(name)
                yield ANYONE if (kind, text) == ("AWS", ANYONE) else f"{kind} {text}"
    else:
        yield text_of(value)


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]


def broadened(before: Sequence[Permission], after: Sequence[Permission]) -> list[Permission]:
    """Return the added permissions: new ones that no old one covers, and old denials that no new denial covers.

    A statement that cannot be interpreted must be equal on both sides.
    """
    old, new = set(before), set(after)
    found = [one for one in after if one.effect == "Allow" and one not in old and not _covered(one, before)]
    found += [one for one in before if one.effect == "Deny" and one not in new and not _covered(one, after)]
    return found + [one for one in (*before, *after) if one.effect == UNREADABLE and not (one in old and one in new)]


def narrowed(before: Sequence[Permission], after: Sequence[Permission]) -> list[Permission]:
    """Return the removed permissions."""
    return [one for one in broadened(after, before) if one.effect != UNREADABLE]


def _covered(permission: Permission, others: Sequence[Permission]) -> bool:
    return any(_covers(one, permission) for one in others)


def _covers(wide: Permission, narrow: Permission) -> bool:
    return (
        wide.effect == narrow.effect
        and wide.has_literal_variables == narrow.has_literal_variables
        and _actions_cover(wide.action, narrow.action)
        and _names_cover(wide.resource, narrow.resource)
        and _principals_cover(wide.principal, narrow.principal)
        and all(any(_implies(held, asked) for held in narrow.conditions) for asked in wide.conditions)
    )


def _actions_cover(wide: Names, narrow: Names) -> bool:
    """Return True if `wide` contains all actions of `narrow`. The comparison ignores case."""
    wide, narrow = (Names(tuple(name.lower() for name in one.patterns), one.is_excluded) for one in (wide, narrow))
    if wide.is_excluded and narrow.is_excluded:
        return all(any(pattern_covers(out, one) for out in narrow.patterns) for one in wide.patterns)
    if wide.is_excluded:
        return all(are_disjoint(one, each) for one in wide.patterns for each in narrow.patterns)
    return _names_cover(wide, narrow)


def _names_cover(wide: Names, narrow: Names) -> bool:
    if wide.is_excluded or narrow.is_excluded:
        return wide == narrow or wide == Names((ANYONE,))
    return all(any(pattern_covers(one, each) for one in wide.patterns) for each in narrow.patterns)


def _principals_cover(wide: Names, narrow: Names) -> bool:
    """Compare principals as text, because `*` is the only principal that is a pattern."""
    return wide == narrow or wide == Names((ANYONE,))


def _implies(held: Condition, asked: Condition) -> bool:
    """Return True if condition `held` implies condition `asked`.

    Both must have the same operator and key. With a positive operator, the values of `held` must be a subset. With a
    negative operator, they must be a superset. Any other operator (with IfExists or ForAllValues, Null, Bool, numeric
    and date comparisons) requires equal conditions.
    """
    if [text.lower() for text in held[:2]] != [text.lower() for text in asked[:2]]:
        return False
    if held[2] == asked[2]:
        return True
    operator = asked[0].lower().removeprefix("foranyvalue:")
    if operator in _NOT_EQUAL:
        return held[2] >= asked[2]
    if operator in _EQUAL:
        return held[2] <= asked[2]
    return operator in _LIKE and all(any(pattern_covers(one, value) for one in asked[2]) for value in held[2])
