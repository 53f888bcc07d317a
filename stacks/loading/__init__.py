"""Loads deployment files: decodes the YAML, fills in unset values, and applies all rules."""

from __future__ import annotations

from pathlib import Path

from stacks.config import DeploymentConfig
from stacks.errors import ConfigError
from stacks.loading.decoding import decode
from stacks.loading.resolution import resolve
from stacks.loading.stages import stage_problems
from stacks.loading.yaml_source import read_yaml
from stacks.validators import problems

__all__ = ["load", "read"]


def read(path: Path) -> DeploymentConfig:
    """Decode a deployment file without applying cross-section rules.

    Raises:
        ConfigError: The file has problems in its YAML, keys or types. The exception contains all of them.
    """
    data, repeated = read_yaml(path)
    config, undecoded = decode(data)
    if repeated or undecoded:
        raise ConfigError(str(path), [*repeated, *undecoded])
    return config


def load(path: Path) -> DeploymentConfig:
    """Decode a deployment file, fill in instance types, image and wheelhouse, and apply all rules.

    Raises:
        ConfigError: The file has problems in its YAML, keys or types, or violates cross-section rules. The exception
            contains all problems.
    """
    data, repeated = read_yaml(path)
    decoded, undecoded = decode(data)
    config, unresolved = resolve(decoded, path)
    found = [*problems(config), *stage_problems(config, read)]
    errors = [*repeated, *undecoded, *unresolved, *(one for one in found if one.severity == "error")]
    if errors:
        raise ConfigError(str(path), errors)
    return config
