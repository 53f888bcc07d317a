"""The providers of single resource types, grouped by service."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from ..provider import Provider

_GROUPS = (
    "autoscaling",
    "budgets",
    "cloudwatch",
    "dlm",
    "dynamodb",
    "ec2_fleet",
    "ec2_instance",
    "ec2_launch",
    "ec2_network",
    "ec2_traffic",
    "ecr",
    "events",
    "fsx",
    "iam",
    "kms",
    "lambda_",
    "logs",
    "messaging",
    "resource_groups",
    "s3",
    "ssm",
)


@functools.cache
def registry() -> Mapping[str, Provider]:
    """Return the provider of each resource type that the local cloud emulates, by type name."""
    found: dict[str, Provider] = {}
    for group in _GROUPS:
        for provider in import_module(f"{__name__}.{group}").PROVIDERS:
            assert provider.type_name not in found, provider.type_name
            found[provider.type_name] = provider
    return MappingProxyType(found)
