"""DeploymentConfig: every key of a deployment YAML, with unit, reason of the default, and what an edit does on deploy.

One module a section. `python -m stacks check FILE` validates a file; `load` is what the CDK app calls. Rules across
sections are in `stacks.validators`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from stacks.config.capacity import CapacityConfig
from stacks.config.delivery import DeliveryConfig
from stacks.config.network import NetworkConfig
from stacks.config.node import AMI_ID, NodeConfig
from stacks.config.observability import BudgetConfig, ObservabilityConfig
from stacks.config.run import RunConfig
from stacks.config.setting import Edit, Section, setting
from stacks.config.storage import StorageConfig

__all__ = ["AMI_ID", "STACKS", "DeploymentConfig", "Edit", "load", "read"]

STACKS = ("NetworkStack", "StorageStack", "TrainingStack", "ObservabilityStack")
"""What a deployment consists of, in the order in which it is made."""
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,23}$")]


class DeploymentConfig(Section):
    """One deployment: a YAML file."""

    name: Name = setting(
        "Name of the deployment; part of stack names, log groups and parameters.", edit="replaces the network"
    )
    region: str = setting(
        "AWS region.", edit="replaces the network", default="us-east-1", pattern=r"^[a-z]{2}(-[a-z]+)+-\d$"
    )
    account: str | None = setting(
        "Account id; null: that of the credentials.", edit="replaces the network", default=None, pattern=r"^\d{12}$"
    )
    tags: dict[str, str] = setting("Tags on every resource, for cost reports.", edit="replaces nodes", default={})
    network: NetworkConfig = NetworkConfig()
    storage: StorageConfig = StorageConfig()
    capacity: CapacityConfig
    node: NodeConfig = NodeConfig()
    training: RunConfig
    observability: ObservabilityConfig = ObservabilityConfig()
    budget: BudgetConfig = BudgetConfig()
    delivery: DeliveryConfig = DeliveryConfig()

    @property
    def run_parameter(self) -> str:
        """Name of the SSM parameter that holds the run document."""
        return f"/trainstack/{self.name}/run"

    @property
    def log_group(self) -> str:
        """Name of the log group of the nodes' events."""
        return f"/trainstack/{self.name}"

    @property
    def group_name(self) -> str:
        """Name of the fleet's group: fixed, so that run controller and node role can name it without a cycle."""
        return f"trainstack-{self.name}"


def read(path: Path) -> DeploymentConfig:
    """Read a deployment file and validate each key by itself.

    Raises:
        ConfigError: With every problem of YAML, keys and types.
    """
    from stacks.yaml_source import read_yaml, validate

    data, doubled = read_yaml(path)
    return validate(DeploymentConfig, data, str(path), doubled)


def load(path: Path) -> DeploymentConfig:
    """Read a deployment file, fill in what it leaves to the catalogue and to `ami.lock.json`, and validate all.

    Raises:
        ConfigError: With every problem: YAML, keys, types, and rules across sections.
    """
    from stacks.resolution import resolve
    from stacks.validators import check

    config, unresolved = resolve(read(path), path)
    check(config, str(path), unresolved)
    return config
