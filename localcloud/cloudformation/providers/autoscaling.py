"""EC2 Auto Scaling: groups, their hooks, scheduled actions and scaling policies."""

from __future__ import annotations

from typing import Any, ClassVar

from botocore.exceptions import ClientError

from ..provider import ResourceFailure
from .autoscaling_update import UpdatePolicy, replace_instances
from .resource import Create, Delete, Describe, Place, Properties, PutResource, Resource, changed, code_of
from .tagging import tag_map
from .waiting import wait_for

_SIZES = ("MinSize", "MaxSize", "DesiredCapacity")
_LAUNCH = ("LaunchTemplate", "MixedInstancesPolicy", "LaunchConfigurationName", "VPCZoneIdentifier")


class AutoScalingResource(Resource):
    """A resource of Auto Scaling, where "not found" is a ValidationError told apart by its words."""

    service = "autoscaling"

    def delete(self, context: Any, physical_id: str, properties: Properties) -> None:
        """Remove the resource; one that is gone is no error."""
        try:
            super().delete(context, physical_id, properties)
        except ClientError as error:
            if code_of(error) != "ValidationError" or "not found" not in str(error).lower():
                raise

    def in_group(self, at: Place, operation: str, result: str, names: str, properties: Properties, name: str) -> Any:
        """Describe one thing of the group, None when it or the group is not there."""
        try:
            answer = at.call(operation, AutoScalingGroupName=properties["AutoScalingGroupName"], **{names: [name]})
        except ClientError as error:
            if code_of(error) == "ValidationError" and "not found" in str(error).lower():
                return None
            raise
        return next(iter(answer[result]), None)


class AutoScalingGroup(AutoScalingResource):
    """AWS::AutoScaling::AutoScalingGroup, with its update policies.

    Source: https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-attribute-updatepolicy.html,
    read 2026-11.
    """

    type_name = "AWS::AutoScaling::AutoScalingGroup"
    create_only = frozenset({"AutoScalingGroupName", "InstanceId"})
    updatable = frozenset(
        {*_SIZES, *_LAUNCH, "AvailabilityZones", "AvailabilityZoneDistribution", "AvailabilityZoneImpairmentPolicy"}
        | {"CapacityRebalance", "CapacityReservationSpecification", "Context", "Cooldown", "DefaultInstanceWarmup"}
        | {"DesiredCapacityType", "HealthCheckGracePeriod", "HealthCheckType", "InstanceLifecyclePolicy", "Tags"}
        | {"InstanceMaintenancePolicy", "LifecycleHookSpecificationList", "MaxInstanceLifetime", "MetricsCollection"}
        | {"NewInstancesProtectedFromScaleIn", "PlacementGroup", "ServiceLinkedRoleARN", "TerminationPolicies"}
        | {"DeletionProtection"}
    )
    afterwards = frozenset({"MetricsCollection"})
    renames = {"Cooldown": "DefaultCooldown"}
    undroppable = frozenset(
        {"AvailabilityZones", "AvailabilityZoneDistribution", "AvailabilityZoneImpairmentPolicy", "Context"}
        | {"CapacityReservationSpecification", "DesiredCapacityType", "InstanceLifecyclePolicy"}
        | {"ServiceLinkedRoleARN"}
    )
    defaults = {
        "CapacityRebalance": False,
        "DeletionProtection": "none",
        "PlacementGroup": "",
        "Cooldown": 300,
        "DefaultInstanceWarmup": -1,
        "HealthCheckGracePeriod": 0,
        "HealthCheckType": "EC2",
        "InstanceMaintenancePolicy": {"MinHealthyPercentage": -1, "MaxHealthyPercentage": -1},
        "MaxInstanceLifetime": 0,
        "NewInstancesProtectedFromScaleIn": False,
        "TerminationPolicies": ["Default"],
    }
    creates = Create("create_auto_scaling_group")
    describes = Describe("describe_auto_scaling_groups", "AutoScalingGroupNames", "AutoScalingGroups.0", listed=True)
    name_property = "AutoScalingGroupName"
    name_length = 255
    gone_states: ClassVar[tuple[str, frozenset[str]] | None] = ("Status", frozenset({"Delete complete"}))

    def create(self, context: Any, properties: Properties) -> Any:
        """Make the group; signals are refused, for nothing here could count them."""
        UpdatePolicy.of(context).refuse_signals(context)
        return super().create(context, properties)

    def arguments(self, at: Place, properties: Properties) -> dict[str, Any]:
        """Return the group with its subnets as one text."""
        arguments = super().arguments(at, properties)
        if arguments.get("VPCZoneIdentifier"):
            arguments["VPCZoneIdentifier"] = ",".join(arguments["VPCZoneIdentifier"])
        return arguments

    def creation_tags(self, at: Place, properties: Properties) -> dict[str, Any]:
        """Return the tags of group and stack; the stack's reach the instances too."""
        return {"Tags": self._tags(at, properties["AutoScalingGroupName"], properties)}

    def _tags(self, at: Place, group: str, properties: Properties) -> list[dict[str, Any]]:
        reach = {tag["Key"]: tag["PropagateAtLaunch"] for tag in properties.get("Tags") or []}
        target = {"ResourceId": group, "ResourceType": "auto-scaling-group"}
        return [
            {**target, "Key": key, "Value": value, "PropagateAtLaunch": reach.get(key, True)}
            for key, value in self.wanted_tags(at.context, properties).items()
        ]

    def retag(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Bring the tags to what is wanted."""
        tags = self._tags(at, physical_id, new)
        if tags:
            at.call("create_or_update_tags", Tags=tags)
        dropped = set(tag_map(old.get("Tags"))) - {tag["Key"] for tag in tags}
        if dropped:
            target = {"ResourceId": physical_id, "ResourceType": "auto-scaling-group"}
            at.call("delete_tags", Tags=[{**target, "Key": key} for key in sorted(dropped)])

    def settle(self, at: Place, physical_id: str, properties: Properties) -> None:
        """Wait until as many instances as the template asks for are in service."""
        wanted = int(properties.get("DesiredCapacity") or properties.get("MinSize") or 0)

        def stable() -> bool:
            group = self.found(at, physical_id, properties) or {}
            # Whoever sizes the group meanwhile is right: the template's number is only the start.
            goal = min(wanted, int(group.get("DesiredCapacity", wanted)))
            return in_service(group) >= goal

        try:
            wait_for(stable, f"{physical_id} to stabilise", timeout_seconds=self.settle_seconds)
        except ResourceFailure as failure:
            raise ResourceFailure(f"{failure}; {self._last_failure(at, physical_id)}") from failure

    @staticmethod
    def _last_failure(at: Place, physical_id: str) -> str:
        activities = at.call("describe_scaling_activities", AutoScalingGroupName=physical_id)["Activities"]
        failed = (item for item in activities if item["StatusCode"] in {"Failed", "Cancelled"})
        return next((str(item.get("StatusMessage") or item["Cause"]) for item in failed), "no activity failed")

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Change the group, then let its update policy replace the instances that were launched differently."""
        policy = UpdatePolicy.of(at.context)
        policy.refuse_signals(at.context)
        self._configure_hooks(at, physical_id, old, new)
        if changed(old, new, "MetricsCollection"):
            if old.get("MetricsCollection"):
                at.call("disable_metrics_collection", AutoScalingGroupName=physical_id)
            for metrics in new.get("MetricsCollection") or []:
                at.call("enable_metrics_collection", AutoScalingGroupName=physical_id, **metrics)
        apart = {"MetricsCollection", "LifecycleHookSpecificationList", "Tags"}
        if not changed(old, new, *(self.updatable - apart)):
            return
        settings = {name: value for name, value in new.items() if name not in apart}
        if policy.ignores_unmodified_sizes:
            settings = {n: v for n, v in settings.items() if n not in _SIZES or old.get(n) != v}
        launch = changed(old, new, *_LAUNCH)
        if launch:
            policy.refuse_replacing(physical_id)
        at.call("update_auto_scaling_group", **self.arguments(at, settings))
        if launch:
            replace_instances(at, physical_id, policy, timeout_seconds=self.settle_seconds)

    @staticmethod
    def _configure_hooks(at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        before, after = (
            {hook["LifecycleHookName"]: hook for hook in side.get("LifecycleHookSpecificationList") or []}
            for side in (old, new)
        )
        for name in sorted(set(before) - set(after)):
            at.call("delete_lifecycle_hook", AutoScalingGroupName=physical_id, LifecycleHookName=name)
        for name, hook in after.items():
            if before.get(name) != hook:
                at.call("put_lifecycle_hook", AutoScalingGroupName=physical_id, **hook)

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ARN."""
        return {"AutoScalingGroupARN": found["AutoScalingGroupARN"]}

    def remove(self, at: Place, physical_id: str, properties: Properties) -> None:
        """Take the group to zero, wait for its instances to end, delete it."""
        if self.found(at, physical_id, properties) is None:
            return
        none = dict.fromkeys(_SIZES, 0)
        at.call("update_auto_scaling_group", AutoScalingGroupName=physical_id, **none)
        wait_for(
            lambda: not (self.found(at, physical_id, properties) or {}).get("Instances"),
            f"the instances of {physical_id} to end",
            timeout_seconds=self.settle_seconds,
        )
        at.call("delete_auto_scaling_group", AutoScalingGroupName=physical_id)


def in_service(group: Properties) -> int:
    """Return how many instances of a described group are in service."""
    return sum(instance["LifecycleState"] == "InService" for instance in group.get("Instances", []))


class LifecycleHook(AutoScalingResource, PutResource):
    """AWS::AutoScaling::LifecycleHook."""

    type_name = "AWS::AutoScaling::LifecycleHook"
    create_only = frozenset({"AutoScalingGroupName", "LifecycleHookName"})
    updatable = frozenset(
        {"LifecycleTransition", "DefaultResult", "HeartbeatTimeout", "NotificationMetadata", "NotificationTargetARN"}
        | {"RoleARN"}
    )
    creates = Create("put_lifecycle_hook")
    name_property = "LifecycleHookName"
    name_length = 255

    def describe(self, at: Place, physical_id: str, properties: Properties) -> dict[str, Any] | None:
        """Find the hook in its group."""
        hook = self.in_group(
            at, "describe_lifecycle_hooks", "LifecycleHooks", "LifecycleHookNames", properties, physical_id
        )
        return hook if hook is None else dict(hook)

    def remove(self, at: Place, physical_id: str, properties: Properties) -> None:
        """Delete the hook."""
        group = properties["AutoScalingGroupName"]
        if self.found(at, physical_id, properties) is not None:
            at.call("delete_lifecycle_hook", AutoScalingGroupName=group, LifecycleHookName=physical_id)


class ScheduledAction(AutoScalingResource, PutResource):
    """AWS::AutoScaling::ScheduledAction under a generated name."""

    type_name = "AWS::AutoScaling::ScheduledAction"
    create_only = frozenset({"AutoScalingGroupName"})
    updatable = frozenset({"MinSize", "MaxSize", "DesiredCapacity", "Recurrence", "StartTime", "EndTime", "TimeZone"})
    creates = Create("put_scheduled_update_group_action")
    name_property = "ScheduledActionName"
    name_length = 255

    def describe(self, at: Place, physical_id: str, properties: Properties) -> dict[str, Any] | None:
        """Find the action in its group."""
        return dict(
            self.in_group(
                at,
                "describe_scheduled_actions",
                "ScheduledUpdateGroupActions",
                "ScheduledActionNames",
                properties,
                physical_id,
            )
            or {}
        )

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the name."""
        return {"ScheduledActionName": found["ScheduledActionName"]}

    def remove(self, at: Place, physical_id: str, properties: Properties) -> None:
        """Delete the action."""
        group = properties["AutoScalingGroupName"]
        if self.found(at, physical_id, properties) is not None:
            at.call("delete_scheduled_action", AutoScalingGroupName=group, ScheduledActionName=physical_id)


class ScalingPolicy(AutoScalingResource, PutResource):
    """AWS::AutoScaling::ScalingPolicy under a generated name; its id is its ARN."""

    type_name = "AWS::AutoScaling::ScalingPolicy"
    create_only = frozenset({"AutoScalingGroupName"})
    updatable = frozenset(
        {"AdjustmentType", "Cooldown", "EstimatedInstanceWarmup", "MetricAggregationType", "MinAdjustmentMagnitude"}
        | {"PolicyType", "PredictiveScalingConfiguration", "ScalingAdjustment", "StepAdjustments"}
        | {"TargetTrackingConfiguration"}
    )
    creates = Create("put_scaling_policy")
    deletes = Delete("delete_policy", "PolicyName")
    name_property = "PolicyName"
    name_length = 255
    refuses_existing = False

    def make(self, at: Place, properties: Properties) -> str:
        """Put the policy and read its ARN."""
        at.call("put_scaling_policy", **self.arguments(at, properties))
        return str((self.describe(at, properties["PolicyName"], properties) or {})["PolicyARN"])

    def name_of(self, physical_id: str) -> str:
        """Return the name at the end of the ARN."""
        return physical_id.rsplit("policyName/", 1)[-1]

    def describe(self, at: Place, physical_id: str, properties: Properties) -> dict[str, Any] | None:
        """Find the policy in its group."""
        name = self.name_of(physical_id)
        return dict(self.in_group(at, "describe_policies", "ScalingPolicies", "PolicyNames", properties, name) or {})

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return ARN and name."""
        return {"Arn": found["PolicyARN"], "PolicyName": found["PolicyName"]}

    def remove(self, at: Place, physical_id: str, properties: Properties) -> None:
        """Delete the policy."""
        group, name = properties["AutoScalingGroupName"], self.name_of(physical_id)
        if self.found(at, physical_id, properties) is not None:
            at.call("delete_policy", AutoScalingGroupName=group, PolicyName=name)


PROVIDERS = (AutoScalingGroup(), LifecycleHook(), ScheduledAction(), ScalingPolicy())
