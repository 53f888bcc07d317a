"""Reads the account file, which describes an account's limits and defects: `python -m localcloud up --account FILE`.

localcloud/README.md documents the keys, all of which are optional.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import yaml

from localcloud.account.quotas import QUOTAS


class AccountFileError(ValueError):
    """The file is invalid. The message lists all problems."""


@dataclass(frozen=True)
class ImageDescription:
    """A machine image in a public parameter. `exists` is False if AWS has deleted the image."""

    parameter: str
    name: str = ""
    root_device: str = "/dev/xvda"
    gib: int = 75
    architecture: str = "x86_64"
    exists: bool = True


@dataclass(frozen=True)
class VpcDescription:
    """A VPC with subnets (zone letter: range), endpoints, and DNS settings."""

    name: str
    cidr: str
    dns_support: bool = True
    dns_servers: list[str] = field(default_factory=list)
    subnets: dict[str, str] = field(default_factory=dict)
    endpoints: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class AccountDescription:
    """An account's limits, zones, denied actions, images and networks. The defaults describe an unlimited account."""

    quotas: dict[str, float] = field(default_factory=dict)
    lambda_concurrent_executions: int = 1000
    zones: list[str] = field(default_factory=list)
    denied_actions: list[str] = field(default_factory=list)
    endpoint_zones: dict[str, list[str]] = field(default_factory=dict)
    endpoints_without_policy: list[str] = field(default_factory=list)
    images: list[ImageDescription] = field(default_factory=list)
    vpcs: list[VpcDescription] = field(default_factory=list)


def read_account(path: Path) -> AccountDescription:
    """Read a file.

    Raises:
        AccountFileError: The file is invalid.
    """
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise AccountFileError(f"{path}: {error}") from error
    return account_of(loaded, str(path))


def account_of(loaded: Any, source: str = "account") -> AccountDescription:
    """Convert a mapping to a description.

    Raises:
        AccountFileError: The mapping is invalid.
    """
    problems: list[str] = []
    account: AccountDescription = _decoded(AccountDescription, loaded, "", problems)
    if not problems:
        unknown = [code for code in account.quotas if code not in QUOTAS]
        problems += [f"quotas.{code}: unknown quota; known quotas: {', '.join(QUOTAS)}" for code in unknown]
    if problems:
        raise AccountFileError(f"{source}: {len(problems)} problems\n" + "\n".join(f"  {one}" for one in problems))
    return account


def _decoded(kind: Any, loaded: Any, path: str, problems: list[str]) -> Any:
    if not isinstance(loaded, Mapping):
        problems.append(f"{path or 'the file'}: {loaded!r}: must be a mapping")
        return None
    known, hints = {one.name: one for one in fields(kind)}, get_type_hints(kind)
    for key in loaded:
        if key not in known:
            problems.append(f"{path}{key}: unknown key; known keys: {', '.join(known)}")
    for name, one in known.items():
        if one.default is MISSING and one.default_factory is MISSING and name not in loaded:
            problems.append(f"{path}{name}: is missing")
    given = {name: _value(hints[name], loaded[name], f"{path}{name}", problems) for name in known if name in loaded}
    return None if problems else kind(**given)


def _value(hint: Any, value: Any, path: str, problems: list[str]) -> Any:
    origin = get_origin(hint)
    if origin is list and isinstance(value, Sequence) and not isinstance(value, str):
        (inner,) = hint.__args__
        return [_value(inner, item, f"{path}.{index}", problems) for index, item in enumerate(value)]
    if origin is dict and isinstance(value, Mapping):
        _, inner = hint.__args__
        return {str(key): _value(inner, item, f"{path}.{key}", problems) for key, item in value.items()}
    if origin is None and hasattr(hint, "__dataclass_fields__"):
        return _decoded(hint, value, f"{path}.", problems)
    plain = {float: (int, float), int: (int,), bool: (bool,)}.get(hint, (str,)) if origin is None else ()
    if not isinstance(value, plain) or (isinstance(value, bool) and hint is not bool):
        wanted = str(getattr(hint, "__name__", hint))
        problems.append(f"{path}: {value!r}: must be {wanted}")
    return value
