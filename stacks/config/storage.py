"""The `storage` section: buckets, volumes and file systems, and what happens to them."""

from __future__ import annotations

from typing import Literal

from stacks.config.setting import MountPoint, Section, ZoneLetter, setting
from stacks.config.setting import section as optional_section


class DatasetVolumeConfig(Section):
    """A gp3 volume from a snapshot with the dataset, made anew for each node in the node's own zone."""

    snapshot_id: str = setting("Snapshot it is made from.", edit="replaces nodes", pattern=r"^snap-[0-9a-f]{8,17}$")
    gib: int = setting("Size, GiB; at least that of the snapshot.", edit="replaces nodes", ge=1, le=65536)
    iops: int = setting("Operations a second; 3000 are free.", edit="replaces nodes", default=3000, ge=3000, le=80000)
    throughput: int = setting("MiB/s; 125 are free.", edit="replaces nodes", default=250, ge=125, le=2000)
    warm: Literal["blocks", "provisioned_rate", "fast_snapshot_restore", "off"] = setting(
        "How its blocks get there before training reads them: the node reads the allocated ones; EBS loads all at "
        "warm_mib_per_second; a snapshot restored in advance in each zone (0.75 USD an hour and zone); not at all.",
        edit="replaces nodes",
        default="blocks",
    )
    warm_mib_per_second: int | None = setting(
        "MiB/s at which EBS loads the volume; with warm: provisioned_rate only.",
        edit="replaces nodes",
        default=None,
        ge=100,
        le=300,
    )
    warm_limit_mib_per_second: int | None = setting(
        "MiB/s at which a node reads blocks at most, so that training keeps some of the volume's throughput; null: as "
        "fast as they come.",
        edit="replaces nodes",
        default=None,
        ge=1,
        le=2000,
    )
    mount: MountPoint = setting("Where nodes see it, read-only.", edit="replaces nodes", default="/mnt/dataset")


class CheckpointVolumeConfig(Section):
    """A gp3 volume for local copies of checkpoints, in one zone, kept when the stack goes."""

    zone: ZoneLetter = setting("Letter of its availability zone: nodes of that zone mount it.", edit="touches data")
    gib: int = setting("Size, GiB; it can grow, never shrink.", edit="in place", default=200, ge=1, le=65536)
    iops: int = setting("Operations a second; 3000 are free.", edit="in place", default=3000, ge=3000, le=80000)
    throughput: int = setting("MiB/s; 125 are free.", edit="in place", default=250, ge=125, le=2000)
    snapshot_every_hours: Literal[1, 2, 3, 4, 6, 8, 12, 24] = setting(
        "Hours between scheduled snapshots, from which another zone can restore it.", edit="in place", default=6
    )
    snapshots_kept: int = setting("Scheduled snapshots that are kept.", edit="in place", default=4, ge=1, le=1000)
    other_zones: Literal["restore", "without"] = setting(
        "What a node of another zone does: make a copy from the newest snapshot, which goes with the machine (and "
        "leaving nodes take snapshots); or save to S3 alone. A copy rarely has the newest checkpoint and loads slowly, "
        "so it pays for weights that stay frozen, or saves that are slow to reach S3.",
        edit="replaces nodes",
        default="without",
    )
    mount: MountPoint = setting("Where nodes see it.", edit="replaces nodes", default="/mnt/checkpoints")


class SharedVolumeConfig(Section):
    """An io2 volume that up to 16 nodes of one zone attach at once, read-only."""

    zone: ZoneLetter = setting("Letter of its availability zone: all nodes run there.", edit="touches data")
    gib: int = setting("Size, GiB.", edit="in place", default=100, ge=4, le=65536)
    iops: int = setting("Provisioned operations a second.", edit="in place", default=10000, ge=100, le=256000)
    snapshot_id: str | None = setting(
        "Snapshot it is made from; null: empty.",
        edit="touches data",
        default=None,
        pattern=r"^snap-[0-9a-f]{8,17}$",
    )
    mount: MountPoint = setting("Where nodes see it.", edit="replaces nodes", default="/mnt/shared")


class LustreConfig(Section):
    """An FSx for Lustre file system in one zone, linked with the dataset bucket."""

    zone: ZoneLetter = setting("Letter of its availability zone: nodes there read it fastest.", edit="touches data")
    capacity_gib: int = setting(
        "Size, GiB: 1200, or a multiple of 2400. It can grow, never shrink.", edit="in place", default=1200, ge=1200
    )
    deployment_type: Literal["PERSISTENT_2", "SCRATCH_2"] = setting(
        "PERSISTENT_2 replicates within its zone; SCRATCH_2 is cheaper and loses data with a server.",
        edit="touches data",
        default="PERSISTENT_2",
    )
    throughput_mib_per_second_per_tib: Literal[125, 250, 500, 1000] | None = setting(
        "MiB/s for each TiB, PERSISTENT_2 only; null: 250 there.", edit="in place", default=None
    )
    version: Literal["2.15"] = setting(
        "Lustre version; data repository associations need more than 2.10.", edit="touches data", default="2.15"
    )
    compression: Literal["LZ4", "NONE"] = setting("Compression of stored data.", edit="in place", default="LZ4")
    import_datasets: bool = setting(
        "Whether the bucket's datasets/ appear in it (a data repository association), read on first use.",
        edit="touches data",
        default=True,
    )
    stripe_count: int = setting(
        "Servers that a large file is spread over; -1: all.", edit="replaces nodes", default=-1, ge=-1, le=160
    )
    mount: MountPoint = setting("Where nodes see it.", edit="replaces nodes", default="/mnt/lustre")
    mount_options: str = setting(
        "Options of the mount.",
        edit="replaces nodes",
        default="relatime,flock",
        pattern=r"^[a-z0-9_=,]+$",
    )


class StorageConfig(Section):
    """Buckets, volumes and file systems, and what happens to them."""

    deletion: Literal["retain", "destroy"] = setting(
        "Whether data goes with the stack; destroy also needs `-c allow-destroy=true`: one slip loses nothing.",
        edit="touches data",
        default="retain",
    )
    transfer_acceleration: bool = setting(
        "Whether the dataset bucket takes uploads through the nearest edge location (0.04 USD a GB and more).",
        edit="in place",
        default=False,
    )
    archive_after_days: int | None = setting(
        "Days after which datasets and checkpoints move to Intelligent-Tiering, which prices them by use; null: never.",
        edit="in place",
        default=30,
        ge=0,
        le=3650,
    )
    access_log_days: int = setting("Days that bucket access logs are kept.", edit="in place", default=90, ge=1, le=3650)
    node_report_days: int = setting(
        "Days that reports of failed nodes are kept.", edit="in place", default=30, ge=1, le=3650
    )
    dataset_volume: DatasetVolumeConfig | None = optional_section(
        "A volume with the dataset for each node; null: datasets come from S3.", edit="replaces nodes"
    )
    checkpoint_volume: CheckpointVolumeConfig | None = optional_section(
        "A volume for local copies of checkpoints; null: S3 only.", edit="touches data"
    )
    shared_volume: SharedVolumeConfig | None = optional_section(
        "A volume that all nodes attach; null: none.", edit="touches data"
    )
    lustre: LustreConfig | None = optional_section("A shared file system; null: none.", edit="touches data")
