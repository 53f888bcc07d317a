"""The fleet: an Auto Scaling group able to hold the gang. The template never sizes it; the run controller does."""

from __future__ import annotations

from aws_cdk import aws_autoscaling as autoscaling
from aws_cdk import aws_ec2 as ec2
from constructs import Construct

from bootstrap.documents import TERMINATING_HOOK
from stacks.config import DeploymentConfig

HOOK_SECONDS = 300


class Fleet(Construct):
    """Auto Scaling group with a mixed instances policy, created at zero."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        config: DeploymentConfig,
        template: ec2.CfnLaunchTemplate,
        subnet_ids: list[str],
    ) -> None:
        super().__init__(scope, id_)
        capacity = config.capacity
        cluster = capacity.placement == "cluster"
        group = ec2.CfnPlacementGroup(self, "Placement", strategy="cluster") if cluster else None
        distribution = autoscaling.CfnAutoScalingGroup.InstancesDistributionProperty(
            on_demand_base_capacity=capacity.on_demand_base,
            on_demand_percentage_above_base_capacity=0 if capacity.market == "spot" else 100,
            spot_allocation_strategy=capacity.allocation_strategy if capacity.market == "spot" else None,
            spot_max_price=None if capacity.max_price_usd is None else str(capacity.max_price_usd),
        )
        specification = autoscaling.CfnAutoScalingGroup.LaunchTemplateSpecificationProperty(
            launch_template_id=template.ref, version=template.attr_latest_version_number
        )
        self.group = autoscaling.CfnAutoScalingGroup(
            self,
            "Default",
            auto_scaling_group_name=config.group_name,
            min_size="0",
            max_size=str(capacity.nodes),
            # A placement group lives in one zone: the run controller moves on to the next subnet between attempts.
            vpc_zone_identifier=subnet_ids[:1] if cluster else subnet_ids,
            placement_group=None if group is None else group.ref,
            capacity_rebalance=False,
            lifecycle_hook_specification_list=[
                autoscaling.CfnAutoScalingGroup.LifecycleHookSpecificationProperty(
                    lifecycle_hook_name=TERMINATING_HOOK,
                    lifecycle_transition="autoscaling:EC2_INSTANCE_TERMINATING",
                    heartbeat_timeout=HOOK_SECONDS,
                    default_result="CONTINUE",
                )
            ],
            mixed_instances_policy=autoscaling.CfnAutoScalingGroup.MixedInstancesPolicyProperty(
                instances_distribution=distribution,
                launch_template=autoscaling.CfnAutoScalingGroup.LaunchTemplateProperty(
                    launch_template_specification=specification,
                    overrides=[
                        autoscaling.CfnAutoScalingGroup.LaunchTemplateOverridesProperty(instance_type=name)
                        for name in capacity.instance_types
                    ],
                ),
            ),
            tags=[
                autoscaling.CfnAutoScalingGroup.TagPropertyProperty(
                    key="trainstack:deployment", value=config.name, propagate_at_launch=True
                )
            ],
        )
        # A node edit replaces all nodes at once, after the terminating hook: one by one would restart the gang N times.
        self.group.add_override(
            "UpdatePolicy",
            {
                "AutoScalingInstanceRefresh": {
                    "Strategy": "Rolling",
                    "Preferences": {"MinHealthyPercentage": 0, "SkipMatching": True},
                },
                "AutoScalingScheduledAction": {"IgnoreUnmodifiedGroupSizeProperties": True},
            },
        )
