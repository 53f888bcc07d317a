"""EC2 Auto Scaling: groups and their update policies.

Source: https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-attribute-updatepolicy.html,
read 2026-11.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from botocore.exceptions import ClientError

from localcloud.cloudformation.provider import Provisioned, ResourceContext, ResourceFailure
from localcloud.cloudformation.providers.base.resource import (
    Create,
    Describe,
    Properties,
    Resource,
    ResourceApi,
    changed,
    error_code,
)
from localcloud.cloudformation.providers.base.shapes import parse_bool
from localcloud.cloudformation.providers.base.tagging import tag_map
from localcloud.cloudformation.providers.base.waiting import wait_for

_SIZES = ("MinSize", "MaxSize", "DesiredCapacity")
_LAUNCH = ("LaunchTemplate", "MixedInstancesPolicy", "VPCZoneIdentifier")
_REFRESH_FAILED = frozenset({"Failed", "Cancelled", "RollbackSuccessful", "RollbackFailed"})
_POLICIES = ("AutoScalingInstanceRefresh", "AutoScalingScheduledAction")


@dataclass(frozen=True)
class UpdatePolicy:
    """The emulated parts of an UpdatePolicy attribute."""

    refresh: Mapping[str, Any] | None
    ignores_unmodified_sizes: bool

    @classmethod
    def of(cls, context: ResourceContext) -> UpdatePolicy:
        """Return the resource's update policy.

        Raises:
            ResourceFailure: The policy is not emulated, or the resource waits for signals.
        """
        creation = context.attributes.get("CreationPolicy", {}).get("ResourceSignal", {})
        if int(creation.get("Count", 1 if creation else 0)) > 0:
            raise ResourceFailure("CreationPolicy.ResourceSignal: signals are not emulated; remove the policy")
        policy = context.attributes.get("UpdatePolicy", {})
        unknown = sorted(set(policy) - set(_POLICIES))
        if unknown:
            raise ResourceFailure(f"UpdatePolicy: not emulated: {', '.join(unknown)}; emulated: {', '.join(_POLICIES)}")
        refresh, scheduled = (policy.get(name) for name in _POLICIES)
        return cls(
            refresh=refresh,
            ignores_unmodified_sizes=parse_bool((scheduled or {}).get("IgnoreUnmodifiedGroupSizeProperties", False)),
        )


class AutoScalingGroup(Resource):
    """AWS::AutoScaling::AutoScalingGroup, with its update policies."""

    type_name = "AWS::AutoScaling::AutoScalingGroup"
    service = "autoscaling"
    # The properties whose API parameters the emulated Auto Scaling accepts (compute.autoscaling.group_settings).
    create_only = frozenset({"AutoScalingGroupName"})
    updatable = frozenset(
        {*_SIZES, *_LAUNCH, "CapacityRebalance", "CapacityReservationSpecification", "LifecycleHookSpecificationList"}
        | {"MaxInstanceLifetime", "Tags"}
    )
    unremovable = frozenset({"CapacityReservationSpecification"})
    defaults = {"CapacityRebalance": False, "MaxInstanceLifetime": 0}
    create_call = Create("create_auto_scaling_group")
    describe_call = Describe(
        "describe_auto_scaling_groups", "AutoScalingGroupNames", "AutoScalingGroups.0", listed=True
    )
    name_property = "AutoScalingGroupName"
    name_length = 255
    deleted_states: ClassVar[tuple[str, frozenset[str]] | None] = ("Status", frozenset({"Delete complete"}))

    def create(self, context: ResourceContext, properties: Properties) -> Provisioned:
        """Create the group if its update policy is emulated."""
        UpdatePolicy.of(context)
        return super().create(context, properties)

    def delete(self, context: ResourceContext, physical_id: str, properties: Properties) -> None:
        """Delete the group. A missing group, which Auto Scaling reports as a ValidationError, is not an error."""
        try:
            super().delete(context, physical_id, properties)
        except ClientError as error:
            if error_code(error) != "ValidationError" or "not found" not in str(error).lower():
                raise

    def arguments(self, api: ResourceApi, properties: Properties) -> dict[str, Any]:
        """Return the group's settings, with the subnets as one comma-separated string."""
        arguments = super().arguments(api, properties)
        if arguments.get("VPCZoneIdentifier"):
            arguments["VPCZoneIdentifier"] = ",".join(arguments["VPCZoneIdentifier"])
        return arguments

    def creation_tags(self, api: ResourceApi, properties: Properties) -> dict[str, Any]:
        """Return the group's and the stack's tags. Stack tags propagate to the instances."""
        return {"Tags": self._tags(api, properties["AutoScalingGroupName"], properties)}

    def _tags(self, api: ResourceApi, group: str, properties: Properties) -> list[dict[str, Any]]:
        propagated = {tag["Key"]: tag["PropagateAtLaunch"] for tag in properties.get("Tags") or []}
        target = {"ResourceId": group, "ResourceType": "auto-scaling-group"}
        return [
            {**target, "Key": key, "Value": value, "PropagateAtLaunch": propagated.get(key, True)}
            for key, value in self.desired_tags(api.context, properties).items()
        ]

    def retag(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Set the desired tags and delete tags that are no longer in the template."""
        tags = self._tags(api, physical_id, new)
        if tags:
            api.call("create_or_update_tags", Tags=tags)
        dropped = set(tag_map(old.get("Tags"))) - {tag["Key"] for tag in tags}
        if dropped:
            target = {"ResourceId": physical_id, "ResourceType": "auto-scaling-group"}
            api.call("delete_tags", Tags=[{**target, "Key": key} for key in sorted(dropped)])

    def wait_until_ready(self, api: ResourceApi, physical_id: str, properties: Properties) -> None:
        """Wait until the desired number of instances is in service."""
        wanted = int(properties.get("DesiredCapacity") or properties.get("MinSize") or 0)

        def stable() -> bool:
            group = self.find(api, physical_id, properties) or {}
            # The template only sets the initial capacity. Later scaling actions take precedence.
            goal = min(wanted, int(group.get("DesiredCapacity", wanted)))
            return in_service(group) >= goal

        try:
            wait_for(stable, f"{physical_id} to reach its desired capacity", timeout_seconds=self.ready_timeout_seconds)
        except ResourceFailure as failure:
            raise ResourceFailure(f"{failure}; {self._last_failure(api, physical_id)}") from failure

    @staticmethod
    def _last_failure(api: ResourceApi, physical_id: str) -> str:
        activities = api.call("describe_scaling_activities", AutoScalingGroupName=physical_id)["Activities"]
        failed = (item for item in activities if item["StatusCode"] in {"Failed", "Cancelled"})
        return next((str(item.get("StatusMessage") or item["Cause"]) for item in failed), "no scaling activity failed")

    def configure(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Update the group, then replace its running instances according to the update policy."""
        policy = UpdatePolicy.of(api.context)
        self._configure_hooks(api, physical_id, old, new)
        separate = {"LifecycleHookSpecificationList", "Tags"}
        if not changed(old, new, *(self.updatable - separate)):
            return
        settings = {name: value for name, value in new.items() if name not in separate}
        if policy.ignores_unmodified_sizes:
            settings = {n: v for n, v in settings.items() if n not in _SIZES or old.get(n) != v}
        launch = changed(old, new, *_LAUNCH)
        api.call("update_auto_scaling_group", **self.arguments(api, settings))
        if launch and policy.refresh is not None:
            self._refresh(api, physical_id, policy.refresh)

    def _refresh(self, api: ResourceApi, group: str, policy: Mapping[str, Any]) -> None:
        """Replace the running instances using an instance refresh and wait until it ends."""
        if not (self.find(api, group, {}) or {}).get("Instances"):
            return
        refresh_id = api.call("start_instance_refresh", AutoScalingGroupName=group, **policy)["InstanceRefreshId"]

        def ended() -> Mapping[str, Any] | None:
            answer = api.call(
                "describe_instance_refreshes", AutoScalingGroupName=group, InstanceRefreshIds=[refresh_id]
            )
            refresh: Mapping[str, Any] = answer["InstanceRefreshes"][0]
            return refresh if refresh["Status"] in _REFRESH_FAILED | {"Successful"} else None

        refresh = wait_for(ended, f"instance refresh of {group}", timeout_seconds=self.ready_timeout_seconds)
        if refresh["Status"] in _REFRESH_FAILED:
            reason = refresh.get("StatusReason", "no reason given")
            raise ResourceFailure(f"instance refresh {refresh_id} of {group}: {refresh['Status']}: {reason}")

    @staticmethod
    def _configure_hooks(api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        before, after = (
            {hook["LifecycleHookName"]: hook for hook in side.get("LifecycleHookSpecificationList") or []}
            for side in (old, new)
        )
        for name in sorted(set(before) - set(after)):
            api.call("delete_lifecycle_hook", AutoScalingGroupName=physical_id, LifecycleHookName=name)
        for name, hook in after.items():
            if before.get(name) != hook:
                api.call("put_lifecycle_hook", AutoScalingGroupName=physical_id, **hook)

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ARN."""
        return {"AutoScalingGroupARN": found["AutoScalingGroupARN"]}

    def call_delete(self, api: ResourceApi, physical_id: str, properties: Properties) -> None:
        """Scale the group to zero, wait until its instances have terminated and delete it."""
        if self.find(api, physical_id, properties) is None:
            return
        none = dict.fromkeys(_SIZES, 0)
        api.call("update_auto_scaling_group", AutoScalingGroupName=physical_id, **none)
        wait_for(
            lambda: not (self.find(api, physical_id, properties) or {}).get("Instances"),
            f"termination of the instances in {physical_id}",
            timeout_seconds=self.ready_timeout_seconds,
        )
        api.call("delete_auto_scaling_group", AutoScalingGroupName=physical_id)


def in_service(group: Properties) -> int:
    """Return the number of InService instances in a group's description."""
    return sum(instance["LifecycleState"] == "InService" for instance in group.get("Instances", []))


PROVIDERS = (AutoScalingGroup(),)
