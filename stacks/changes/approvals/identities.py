"""Finds the properties that determine which identity a resource runs as, or who can use it, in all resource schemas.

cfn-lint's schemas mark references to roles, profiles and other principals with a format. A type whose handlers need
iam:PassRole passes a role to a service; its properties without a format are recognized by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from stacks.changes.templates.template_set import PropertyPath
from stacks.changes.updates.schemas import schema

RUNS_AS = "determines which identity the resource runs as"
_FORMAT = re.compile(r"AWS::IAM::(Role|InstanceProfile)\b")
_NAME = re.compile(r"(role|roles|rolearns?|roleid|instanceprofile(name|arn)?|permissionarn)$", re.IGNORECASE)
MAX_DEPTH = 12


def decides_identity(type_name: str, path: PropertyPath) -> str | None:
    """Return a reason for approval if a property, or one below it, names a role or profile, and None otherwise."""
    named = tuple(part for part in path if not part.isdigit())
    if any(one[: len(named)] == named or named[: len(one)] == one for one in identity_paths(type_name)):
        return RUNS_AS
    return RUNS_AS if named and _NAME.search(named[-1]) else None


@cache
def identity_paths(type_name: str) -> frozenset[PropertyPath]:
    """Return the paths of a type's properties that name a role or an instance profile."""
    found = schema(type_name)
    return frozenset(_paths(found, found.get("definitions", {}), (), 0))


def _paths(node: Any, definitions: Mapping[str, Any], path: PropertyPath, depth: int) -> Iterator[PropertyPath]:
    if not isinstance(node, Mapping) or depth > MAX_DEPTH:
        return
    reference = node.get("$ref")
    if isinstance(reference, str):
        yield from _paths(definitions.get(reference.rpartition("/")[2]), definitions, path, depth + 1)
    if path and (_FORMAT.match(str(node.get("format", ""))) or _NAME.search(path[-1])):
        yield path
    for name, one in node.get("properties", {}).items():
        yield from _paths(one, definitions, (*path, name), depth + 1)
    for name in ("items", "anyOf", "oneOf", "allOf"):
        parts = node.get(name, [])
        for one in parts if isinstance(parts, list) else [parts]:
            yield from _paths(one, definitions, path, depth + 1)
