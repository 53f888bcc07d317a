"""Fixed resource costs, which do not depend on training. The figures are dated list prices for us-east-1.

Instance prices are in `stacks.capacity.catalogue`. Usage-based prices (requests, gigabytes, log events) are not
included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stacks.changes.templates.template_set import TemplateSet
from stacks.changes.templates.values import listed, mapping, mappings, number

PRICES_DATE = "2026-11-28"
PRICES_REGION = "us-east-1"
SOURCES = (
    "https://aws.amazon.com/privatelink/pricing/",
    "https://aws.amazon.com/vpc/pricing/",
    "https://aws.amazon.com/ebs/pricing/",
    "https://aws.amazon.com/fsx/lustre/pricing/",
    "https://aws.amazon.com/kms/pricing/",
    "https://aws.amazon.com/s3/pricing/",
    "https://aws.amazon.com/cloudwatch/pricing/",
)
HOURS_PER_MONTH = 730
ENDPOINT_USD_PER_HOUR_AND_ZONE = 0.01
NAT_USD_PER_HOUR = 0.045
ADDRESS_USD_PER_HOUR = 0.005
SNAPSHOT_RESTORE_USD_PER_HOUR_AND_ZONE = 0.75
KEY_USD_PER_MONTH = 1.0
EKS_USD_PER_HOUR = 0.10
"""Price of a cluster with a version in standard support. Source (2026-11): https://aws.amazon.com/eks/pricing/ and
https://aws.amazon.com/blogs/containers/amazon-eks-extended-support-for-kubernetes-versions-pricing/"""
DASHBOARD_USD_PER_MONTH = 3.0
ALARM_METRIC_USD_PER_MONTH = 0.10
GP3_USD_PER_GIB_MONTH, GP3_USD_PER_IOPS_MONTH, GP3_USD_PER_MIBPS_MONTH = 0.08, 0.005, 0.04
GP3_FREE_IOPS, GP3_FREE_MIBPS = 3000, 125
IO2_USD_PER_GIB_MONTH = 0.125
IO2_TIERS = ((32_000, 0.065), (32_000, 0.0455), (float("inf"), 0.03185))
"""Size of each provisioned IOPS tier, and its price in USD per IOPS-month."""
SNAPSHOT_USD_PER_GIB_MONTH = 0.05
S3_USD_PER_GIB_MONTH = 0.023
ECR_USD_PER_GB_MONTH = 0.10
LUSTRE_USD_PER_GIB_MONTH: Mapping[int | None, float] = {None: 0.14, 125: 0.145, 250: 0.21, 500: 0.34, 1000: 0.60}
"""Prices by throughput in MiB/s per TiB. The key None means a scratch file system."""


def volume_usd_per_month(volume: Mapping[str, Any]) -> float:
    """Return the monthly cost of a volume with Size or VolumeSize, VolumeType, Iops and Throughput."""
    gib = number(volume.get("Size", volume.get("VolumeSize")), otherwise=0)
    iops = number(volume.get("Iops"), otherwise=GP3_FREE_IOPS)
    if volume.get("VolumeType") in ("io1", "io2"):
        usd, left = gib * IO2_USD_PER_GIB_MONTH, iops
        for width, price in IO2_TIERS:
            usd += min(left, width) * price
            left -= min(left, width)
        return usd
    throughput = number(volume.get("Throughput"), otherwise=GP3_FREE_MIBPS)
    return (
        gib * GP3_USD_PER_GIB_MONTH
        + max(iops - GP3_FREE_IOPS, 0) * GP3_USD_PER_IOPS_MONTH
        + max(throughput - GP3_FREE_MIBPS, 0) * GP3_USD_PER_MIBPS_MONTH
    )


def lustre_usd_per_month(properties: Mapping[str, Any]) -> float:
    """Return the monthly cost of a file system with StorageCapacity and LustreConfiguration."""
    lustre = mapping(properties.get("LustreConfiguration"))
    is_scratch = str(lustre.get("DeploymentType", "")).startswith("SCRATCH")
    rate = None if is_scratch else int(number(lustre.get("PerUnitStorageThroughput"), otherwise=125))
    return number(properties.get("StorageCapacity"), otherwise=1200) * LUSTRE_USD_PER_GIB_MONTH.get(rate, 0.60)


def _endpoint(properties: Mapping[str, Any]) -> float:
    if properties.get("VpcEndpointType") != "Interface":
        return 0.0
    return len(listed(properties.get("SubnetIds"))) * ENDPOINT_USD_PER_HOUR_AND_ZONE * HOURS_PER_MONTH


def _alarm(properties: Mapping[str, Any]) -> float:
    metrics = [one for one in mappings(properties.get("Metrics")) if "MetricStat" in one]
    return max(len(metrics), 1) * ALARM_METRIC_USD_PER_MONTH


def _snapshot_restore(properties: Mapping[str, Any]) -> float:
    zones = len(listed(properties.get("AvailabilityZones")))
    return zones * SNAPSHOT_RESTORE_USD_PER_HOUR_AND_ZONE * HOURS_PER_MONTH


USD_PER_MONTH: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], float]]] = {
    "AWS::EC2::VPCEndpoint": ("interface endpoints", _endpoint),
    "AWS::EC2::NatGateway": ("NAT gateway", lambda _: NAT_USD_PER_HOUR * HOURS_PER_MONTH),
    "AWS::EC2::EIP": ("public addresses", lambda _: ADDRESS_USD_PER_HOUR * HOURS_PER_MONTH),
    "AWS::EC2::Volume": ("volumes", volume_usd_per_month),
    "AWS::FSx::FileSystem": ("Lustre", lustre_usd_per_month),
    "AWS::EKS::Cluster": ("EKS cluster", lambda _: EKS_USD_PER_HOUR * HOURS_PER_MONTH),
    "AWS::KMS::Key": ("encryption keys", lambda _: KEY_USD_PER_MONTH),
    "AWS::CloudWatch::Dashboard": ("dashboard", lambda _: DASHBOARD_USD_PER_MONTH),
    "AWS::CloudWatch::Alarm": ("alarms", _alarm),
    "Custom::FastSnapshotRestore": ("fast snapshot restore", _snapshot_restore),
}
"""The cost category for each resource type, and the function that computes the cost of one resource."""


def fixed_usd_per_month(templates: TemplateSet) -> dict[str, float]:
    """Return the deployment's fixed costs by category. Free resources are omitted."""
    found: dict[str, float] = {}
    for stack in templates.values():
        for definition in stack.resources.values():
            priced = USD_PER_MONTH.get(definition["Type"])
            if priced is not None:
                name, cost = priced
                found[name] = found.get(name, 0.0) + cost(definition.get("Properties", {}))
    return {name: usd for name, usd in found.items() if usd}
