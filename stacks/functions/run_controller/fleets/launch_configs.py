"""The LaunchTemplateConfigs that EC2 Fleet and Spot Fleet share: where they launch, and the same in other subnets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_PLACES = ("SubnetId", "AvailabilityZone", "AvailabilityZoneId")

Configs = Sequence[Mapping[str, Any]]


def subnets_of(configs: Configs) -> tuple[str, ...]:
    """Return the subnets of all overrides, each once, in their order."""
    found = (override.get("SubnetId") for config in configs for override in config.get("Overrides", []))
    return tuple(dict.fromkeys(subnet for subnet in found if subnet))


def versions_of(configs: Configs) -> str:
    """Return the launch template versions, which name what nodes are."""
    return ",".join(dict.fromkeys(str(config["LaunchTemplateSpecification"]["Version"]) for config in configs))


def moved(configs: Configs, subnets: Sequence[str]) -> list[dict[str, Any]]:
    """Return the same templates and types in other subnets."""
    return [
        {
            "LaunchTemplateSpecification": _by_id(config["LaunchTemplateSpecification"]),
            "Overrides": [
                {**override, "SubnetId": subnet} for override in _types(config["Overrides"]) for subnet in subnets
            ],
        }
        for config in configs
    ]


def _by_id(specification: Mapping[str, Any]) -> dict[str, Any]:
    # A description has the name too, and the calls refuse both.
    return {name: specification[name] for name in ("LaunchTemplateId", "Version")}


def _types(overrides: Configs) -> list[dict[str, Any]]:
    types: dict[str, dict[str, Any]] = {}
    for override in overrides:
        types.setdefault(
            override["InstanceType"], {name: value for name, value in override.items() if name not in _PLACES}
        )
    return list(types.values())
