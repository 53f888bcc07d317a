"""CloudFormation registry schemas for resource types, as distributed with cfn-lint.

The schemas are read as files because importing cfn-lint takes longer than a comparison.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from stacks.changes.templates.template_set import PropertyPath

# The region with the most types. The effect of an update does not depend on the region.
REGION = "us-east-1"


@cache
def _folder() -> Path:
    found = importlib.util.find_spec("cfnlint")
    assert found is not None and found.origin is not None, "install the pinned requirements, which include cfn-lint"
    return Path(found.origin).parent / "data" / "schemas"


@cache
def _file_names() -> Mapping[str, str]:
    names: Mapping[str, str] = json.loads((_folder() / "providers" / f"{REGION}.json").read_text(encoding="utf-8"))
    return names


@cache
def schema(type_name: str) -> Mapping[str, Any]:
    """Return a type's schema, which is empty for custom and third-party types (such as Custom::*)."""
    name = _file_names().get(type_name)
    if name is None:
        return {}
    loaded: Mapping[str, Any] = json.loads((_folder() / "resources" / f"{name}.json").read_text(encoding="utf-8"))
    return loaded


@cache
def paths(type_name: str, key: str) -> frozenset[PropertyPath]:
    """Return the property paths that a schema lists under a key such as "createOnlyProperties"."""
    skipped = ("properties", "items", "*")
    return frozenset(
        tuple(part for part in pointer.removeprefix("/properties/").split("/") if part not in skipped)
        for pointer in schema(type_name).get(key, [])
    )


def given_name(type_name: str, properties: Mapping[str, Any]) -> Any:
    """Return a resource's identifier if the template specifies every part of it, or None if AWS generates it."""
    names = paths(type_name, "primaryIdentifier")
    if not names or any(len(name) > 1 or name in paths(type_name, "readOnlyProperties") for name in names):
        return None
    if not all(name[0] in properties for name in names):
        return None
    return tuple(properties[name[0]] for name in sorted(names))
