"""Recognized changes to resources of nodes, runs and the run controller."""

from __future__ import annotations

from collections.abc import Mapping

from stacks.changes.approvals.documents import NODE_RULES, RUN_RULES
from stacks.changes.approvals.fleet_rules import (
    fleet_configs,
    interfaces,
    known_places,
    known_prices,
    known_types,
    launch_template,
    overrides,
    own_list,
    spot_price,
)
from stacks.changes.approvals.known import SUBNET, TAGS, Known
from stacks.changes.approvals.rules import (
    Rule,
    any_of,
    at_most,
    bounded_growth,
    lower_limit,
    no_increase,
    numbers,
    own,
    passes,
    tag_specifications,
)
from stacks.changes.approvals.spending import later
from stacks.changes.templates.values import NODE_DOCUMENT, RUN_DOCUMENT

_MARKET: Mapping[str, Rule] = {
    "OnDemandBaseCapacity": numbers,
    "OnDemandPercentageAboveBaseCapacity": numbers,
    "OnDemandAllocationStrategy": passes,
    "SpotAllocationStrategy": passes,
    "SpotMaxPrice": spot_price,
}
_RESERVATION: Mapping[str, Rule] = {f"CapacityReservationSpecification/{name}": passes for name in (
    "CapacityReservationPreference", "CapacityReservationTarget/CapacityReservationIds",
    "CapacityReservationTarget/CapacityReservationId", "CapacityReservationTarget/CapacityReservationResourceGroupArns",
    "CapacityReservationTarget/CapacityReservationResourceGroupArn",
)}  # fmt: skip
_EBS: Mapping[str, Rule] = {
    "VolumeSize": numbers,
    "Iops": numbers,
    "Throughput": numbers,
    "VolumeInitializationRate": numbers,
    "VolumeType": any_of("gp3", "io2"),
    "Encrypted": any_of(True),
    "DeleteOnTermination": any_of(True),
}
_MAINTAINED: Mapping[str, Rule] = {
    "LaunchTemplateConfigs": fleet_configs,
    "ReplaceUnhealthyInstances": any_of(True, False),
    "ExcessCapacityTerminationPolicy": passes,
}
NODES: Mapping[str, Known] = {
    "AWS::EC2::LaunchTemplate": Known(
        {f"LaunchTemplateData/{name}": rule for name, rule in {
            **_RESERVATION,
            **{f"BlockDeviceMappings/Ebs/{name}": rule for name, rule in _EBS.items()},
            "NetworkInterfaces": interfaces,
            "InstanceType": known_types,
            "InstanceMarketOptions/MarketType": any_of("spot", "capacity-block"),
            "Placement/GroupName": own("AWS::EC2::PlacementGroup"),
            "Monitoring/Enabled": any_of(True, False),
            "MetadataOptions/HttpTokens": any_of("required"),
            "MetadataOptions/HttpPutResponseHopLimit": at_most(1),
            "TagSpecifications": tag_specifications,
            **{f"UserData/{NODE_DOCUMENT}/{name}": rule for name, rule in NODE_RULES.items()},
        }.items()},
        removed="passes",
    ),
    "AWS::AutoScaling::AutoScalingGroup": Known(
        {
            **TAGS,
            **_RESERVATION,
            **{f"MixedInstancesPolicy/InstancesDistribution/{name}": rule for name, rule in _MARKET.items()},
            "MixedInstancesPolicy/LaunchTemplate/LaunchTemplateSpecification": launch_template,
            "MixedInstancesPolicy/LaunchTemplate/Overrides": overrides,
            "LaunchTemplate": launch_template,
            "MaxSize": bounded_growth,
            "MinSize": at_most(0),
            "VPCZoneIdentifier": own(SUBNET),
            "MaxInstanceLifetime": numbers,
            "CapacityRebalance": any_of(True, False),
            "PlacementGroup": own("AWS::EC2::PlacementGroup"),
        },
        removed="passes",
    ),
    "AWS::EC2::EC2Fleet": Known(
        {
            **_MAINTAINED,
            "TargetCapacitySpecification/TotalTargetCapacity": at_most(0),
            "TargetCapacitySpecification/DefaultTargetCapacityType": any_of("spot", "on-demand"),
            "SpotOptions/AllocationStrategy": passes,
            "SpotOptions/MaintenanceStrategies/CapacityRebalance": passes,
            "OnDemandOptions/AllocationStrategy": passes,
            "TagSpecifications": tag_specifications,
        },
        removed="passes",
    ),
    "AWS::EC2::SpotFleet": Known(
        {f"SpotFleetRequestConfigData/{name}": rule for name, rule in {
            **_MAINTAINED,
            "TargetCapacity": at_most(0),
            "OnDemandTargetCapacity": at_most(0),
            "AllocationStrategy": passes,
            "OnDemandAllocationStrategy": passes,
            "SpotMaintenanceStrategies/CapacityRebalance": passes,
            "SpotPrice": spot_price,
            "OnDemandMaxTotalPrice": no_increase,
            "TagSpecifications": tag_specifications,
        }.items()},
        removed="passes",
    ),
    "AWS::EC2::PlacementGroup": Known(
        {**TAGS, "Strategy": passes, "PartitionCount": numbers}, added="passes", removed="passes"
    ),
    "AWS::EC2::CapacityReservation": Known(removed="passes"),
    "AWS::SSM::Parameter": Known(
        {
            **TAGS,
            "Description": passes,
            "Tier": any_of("Standard", "Advanced"),
            **{f"Value/{RUN_DOCUMENT}/{name}": rule for name, rule in RUN_RULES.items()},
        }
    ),
    "AWS::Lambda::Function": Known(
        {
            **TAGS,
            "Description": passes,
            "Environment/Variables/NODES": bounded_growth,
            "Environment/Variables/ON_DEMAND_BASE": numbers,
            "Environment/Variables/GANG_TIMEOUT_SECONDS": bounded_growth,
            "Environment/Variables/BOOT_FAILURE_LIMIT": bounded_growth,
            "Environment/Variables/BOOT_TIMEOUT_SECONDS": bounded_growth,
            "Environment/Variables/LIMIT_USD": lower_limit,
            "Environment/Variables/LIMIT_RUN_HOURS": lower_limit,
            "Environment/Variables/DEADLINE_HOURS": later,  # ON_DEADLINE_MISS always needs approval
            "Environment/Variables/TRAINING_HOURS": bounded_growth,
            "Environment/Variables/ONE_SUBNET_AT_A_TIME": any_of(True, False),
            "Environment/Variables/CHOOSE": any_of("order", "cost", "availability"),
            "Environment/Variables/PLACES": known_places,
            "Environment/Variables/SUBNET_IDS": own_list(SUBNET),
            "Environment/Variables/ON_DEMAND_USD_PER_HOUR": known_prices,
        }
    ),
}  # fmt: skip
