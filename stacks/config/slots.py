"""The slots of a deployment: fleets that train different runs side by side.

A slot is a complete TrainingStack with a separate fleet name. All slots of a deployment share its network and its
storage (docs/adr/0018-a-slot-is-a-stack.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stacks.config import DeploymentConfig, stack_of


@dataclass(frozen=True)
class Slot:
    """A fleet of a deployment.

    Attributes:
        suffix: End of the fleet's name, such as `2`; "" for the first slot, whose fleet has the deployment's name.
        config: The deployment file's settings for this fleet: `config.name` is the fleet's name.
    """

    suffix: str
    config: DeploymentConfig

    @property
    def owns_run_parameter(self) -> bool:
        """Whether the template contains the run document.

        The run parameters of other slots, and of all slots of a pipeline, are written at run time. In a template, each
        deploy would overwrite them.
        """
        return not self.suffix and self.config.pipeline is None

    @property
    def stack(self) -> str:
        """Construct id of the slot's stack. In CloudFormation, the deployment's name and a dash precede it."""
        return stack_of(self.suffix)


def slots_of(config: DeploymentConfig) -> list[Slot]:
    """Return a deployment's slots, in creation order. The first one owns the run that the file describes."""
    return [slot(config, suffix) for suffix in config.slot_suffixes]


def capacities(config: DeploymentConfig) -> dict[str, DeploymentConfig]:
    """Return the settings of one fleet for each capacity section, by the path of the section."""
    steps = {} if config.pipeline is None else config.pipeline.steps
    own = {f"pipeline.steps.{name}.capacity": step.suffixes(name)[0] for name, step in steps.items() if step.capacity}
    return {path: slot(config, suffix).config for path, suffix in {"capacity": "", **own}.items()}


def slot(config: DeploymentConfig, suffix: str, capacity: Mapping[str, Any] | None = None) -> Slot:
    """Return one slot of a deployment.

    Args:
        config: The deployment.
        suffix: End of the fleet's name, or "" for the first slot.
        capacity: Keys of `capacity` that differ in this slot.
    """
    section = config.step_capacities.get(suffix, config.capacity)
    section = section.model_copy(update={"slots": 1, **(capacity or {})})
    name = f"{config.name}-{suffix}" if suffix else config.name
    return Slot(suffix, config.model_copy(update={"name": name, "capacity": section}))
