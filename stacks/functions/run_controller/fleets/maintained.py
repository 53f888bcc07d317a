"""What an EC2 Fleet and a Spot Fleet have in common: both keep a target of machines, and cannot detach one.

While an interrupted machine still works, the fleet is asked for one more, and for one less, ending none, when the
replacement is there. The two differ in their calls and in the spelling of what they answer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from .. import policy
from . import launch_configs


@dataclass(frozen=True)
class Described:
    """A fleet as its describing call has it: machines asked for, and its launch template configurations."""

    total: int
    launch_template_configs: Sequence[dict[str, Any]]


class MaintainedFleet(ABC):
    """A fleet by its id.

    Attributes:
        kind: what people call it.
        keeps_excess: the policy that ends no machine when there are more than asked for.
        ends_excess: the policy that does.
    """

    kind: ClassVar[str]
    keeps_excess: ClassVar[str]
    ends_excess: ClassVar[str]

    def __init__(self, fleet_id: str, ec2: Any, *, maximum: int, on_demand_base: int) -> None:
        self._id = fleet_id
        self._ec2 = ec2
        self._maximum = maximum
        self._on_demand_base = on_demand_base

    def look(self) -> policy.Group | None:
        """Return the fleet as it is, None when it is not there any more."""
        found = self._described()
        if found is None:
            return None
        desired = min(found.total, self._maximum)
        return policy.Group(
            desired=desired,
            maximum=self._maximum,
            subnets=launch_configs.subnets_of(found.launch_template_configs),
            # A node edit makes another fleet, whose templates may count from 1 again.
            template_version=f"{self._id}:{launch_configs.versions_of(found.launch_template_configs)}",
            instances=self._instances(),
            surplus=found.total - desired,
        )

    def carry_out(self, action: policy.Action) -> None:
        """Size the fleet, or move it to other subnets."""
        if isinstance(action, policy.Surplus):
            self._modify(action.desired, action.count, self.keeps_excess)
        elif isinstance(action, policy.Resize):
            moved = {}
            if action.subnets is not None and (found := self._described()) is not None:
                moved["LaunchTemplateConfigs"] = launch_configs.moved(found.launch_template_configs, action.subnets)
            self._modify(action.desired, 0, self.ends_excess, **moved)
        else:
            raise TypeError(f"{action}: machines of {self.kind} cannot be detached")

    @abstractmethod
    def _described(self) -> Described | None: ...

    @abstractmethod
    def _instances(self) -> tuple[policy.Instance, ...]: ...

    @abstractmethod
    def _modify(self, desired: int, surplus: int, policy_for_excess: str, **more: Any) -> None: ...
