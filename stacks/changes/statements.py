"""Policy statements as sets of rights, and whether one set allows all that another does.

A right is one action on one resource for one principal under conditions. Patterns are compared as patterns: `s3:Get*`
covers `s3:GetObject` and `s3:GetB*`. A comparison that cannot be decided answers no, so that a reviewer looks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from stacks.changes.texts import text_of

ANYONE = "*"


@dataclass(frozen=True)
class Right:
    """One action on one resource for one principal; each of the three is a pattern, `not_` ones name all but it.

    `conditions` are (operator, key, values) and all must hold. In a policy of an identity the principal is "".
    """

    effect: str
    action: str
    resource: str
    principal: str
    conditions: frozenset[tuple[str, str, frozenset[str]]] = frozenset()
    is_action_excluded: bool = False
    is_resource_excluded: bool = False
    is_principal_excluded: bool = False

    def __str__(self) -> str:
        """Return it in words."""
        parts = ["everything but " + self.action if self.is_action_excluded else self.action]
        if self.resource:
            parts.append("on everything but " + self.resource if self.is_resource_excluded else f"on {self.resource}")
        if self.principal:
            parts.append("by everyone but " + self.principal if self.is_principal_excluded else f"by {self.principal}")
        if self.conditions:
            parts.append("if " + " and ".join(sorted(_condition_text(*one) for one in self.conditions)))
        return " ".join(parts)


def _condition_text(operator: str, key: str, values: frozenset[str]) -> str:
    return f"{key} {operator} {', '.join(sorted(values))}"


def rights_of(document: Any, principal: str = "") -> list[Right]:
    """Return the rights of a policy document; `principal` stands where statements name none."""
    statements = document.get("Statement", []) if isinstance(document, Mapping) else []
    listed = statements if isinstance(statements, list) else [statements]
    return [right for one in listed if isinstance(one, Mapping) for right in _rights(one, principal)]


def _rights(statement: Mapping[str, Any], principal: str) -> Iterator[Right]:
    conditions = frozenset(
        (operator, key, frozenset(text_of(value) for value in _list(values)))
        for operator, keys in statement.get("Condition", {}).items()
        for key, values in keys.items()
    )
    principals = list(_principals(statement.get("Principal", statement.get("NotPrincipal")))) or [principal]
    for action in _list(statement.get("Action", statement.get("NotAction", ANYONE))):
        for resource in _list(statement.get("Resource", statement.get("NotResource", ""))):
            for who in principals:
                yield Right(
                    effect=str(statement.get("Effect", "Allow")),
                    action=text_of(action),
                    resource=text_of(resource),
                    principal=who,
                    conditions=conditions,
                    is_action_excluded="NotAction" in statement,
                    is_resource_excluded="NotResource" in statement,
                    is_principal_excluded="NotPrincipal" in statement,
                )


def _principals(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for kind, names in value.items():
            for name in _list(names):
                text = text_of(name)
                yield ANYONE if (kind, text) == ("AWS", ANYONE) else f"{kind} {text}"
    elif value is not None:
        yield text_of(value)


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]


def broadened(before: Sequence[Right], after: Sequence[Right]) -> list[Right]:
    """Return what becomes possible: new rights that no old one covers, and old denials that no new one covers."""
    allowed, denied = _split(before)
    now_allowed, now_denied = _split(after)
    return [one for one in now_allowed if not _covered(one, allowed)] + [
        one for one in denied if not _covered(one, now_denied)
    ]


def narrowed(before: Sequence[Right], after: Sequence[Right]) -> list[Right]:
    """Return what is no longer possible."""
    return broadened(after, before)


def _split(rights: Sequence[Right]) -> tuple[list[Right], list[Right]]:
    return [one for one in rights if one.effect == "Allow"], [one for one in rights if one.effect != "Allow"]


def _covered(right: Right, others: Sequence[Right]) -> bool:
    return any(_covers(one, right) for one in others)


def _covers(wide: Right, narrow: Right) -> bool:
    return (
        _part_covers(wide.action.lower(), wide.is_action_excluded, narrow.action.lower(), narrow.is_action_excluded)
        and _part_covers(wide.resource, wide.is_resource_excluded, narrow.resource, narrow.is_resource_excluded)
        and _part_covers(wide.principal, wide.is_principal_excluded, narrow.principal, narrow.is_principal_excluded)
        and all(any(_implies(held, asked) for held in narrow.conditions) for asked in wide.conditions)
    )


def _part_covers(wide: str, wide_excludes: bool, narrow: str, narrow_excludes: bool) -> bool:
    if wide_excludes or narrow_excludes:
        return (wide, wide_excludes) == (narrow, narrow_excludes) or (wide == ANYONE and not wide_excludes)
    return pattern_covers(wide, narrow)


def _implies(held: tuple[str, str, frozenset[str]], asked: tuple[str, str, frozenset[str]]) -> bool:
    """Tell whether a condition that holds makes another one hold: the same, with no other values.

    More values make a positive operator wider and a negative one ("NotEquals") narrower. Of the rest, only the same
    condition is known to hold.
    """
    if held[0].lower() != asked[0].lower() or held[1].lower() != asked[1].lower():
        return False
    if held[2] == asked[2]:
        return True
    if "forallvalues" in asked[0].lower() or "forallvalues" in held[0].lower():
        return False
    if "not" in asked[0].lower():
        return held[2] >= asked[2]
    is_pattern = any(word in asked[0].lower() for word in ("like", "arn"))
    if not is_pattern and "equals" not in asked[0].lower():
        return False
    return all(any(one == value or is_pattern and pattern_covers(one, value) for one in asked[2]) for value in held[2])


@cache
def pattern_covers(wide: str, narrow: str) -> bool:
    """Tell whether every text that fits one pattern fits another; `*` is any text and `?` any character."""
    if wide in (narrow, ANYONE):
        return True
    # Which places in `wide` the characters of `narrow` so far can have led to.
    places = _past_stars(wide, {0})
    for character in narrow:
        if character == "*":
            # Only a star takes any text.
            places = {place for place in places if place < len(wide) and wide[place] == "*"}
        else:
            takes = ("*", "?", character)
            places = {
                place if wide[place] == "*" else place + 1
                for place in places
                if place < len(wide) and wide[place] in takes
            }
        places = _past_stars(wide, places)
        if not places:
            return False
    return len(wide) in places


def _past_stars(pattern: str, places: set[int]) -> set[int]:
    found = set(places)
    for place in places:
        while place < len(pattern) and pattern[place] == "*":
            place += 1
            found.add(place)
    return found
