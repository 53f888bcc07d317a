"""Resource type providers, with one module or package for each AWS service."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from localcloud.cloudformation.provider import Provider

_MODULES = (
    *("autoscaling", "budgets", "cloudwatch", "dlm", "ec2.fleet", "ec2.launch", "ec2.network", "ec2.traffic"),
    *("ec2.volume", "ecr", "events", "fsx", "iam", "kms", "lambda_", "logs", "messaging", "s3", "ssm", "stepfunctions"),
)


@functools.cache
def registry() -> Mapping[str, Provider]:
    """Return the provider for each emulated resource type, by type name."""
    found: dict[str, Provider] = {}
    for module in _MODULES:
        for provider in import_module(f"{__name__}.{module}").PROVIDERS:
            assert provider.type_name not in found, provider.type_name
            found[provider.type_name] = provider
    return MappingProxyType(found)
