"""The fleet as an Auto Scaling group."""

from __future__ import annotations

from typing import Any

from .. import policy


class AutoScalingGroup:
    """A group by its name; an interrupted machine is detached, so that its replacement is launched at once."""

    def __init__(self, name: str, autoscaling: Any) -> None:
        self._name = name
        self._autoscaling = autoscaling

    def look(self) -> policy.Group | None:
        """Return the group as it is, None when it is not there."""
        groups = self._autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=[self._name])
        for group in groups["AutoScalingGroups"]:
            return policy.Group(
                desired=group["DesiredCapacity"],
                maximum=group["MaxSize"],
                subnets=tuple(group.get("VPCZoneIdentifier", "").split(",")),
                template_version=_template_version(group),
                instances=tuple(
                    policy.Instance(item["InstanceId"], item["LifecycleState"]) for item in group.get("Instances", [])
                ),
            )
        return None

    def carry_out(self, action: policy.Action) -> None:
        """Size the group, move it to other subnets, or detach a machine."""
        if isinstance(action, policy.Detach):
            self._autoscaling.detach_instances(
                AutoScalingGroupName=self._name,
                InstanceIds=[action.instance_id],
                ShouldDecrementDesiredCapacity=False,
            )
        elif isinstance(action, policy.Resize):
            subnets = {} if action.subnets is None else {"VPCZoneIdentifier": ",".join(action.subnets)}
            self._autoscaling.update_auto_scaling_group(
                AutoScalingGroupName=self._name, DesiredCapacity=action.desired, **subnets
            )
        else:
            raise TypeError(f"{action}: an Auto Scaling group detaches machines instead")


def _template_version(group: dict[str, Any]) -> str:
    """Return the versions of all launch templates: a mixed policy may hold several, a plain group has one."""
    if "MixedInstancesPolicy" not in group:
        return str(group["LaunchTemplate"]["Version"])
    template = group["MixedInstancesPolicy"]["LaunchTemplate"]
    others = (item.get("LaunchTemplateSpecification") for item in template.get("Overrides", []))
    specifications = [template["LaunchTemplateSpecification"], *(item for item in others if item)]
    return ",".join(dict.fromkeys(str(item["Version"]) for item in specifications))
