"""The registry schemas of resource types, as cfn-lint ships them: what is required, read-only and create-only.

Read as files: importing cfn-lint takes longer than a whole change set.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

# The widest of the regions; the local cloud does not model which type is sold where.
REGION = "us-east-1"


@lru_cache(maxsize=1)
def _folder() -> Path:
    found = importlib.util.find_spec("cfnlint")
    assert found is not None and found.origin is not None, "cfn-lint is one of the pinned requirements"
    return Path(found.origin).parent / "data" / "schemas"


@lru_cache(maxsize=1)
def _files_by_type() -> Mapping[str, str]:
    files: Mapping[str, str] = json.loads((_folder() / "providers" / f"{REGION}.json").read_text())
    return files


@cache
def schema(type_name: str) -> Mapping[str, Any]:
    """Return the registry schema of a type; an empty one for types that have none (Custom::*, third parties)."""
    file = _files_by_type().get(type_name)
    if file is None:
        return {}
    loaded: Mapping[str, Any] = json.loads((_folder() / "resources" / f"{file}.json").read_text())
    return loaded


def paths(type_name: str, key: str) -> list[tuple[str, ...]]:
    """Return the property paths that a schema lists under a key such as "createOnlyProperties", without "*" parts."""
    return [
        tuple(part for part in pointer.removeprefix("/properties/").split("/") if part not in ("properties", "*"))
        for pointer in schema(type_name).get(key, [])
    ]


def required_properties(type_name: str) -> list[str]:
    """Return the properties that a type cannot be made without."""
    return list(schema(type_name).get("required", []))


def has_attribute(type_name: str, attribute: str) -> bool:
    """Tell whether Fn::GetAtt may name this attribute; types without a schema (and free-form ones) take any."""
    described = schema(type_name)
    if not described or "patternProperties" in described:
        return True
    return attribute.split(".", 1)[0] in described.get("properties", {})


def has_same_name(type_name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Tell whether two resources of a type would have one identity, given by the template and not by AWS."""
    names = paths(type_name, "primaryIdentifier")
    read_only = set(paths(type_name, "readOnlyProperties"))
    if not names or any(len(name) > 1 or name in read_only for name in names):
        return False
    return all(name[0] in old and old[name[0]] == new.get(name[0]) for name in names)


def is_taggable(type_name: str) -> bool:
    """Tell whether stack tags reach resources of this type."""
    described = schema(type_name)
    tagging = described.get("tagging")
    if isinstance(tagging, Mapping):
        return bool(tagging.get("taggable", True))
    return bool(described.get("taggable", "Tags" in described.get("properties", {})))
