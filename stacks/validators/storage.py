"""Rules of volumes, file systems and where they are mounted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from stacks.capacity_plan import zone_candidates
from stacks.config import DeploymentConfig
from stacks.errors import Problem
from stacks.gp3_volumes import gp3
from stacks.instance_types import catalogue

# Source (2026-11): https://docs.aws.amazon.com/ebs/latest/userguide/provisioned-iops.html
IO2_IOPS_PER_GIB = 1000
# Source (2026-11): https://docs.aws.amazon.com/ebs/latest/userguide/ebs-volumes-multi.html
MULTI_ATTACH_MACHINES = 16
# Source (2026-11): https://docs.aws.amazon.com/ebs/latest/userguide/ebs-fast-snapshot-restore.html
FAST_RESTORE_GIB = 16384
FAST_RESTORE_USD_PER_ZONE_HOUR = 0.75
# Source (2026-11): https://docs.aws.amazon.com/fsx/latest/LustreGuide/create-fs.html
LUSTRE_SMALLEST_GIB, LUSTRE_STEP_GIB = 1200, 2400
SYSTEM_FOLDERS = re.compile(r"^/((bin|boot|dev|etc|home|lib|lib64|opt|proc|root|run|sbin|srv|sys|tmp|usr|var)/?)?$")


def dataset_volume(config: DeploymentConfig) -> Iterator[Problem]:
    """A volume from a snapshot, and how its blocks get there."""
    volume, path = config.storage.dataset_volume, "storage.dataset_volume"
    if volume is None:
        return
    yield from gp3(config, path, volume)
    if volume.warm == "provisioned_rate" and volume.warm_mib_per_second is None:
        rule = "warm: provisioned_rate loads at a rate, and none is given"
        yield Problem(f"{path}.warm_mib_per_second", None, rule, "give 100 to 300")
    if volume.warm != "provisioned_rate" and volume.warm_mib_per_second is not None:
        rule = f"has a meaning for warm: provisioned_rate only, not {volume.warm}"
        yield Problem(f"{path}.warm_mib_per_second", volume.warm_mib_per_second, rule, "drop it, or change warm")
    limit = volume.warm_limit_mib_per_second
    if limit is not None and volume.warm == "off":
        rule = "bounds how nodes read the blocks, and with warm: off they do not"
        yield Problem(f"{path}.warm_limit_mib_per_second", limit, rule, "drop it, or warm: blocks")
    if limit is not None and limit >= volume.throughput:
        rule = f"is no limit: the volume gives {volume.throughput} MiB/s (throughput)"
        yield Problem(f"{path}.warm_limit_mib_per_second", limit, rule, "drop it, or give less than that")
    if volume.warm != "fast_snapshot_restore":
        return
    if volume.gib > FAST_RESTORE_GIB:
        rule = f"fast snapshot restore takes snapshots of at most {FAST_RESTORE_GIB} GiB"
        yield Problem(f"{path}.warm", volume.warm, rule, "warm: blocks, or a smaller volume")
    zones = len(config.network.subnet_zones)
    daily = FAST_RESTORE_USD_PER_ZONE_HOUR * 24 * zones
    rule = f"costs {daily:.0f} USD a day in {zones} zones, with or without nodes"
    yield Problem(f"{path}.warm", volume.warm, rule, "warm: blocks is free; fewer zones are cheaper", "warning")


def checkpoint_volume(config: DeploymentConfig) -> Iterator[Problem]:
    """A gp3 volume is attached to one machine at a time."""
    volume, path = config.storage.checkpoint_volume, "storage.checkpoint_volume"
    if volume is None:
        return
    yield from gp3(config, path, volume)
    if config.capacity.nodes > 1:
        rule = f"is attached to one machine at a time, and {config.capacity.nodes} nodes train: the others go without"
        yield Problem(path, f"zone {volume.zone}", rule, "drop it: every node saves to S3 anyway", "warning")
    if volume.other_zones == "restore" and set(zone_candidates(config)) <= {volume.zone}:
        rule = f"all nodes run in zone {volume.zone}, that of the volume"
        yield Problem(f"{path}.other_zones", "restore", rule, "drop it, or let nodes run in more zones")


def shared_volume(config: DeploymentConfig) -> Iterator[Problem]:
    """An io2 volume with several attachments: machines of one zone, on Nitro, at most 16."""
    volume, path = config.storage.shared_volume, "storage.shared_volume"
    if volume is None:
        return
    if volume.iops > IO2_IOPS_PER_GIB * volume.gib:
        rule = f"is more than {IO2_IOPS_PER_GIB} a GiB of {volume.gib} GiB"
        yield Problem(f"{path}.iops", volume.iops, rule, "lower it, or raise gib")
    if config.capacity.nodes > MULTI_ATTACH_MACHINES:
        rule = f"at most {MULTI_ATTACH_MACHINES} machines attach one volume"
        yield Problem("capacity.nodes", config.capacity.nodes, rule, "drop storage.shared_volume; lustre has no limit")
    types = catalogue().types
    for name in config.capacity.instance_types:
        if name in types and not types[name].nitro:
            rule = "is not of the Nitro system, which a volume of several attachments needs"
            yield Problem("capacity.instance_types", name, rule, "drop the type, or storage.shared_volume")
    if volume.snapshot_id is None:
        rule = "is attached read-only, and without a snapshot there is nothing to read"
        yield Problem(f"{path}.snapshot_id", None, rule, "name a snapshot", "warning")


def lustre(config: DeploymentConfig) -> Iterator[Problem]:
    """Sizes come in steps, and throughput is chosen for persistent file systems only."""
    system, path = config.storage.lustre, "storage.lustre"
    if system is None:
        return
    if system.capacity_gib != LUSTRE_SMALLEST_GIB and system.capacity_gib % LUSTRE_STEP_GIB:
        below = system.capacity_gib // LUSTRE_STEP_GIB * LUSTRE_STEP_GIB or LUSTRE_SMALLEST_GIB
        rule = f"must be {LUSTRE_SMALLEST_GIB} or a multiple of {LUSTRE_STEP_GIB}"
        remedy = f"take {below} or {(system.capacity_gib // LUSTRE_STEP_GIB + 1) * LUSTRE_STEP_GIB}"
        yield Problem(f"{path}.capacity_gib", system.capacity_gib, rule, remedy)
    rate = system.throughput_mib_per_second_per_tib
    if system.deployment_type == "SCRATCH_2" and rate is not None:
        rule = "SCRATCH_2 always has 200 MiB/s a TiB"
        yield Problem(f"{path}.throughput_mib_per_second_per_tib", rate, rule, "drop it, or PERSISTENT_2")
    if system.deployment_type == "SCRATCH_2" and not system.import_datasets:
        rule = "a scratch file system that is linked with no bucket loses what it holds when a server fails"
        yield Problem(f"{path}.import_datasets", False, rule, "import datasets, or PERSISTENT_2", "warning")


def zones(config: DeploymentConfig) -> Iterator[Problem]:
    """What lies in one zone must be where nodes are."""
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
    there = config.network.subnet_zones
    for name, zone in homes.items():
        if zone not in there:
            rule = f"no node runs there: the network has zones {', '.join(there)}"
            yield Problem(f"storage.{name}.zone", zone, rule, "take one of them, or add the zone to the network")
    if "shared_volume" in homes and homes.get("checkpoint_volume", homes["shared_volume"]) != homes["shared_volume"]:
        rule = f"all nodes run in zone {homes['shared_volume']}, that of the shared volume"
        yield Problem("storage.checkpoint_volume.zone", homes["checkpoint_volume"], rule, "take the same zone")
    if "lustre" in homes and homes.get("shared_volume", homes["lustre"]) != homes["lustre"]:
        rule = f"all nodes run in zone {homes['shared_volume']}: each byte read crosses zones, which is slow and billed"
        yield Problem("storage.lustre.zone", homes["lustre"], rule, "take the same zone", "warning")


def mounts(config: DeploymentConfig) -> Iterator[Problem]:
    """Each volume has a folder of its own, outside the system's."""
    storage = config.storage
    sections = ("dataset_volume", "checkpoint_volume", "shared_volume", "lustre")
    found = [(f"storage.{name}.mount", getattr(storage, name).mount) for name in sections if getattr(storage, name)]
    for index, (path, mount) in enumerate(found):
        parts = PurePosixPath(mount)
        if ".." in parts.parts or SYSTEM_FOLDERS.match(str(parts)):
            yield Problem(path, mount, "is a folder of the system", "take one below /mnt")
        for other_path, other in found[:index]:
            if parts == PurePosixPath(other) or _inside(mount, other) or _inside(other, mount):
                yield Problem(path, mount, f"is the folder of {other_path}, or inside it or around it", "take another")


def _inside(inner: str, outer: str) -> bool:
    return PurePosixPath(outer) in PurePosixPath(inner).parents


def acceleration(config: DeploymentConfig) -> Iterator[Problem]:
    """GovCloud has no edge locations for uploads."""
    # Source (2026-11): https://docs.aws.amazon.com/AmazonS3/latest/userguide/transfer-acceleration.html
    if config.storage.transfer_acceleration and config.region.startswith(("us-gov-", "cn-")):
        rule = f"{config.region} has no transfer acceleration"
        yield Problem("storage.transfer_acceleration", True, rule, "drop it")


RULES = (dataset_volume, checkpoint_volume, shared_volume, lustre, zones, mounts, acceleration)
