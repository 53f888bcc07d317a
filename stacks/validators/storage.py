"""Rules for volumes (including the root volume), file systems and their mount points."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from stacks.capacity.plan import known_types, zone_candidates
from stacks.config import DeploymentConfig
from stacks.config.node import RootVolumeConfig
from stacks.config.slots import slots_of
from stacks.config.storage import CheckpointVolumeConfig, DatasetVolumeConfig
from stacks.errors import Problem
from stacks.validators.node import DEEP_LEARNING_IMAGES

# Source (2026-11): https://docs.aws.amazon.com/ebs/latest/userguide/general-purpose.html
GP3_IOPS_PER_GIB = 500
GP3_BASELINE_IOPS = 3000
GP3_BASELINE_MIB_PER_SECOND = 125
GP3_MIB_PER_SECOND_PER_IOPS = 0.25
MIB_PER_SECOND_PER_MBPS = 1e6 / 8 / 2**20
# Source (2026-11): https://docs.aws.amazon.com/ebs/latest/userguide/provisioned-iops.html
IO2_IOPS_PER_GIB = 1000
# Source (2026-11): https://docs.aws.amazon.com/ebs/latest/userguide/ebs-volumes-multi.html
MULTI_ATTACH_INSTANCES = 16
# Source (2026-11): https://docs.aws.amazon.com/ebs/latest/userguide/ebs-fast-snapshot-restore.html
FAST_RESTORE_GIB = 16384
FAST_RESTORE_USD_PER_ZONE_HOUR = 0.75
# Source (2026-11): https://docs.aws.amazon.com/fsx/latest/LustreGuide/create-fs.html
LUSTRE_SMALLEST_GIB, LUSTRE_STEP_GIB = 1200, 2400
DEEP_LEARNING_IMAGE_GIB = 75
SYSTEM_FOLDERS = re.compile(r"^/((bin|boot|dev|etc|home|lib|lib64|opt|proc|root|run|sbin|srv|sys|tmp|usr|var)/?)?$")
Gp3 = RootVolumeConfig | DatasetVolumeConfig | CheckpointVolumeConfig


def _gp3(config: DeploymentConfig, path: str, volume: Gp3) -> Iterator[Problem]:
    """A gp3 volume's size limits its IOPS, its IOPS limit its throughput, and the instance type limits both."""
    if volume.iops > max(GP3_BASELINE_IOPS, GP3_IOPS_PER_GIB * volume.gib):
        rule = f"must be at most {GP3_IOPS_PER_GIB} per GiB, and the volume has {volume.gib} GiB"
        yield Problem(f"{path}.iops", volume.iops, rule, "lower it, or raise gib")
    if volume.throughput > volume.iops * GP3_MIB_PER_SECOND_PER_IOPS:
        rule = f"must be at most 0.25 MiB/s for each of the {volume.iops} IOPS"
        yield Problem(f"{path}.throughput", volume.throughput, rule, "lower it, or raise iops")
    slowest = min(known_types(config), key=lambda one: one.ebs_mbps, default=None)
    if slowest is None or volume.throughput <= GP3_BASELINE_MIB_PER_SECOND:
        return
    reachable = slowest.ebs_mbps * MIB_PER_SECOND_PER_MBPS
    if volume.throughput > reachable:
        rule = f"exceeds the EBS baseline of {slowest.name} ({reachable:.0f} MiB/s), but is still billed"
        yield Problem(f"{path}.throughput", volume.throughput, rule, "lower it, or use larger types", "warning")


def root_volume(config: DeploymentConfig) -> Iterator[Problem]:
    """The root volume is large enough for the image."""
    root = config.node.root_volume
    yield from _gp3(config, "node.root_volume", root)
    if config.node.ami.startswith(DEEP_LEARNING_IMAGES) and root.gib < DEEP_LEARNING_IMAGE_GIB:
        rule = f"must be at least {DEEP_LEARNING_IMAGE_GIB} GiB, the size of the deep learning image"
        yield Problem("node.root_volume.gib", root.gib, rule, "raise it")


def dataset_volume(config: DeploymentConfig) -> Iterator[Problem]:
    """The dataset volume is created from a snapshot, and its block loading settings are consistent."""
    volume, path = config.storage.dataset_volume, "storage.dataset_volume"
    if volume is None:
        return
    yield from _gp3(config, path, volume)
    if volume.warm == "provisioned_rate" and volume.warm_mib_per_second is None:
        rule = "must be set with warm: provisioned_rate"
        yield Problem(f"{path}.warm_mib_per_second", None, rule, "set it to 100 to 300")
    if volume.warm != "provisioned_rate" and volume.warm_mib_per_second is not None:
        rule = f"applies only to warm: provisioned_rate, not to {volume.warm}"
        yield Problem(f"{path}.warm_mib_per_second", volume.warm_mib_per_second, rule, "remove it, or change warm")
    limit = volume.warm_limit_mib_per_second
    if limit is not None and volume.warm == "off":
        rule = "limits how fast nodes load blocks, but warm: off disables loading"
        yield Problem(f"{path}.warm_limit_mib_per_second", limit, rule, "remove it, or set warm: blocks")
    if limit is not None and limit >= volume.throughput:
        rule = f"must be below the volume's throughput, {volume.throughput} MiB/s"
        yield Problem(f"{path}.warm_limit_mib_per_second", limit, rule, "lower it, or remove it")
    if volume.warm != "fast_snapshot_restore":
        return
    if volume.gib > FAST_RESTORE_GIB:
        rule = f"fast snapshot restore supports snapshots of at most {FAST_RESTORE_GIB} GiB"
        yield Problem(f"{path}.warm", volume.warm, rule, "set warm: blocks, or use a smaller volume")
    zones = len(config.network.subnet_zones)
    daily = FAST_RESTORE_USD_PER_ZONE_HOUR * 24 * zones
    rule = f"costs {daily:.0f} USD per day in {zones} zones, with or without nodes"
    yield Problem(f"{path}.warm", volume.warm, rule, "use fewer zones; warm: blocks is free", "warning")


def checkpoint_volume(config: DeploymentConfig) -> Iterator[Problem]:
    """The checkpoint volume is gp3, so only one instance at a time can attach it."""
    volume, path = config.storage.checkpoint_volume, "storage.checkpoint_volume"
    if volume is None:
        return
    yield from _gp3(config, path, volume)
    if config.capacity.nodes > 1:
        rule = f"attaches to only one of the {config.capacity.nodes} nodes; the other nodes do not have a local copy"
        yield Problem(path, f"zone {volume.zone}", rule, "remove it: every node saves to S3 anyway", "warning")
    if volume.other_zones == "restore" and set(zone_candidates(config)) <= {volume.zone}:
        rule = f"has no effect: all nodes run in the volume's zone {volume.zone}"
        yield Problem(f"{path}.other_zones", "restore", rule, "remove it, or let nodes run in more zones")


def shared_volume(config: DeploymentConfig) -> Iterator[Problem]:
    """At most 16 Nitro instances in one zone can attach a multi-attach io2 volume."""
    volume, path = config.storage.shared_volume, "storage.shared_volume"
    if volume is None:
        return
    if volume.iops > IO2_IOPS_PER_GIB * volume.gib:
        rule = f"must be at most {IO2_IOPS_PER_GIB} per GiB, and the volume has {volume.gib} GiB"
        yield Problem(f"{path}.iops", volume.iops, rule, "lower it, or raise gib")
    nodes = sum(slot.config.capacity.nodes for slot in slots_of(config))
    if nodes > MULTI_ATTACH_INSTANCES:
        rule = f"at most {MULTI_ATTACH_INSTANCES} instances in all slots can attach the volume"
        yield Problem(path, f"{nodes} nodes", rule, "use fewer nodes, or storage.lustre, which has no such limit")
    for one in known_types(config):
        if not one.nitro:
            rule = "is not a Nitro type, but a multi-attach volume requires one"
            yield Problem("capacity.instance_types", one.name, rule, "remove the type, or storage.shared_volume")
    if volume.snapshot_id is None:
        rule = "must be set: nodes mount the volume read-only, so a volume without a snapshot stays empty"
        yield Problem(f"{path}.snapshot_id", None, rule, "set a snapshot", "warning")


def lustre(config: DeploymentConfig) -> Iterator[Problem]:
    """File systems have fixed sizes, and only persistent ones have a configurable throughput."""
    system, path = config.storage.lustre, "storage.lustre"
    if system is None:
        return
    if system.capacity_gib != LUSTRE_SMALLEST_GIB and system.capacity_gib % LUSTRE_STEP_GIB:
        below = system.capacity_gib // LUSTRE_STEP_GIB * LUSTRE_STEP_GIB or LUSTRE_SMALLEST_GIB
        rule = f"must be {LUSTRE_SMALLEST_GIB} or a multiple of {LUSTRE_STEP_GIB}"
        remedy = f"use {below} or {(system.capacity_gib // LUSTRE_STEP_GIB + 1) * LUSTRE_STEP_GIB}"
        yield Problem(f"{path}.capacity_gib", system.capacity_gib, rule, remedy)
    rate = system.throughput_mib_per_second_per_tib
    if system.deployment_type == "SCRATCH_2" and rate is not None:
        rule = "SCRATCH_2 has a fixed throughput of 200 MiB/s per TiB"
        yield Problem(f"{path}.throughput_mib_per_second_per_tib", rate, rule, "remove it, or use PERSISTENT_2")
    if system.deployment_type == "SCRATCH_2" and not system.import_datasets:
        rule = "a scratch file system without a bucket loses its data when a server fails"
        yield Problem(f"{path}.import_datasets", False, rule, "import datasets, or use PERSISTENT_2", "warning")


def zones(config: DeploymentConfig) -> Iterator[Problem]:
    """Zonal storage is in a zone where nodes run."""
    storage = config.storage
    homes = {
        name: section.zone
        for name, section in (
            ("checkpoint_volume", storage.checkpoint_volume),
            ("shared_volume", storage.shared_volume),
            ("lustre", storage.lustre),
        )
        if section is not None
    }
    available = config.network.subnet_zones
    for name, zone in homes.items():
        if zone not in available:
            rule = f"must be a zone of the network ({', '.join(available)})"
            yield Problem(f"storage.{name}.zone", zone, rule, "use one of them, or add the zone to the network")
    if "shared_volume" in homes and homes.get("checkpoint_volume", homes["shared_volume"]) != homes["shared_volume"]:
        rule = f"must be {homes['shared_volume']}, the shared volume's zone, because all nodes run there"
        yield Problem("storage.checkpoint_volume.zone", homes["checkpoint_volume"], rule, "use the same zone")
    if "lustre" in homes and homes.get("shared_volume", homes["lustre"]) != homes["lustre"]:
        rule = f"all nodes run in zone {homes['shared_volume']}, so reads cross zones, which is slow and billed"
        yield Problem("storage.lustre.zone", homes["lustre"], rule, "use the same zone", "warning")


def mounts(config: DeploymentConfig) -> Iterator[Problem]:
    """Each volume has a separate mount point outside system folders."""
    storage = config.storage
    sections = ("dataset_volume", "checkpoint_volume", "shared_volume", "lustre")
    found = [(f"storage.{name}.mount", getattr(storage, name).mount) for name in sections if getattr(storage, name)]
    for index, (path, mount) in enumerate(found):
        parts = PurePosixPath(mount)
        if ".." in parts.parts or SYSTEM_FOLDERS.match(str(parts)):
            yield Problem(path, mount, "is a system folder", "use a folder below /mnt")
        for other_path, other in found[:index]:
            if parts == PurePosixPath(other) or _is_inside(mount, other) or _is_inside(other, mount):
                yield Problem(path, mount, f"overlaps with {other_path}, {other}", "use another folder")


def _is_inside(inner: str, outer: str) -> bool:
    return PurePosixPath(outer) in PurePosixPath(inner).parents


def acceleration(config: DeploymentConfig) -> Iterator[Problem]:
    """The region supports transfer acceleration. Not every partition has edge locations for uploads."""
    # Source (2026-11): https://docs.aws.amazon.com/AmazonS3/latest/userguide/transfer-acceleration.html
    if config.storage.transfer_acceleration and config.region.startswith(("us-gov-", "cn-")):
        rule = f"{config.region} does not support transfer acceleration"
        yield Problem("storage.transfer_acceleration", True, rule, "remove it")


RULES = (root_volume, dataset_volume, checkpoint_volume, shared_volume, lustre, zones, mounts, acceleration)
