"""The `storage` section: buckets, volumes and file systems, and how they are deleted."""

from __future__ import annotations

from typing import Literal

from stacks.config.setting import MountPoint, Section, ZoneLetter, setting
from stacks.config.setting import section as optional_section


class DatasetVolumeConfig(Section):
    """A gp3 volume for each node, created in the node's zone from a snapshot that contains the dataset."""

    snapshot_id: str = setting(
        "Snapshot to create the volume from.", edit="replaces nodes", pattern=r"^snap-[0-9a-f]{8,17}$"
    )
    gib: int = setting("Size, GiB; at least the snapshot size.", edit="replaces nodes", ge=1, le=65536)
    iops: int = setting(
        "Provisioned IOPS; the first 3000 are free.", edit="replaces nodes", default=3000, ge=3000, le=80000
    )
    throughput: int = setting(
        "Throughput, MiB/s; the first 125 are free.", edit="replaces nodes", default=250, ge=125, le=2000
    )
    warm: Literal["blocks", "provisioned_rate", "fast_snapshot_restore", "off"] = setting(
        "How blocks are loaded before training. `blocks`: the node reads the allocated blocks. `provisioned_rate`: "
        "EBS loads all blocks at `warm_mib_per_second`. `fast_snapshot_restore`: EBS initializes the volume in "
        "advance (0.75 USD per hour in each zone). `off`: blocks load on first use.",
        edit="replaces nodes",
        default="blocks",
    )
    warm_mib_per_second: int | None = setting(
        "Rate at which EBS loads the volume, MiB/s; only with `warm: provisioned_rate`.",
        edit="replaces nodes",
        default=None,
        ge=100,
        le=300,
    )
    warm_limit_mib_per_second: int | None = setting(
        "Maximum rate at which a node reads blocks, MiB/s; a limit leaves throughput for training. `null`: no limit.",
        edit="replaces nodes",
        default=None,
        ge=1,
        le=2000,
    )
    mount: MountPoint = setting(
        "Mount point on the nodes; the volume is mounted read-only.", edit="replaces nodes", default="/mnt/dataset"
    )


class CheckpointVolumeConfig(Section):
    """A gp3 volume in one zone that holds local copies of checkpoints and outlives the stack."""

    zone: ZoneLetter = setting(
        "Letter of the volume's availability zone; nodes in this zone mount the volume.", edit="touches data"
    )
    gib: int = setting(
        "Size, GiB; you can increase it, but not decrease it.", edit="in place", default=200, ge=1, le=65536
    )
    iops: int = setting("Provisioned IOPS; the first 3000 are free.", edit="in place", default=3000, ge=3000, le=80000)
    throughput: int = setting(
        "Throughput, MiB/s; the first 125 are free.", edit="in place", default=250, ge=125, le=2000
    )
    snapshot_every_hours: Literal[1, 2, 3, 4, 6, 8, 12, 24] = setting(
        "Hours between scheduled snapshots, from which nodes in other zones can restore the volume.",
        edit="in place",
        default=6,
    )
    snapshots_kept: int = setting("Number of scheduled snapshots to keep.", edit="in place", default=4, ge=1, le=1000)
    other_zones: Literal["restore", "without"] = setting(
        "How nodes in other zones keep checkpoints. `restore`: create a temporary volume from the newest snapshot, and "
        "take a snapshot of it before the instance terminates. `without`: save to S3 only. A restored volume rarely "
        "has the newest checkpoint and loads slowly, so restoring it is worthwhile only if weights are frozen or "
        "saves to S3 are slow.",
        edit="replaces nodes",
        default="without",
    )
    mount: MountPoint = setting("Mount point on the nodes.", edit="replaces nodes", default="/mnt/checkpoints")


class SharedVolumeConfig(Section):
    """An io2 volume that up to 16 nodes in one zone attach at the same time, read-only."""

    zone: ZoneLetter = setting(
        "Letter of the volume's availability zone; all nodes run in this zone.", edit="touches data"
    )
    gib: int = setting("Size, GiB.", edit="in place", default=100, ge=4, le=65536)
    iops: int = setting("Provisioned IOPS.", edit="in place", default=10000, ge=100, le=256000)
    snapshot_id: str | None = setting(
        "Snapshot to create the volume from; `null`: create an empty volume.",
        edit="touches data",
        default=None,
        pattern=r"^snap-[0-9a-f]{8,17}$",
    )
    mount: MountPoint = setting("Mount point on the nodes.", edit="replaces nodes", default="/mnt/shared")


class LustreConfig(Section):
    """An FSx for Lustre file system in one zone, linked to the dataset bucket."""

    zone: ZoneLetter = setting(
        "Letter of the file system's availability zone; nodes in this zone have the fastest access.",
        edit="touches data",
    )
    capacity_gib: int = setting(
        "Size, GiB: 1200, or a multiple of 2400. You can increase it, but not decrease it.",
        edit="in place",
        default=1200,
        ge=1200,
    )
    deployment_type: Literal["PERSISTENT_2", "SCRATCH_2"] = setting(
        "`PERSISTENT_2` replicates data within its zone; `SCRATCH_2` is cheaper, but loses data when a server fails.",
        edit="touches data",
        default="PERSISTENT_2",
    )
    throughput_mib_per_second_per_tib: Literal[125, 250, 500, 1000] | None = setting(
        "Throughput, MiB/s per TiB of storage (`PERSISTENT_2` only); `null`: 250.", edit="in place", default=None
    )
    version: Literal["2.15"] = setting(
        "Lustre version; data repository associations require a version above 2.10.",
        edit="touches data",
        default="2.15",
    )
    compression: Literal["LZ4", "NONE"] = setting("Compression for stored data.", edit="in place", default="LZ4")
    import_datasets: bool = setting(
        "Link datasets/ in the dataset bucket through a data repository association; files load on first use.",
        edit="touches data",
        default=True,
    )
    stripe_count: int = setting(
        "Number of servers over which to stripe a large file; `-1`: all servers.",
        edit="replaces nodes",
        default=-1,
        ge=-1,
        le=160,
    )
    mount: MountPoint = setting("Mount point on the nodes.", edit="replaces nodes", default="/mnt/lustre")
    mount_options: str = setting(
        "Mount options.",
        edit="replaces nodes",
        default="relatime,flock",
        pattern=r"^[a-z0-9_=,]+$",
    )


class StorageConfig(Section):
    """Buckets, volumes and file systems, and how they are deleted."""

    deletion: Literal["retain", "destroy"] = setting(
        "`retain`: data remains after the stack is deleted. `destroy`: data is deleted with the stack; to prevent "
        "accidents, this also requires `-c allow-destroy=true`.",
        edit="touches data",
        default="retain",
    )
    transfer_acceleration: bool = setting(
        "Accept uploads to the dataset bucket at the nearest edge location (from 0.04 USD per GB).",
        edit="in place",
        default=False,
    )
    archive_after_days: int | None = setting(
        "Days after which datasets and checkpoints move to S3 Intelligent-Tiering, whose price depends on how often "
        "objects are accessed; `null`: never.",
        edit="in place",
        default=30,
        ge=0,
        le=3650,
    )
    access_log_days: int = setting("Days to keep bucket access logs.", edit="in place", default=90, ge=1, le=3650)
    noncurrent_version_days: int = setting(
        "Days to keep overwritten and deleted checkpoint objects, which are billed like current ones. Users can "
        "restore them (docs/checkpoint-keeping.md); nodes cannot delete them.",
        edit="in place",
        default=3,
        ge=1,
        le=365,
    )
    node_report_days: int = setting(
        "Days to keep failure reports from nodes.", edit="in place", default=30, ge=1, le=3650
    )
    dataset_volume: DatasetVolumeConfig | None = optional_section(
        "A volume with the dataset for each node; `null`: nodes read datasets from S3.", edit="replaces nodes"
    )
    checkpoint_volume: CheckpointVolumeConfig | None = optional_section(
        "A volume for local copies of checkpoints; `null`: S3 only.", edit="touches data"
    )
    shared_volume: SharedVolumeConfig | None = optional_section(
        "A volume that all nodes attach; `null`: none.", edit="touches data"
    )
    lustre: LustreConfig | None = optional_section("A shared file system; `null`: none.", edit="touches data")
