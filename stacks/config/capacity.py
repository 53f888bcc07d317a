"""The `capacity` section: how many machines of which kind, bought how, placed where."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from stacks.config.setting import Section, ZoneLetter, setting
from stacks.config.setting import section as optional_section

Backend = Literal["auto_scaling_group", "ec2_fleet", "spot_fleet"]
Market = Literal["spot", "on_demand", "reserved", "capacity_block", "interruptible_reservation"]


class AutoCapacity(Section):
    """What the work needs; `python -m stacks candidates FILE` prints the types that fit, cheapest first, and why."""

    gpus: int = setting(
        "GPUs a machine; 0: CPU-only work, which takes types without a GPU.", edit="replaces nodes", default=1, ge=0
    )
    gpu_memory_gib: float | None = setting(
        "Memory that one GPU must have, GiB; null: computed from parameters and micro-batch.",
        edit="replaces nodes",
        default=None,
        gt=0,
    )
    parameters_million: float | None = setting(
        "Size of the model, millions of parameters, from which the memory of a GPU follows.",
        edit="replaces nodes",
        default=None,
        gt=0,
    )
    micro_batch_tokens: int | None = setting(
        "Tokens of a micro-batch on one GPU; null: that of the training section.",
        edit="replaces nodes",
        default=None,
        ge=1,
    )
    vcpus: int | None = setting("Virtual CPUs a machine, at least.", edit="replaces nodes", default=None, ge=1)
    memory_gib: int | None = setting("Host memory a machine, GiB, at least.", edit="replaces nodes", default=None, ge=1)
    dataset_gib: float | None = setting(
        "Size of the dataset, GiB: it must fit on the machine's local disks or root volume.",
        edit="replaces nodes",
        default=None,
        gt=0,
    )
    hours: float | None = setting("Planned hours, for the total cost.", edit="nothing", default=None, gt=0)
    max_usd_per_hour: float | None = setting(
        "Most that one machine may cost an hour in the chosen market, USD.", edit="replaces nodes", default=None, gt=0
    )
    types: int = setting("Types to take, of one GPU kind.", edit="new nodes", default=4, ge=1, le=40)


class NewReservation(Section):
    """A capacity reservation made by the stack: it is billed from the deploy on, used or not."""

    instance_type: str = setting("Reserved type.", edit="replaces nodes")
    zone: ZoneLetter = setting("Letter of its availability zone.", edit="replaces nodes")
    count: int = setting("Machines reserved.", edit="in place", ge=1, le=1000)
    end: datetime | None = setting(
        "When it ends, with time zone; null: when the stack goes.", edit="in place", default=None, strict=False
    )


class ReservationConfig(Section):
    """Where reserved capacity comes from: exactly one of the three."""

    id: str | None = setting(
        "Id of a capacity reservation or capacity block.",
        edit="replaces nodes",
        default=None,
        pattern=r"^cr-[0-9a-f]{8,17}$",
    )
    resource_group_arn: str | None = setting(
        "Resource group of reservations; any of them is used.",
        edit="replaces nodes",
        default=None,
        pattern=r"^arn:aws[a-z-]*:resource-groups:[a-z0-9-]+:\d{12}:group/\S+$",
    )
    zone: ZoneLetter | None = setting(
        "Letter of the zone of `id`: the fleet is kept to it; null: any zone of the network.",
        edit="replaces nodes",
        default=None,
    )
    create: NewReservation | None = optional_section("A reservation to make; null: use one.", edit="replaces nodes")


class MaintenanceConfig(Section):
    """How a back end keeps its machines fresh between runs."""

    max_lifetime_days: int | None = setting(
        "Days after which a machine is replaced; auto_scaling_group only; null: never.",
        edit="in place",
        default=None,
        ge=1,
        le=365,
    )
    replace_unhealthy: bool = setting(
        "Whether a machine that fails its status checks is replaced; ec2_fleet and spot_fleet.",
        edit="replaces nodes",
        default=True,
    )
    rebalance: Literal["off", "launch", "launch_before_terminate"] = setting(
        "What the fleet does at AWS's early warning. Off: the supervisor saves an extra checkpoint and works on; the "
        "others force a replacement. An auto_scaling_group knows launch_before_terminate only.",
        edit="new nodes",
        default="off",
    )
    rebalance_termination_delay_seconds: int | None = setting(
        "Seconds that the old machine stays with launch_before_terminate; ec2_fleet and spot_fleet.",
        edit="replaces nodes",
        default=None,
        ge=120,
        le=7200,
    )


class CapacityConfig(Section):
    """How many machines of which kind, bought how."""

    backend: Backend = setting(
        "What holds the machines. ec2_fleet and spot_fleet choose among more pools at once; a node edit builds a "
        "second EC2 fleet before the first goes. AWS calls spot_fleet legacy.",
        edit="replaces nodes",
        default="auto_scaling_group",
    )
    instance_types: list[str] = setting(
        "Types in order of preference. More types mean more spot pools, so fewer interruptions; all of one GPU kind. "
        "Left out with `auto`.",
        edit="new nodes",
        default=[],
        max_length=40,
    )
    auto: AutoCapacity | None = optional_section(
        "What the work needs, instead of a list of types: they are chosen from the catalogue.", edit="replaces nodes"
    )
    nodes: int = setting("Machines that the run trains on.", edit="restarts the trainer", default=1, ge=1, le=1000)
    min_nodes: int | None = setting(
        "Smallest gang that may train when the rest does not come; null: all of `nodes`.",
        edit="restarts the trainer",
        default=None,
        ge=1,
    )
    market: Market = setting(
        "spot: up to 90 % cheaper, with two minutes' notice before AWS takes a machine back. reserved, capacity_block "
        "and interruptible_reservation use what `reservation` names; to or from these, nodes are replaced.",
        edit="new nodes",
        default="spot",
    )
    on_demand_base: int = setting(
        "Machines bought on demand (inside `reservation` when there is one) before spot ones; 0: a run survives "
        "interruptions, so none is needed.",
        edit="new nodes",
        default=0,
        ge=0,
    )
    reservation: ReservationConfig | None = optional_section(
        "Reserved capacity; spot machines never use it.", edit="replaces nodes"
    )
    allocation_strategy: Literal["price-capacity-optimized", "capacity-optimized", "lowest-price"] = setting(
        "How AWS picks among spot pools; price-capacity-optimized weighs price against interruptions.",
        edit="new nodes",
        default="price-capacity-optimized",
    )
    max_price_usd: float | None = setting(
        "Most that is paid per spot machine and hour, USD; null: up to the on-demand price, which AWS advises.",
        edit="new nodes",
        default=None,
        gt=0,
    )
    zone_policy: Literal["any", "one_at_a_time"] | None = setting(
        "one_at_a_time: an attempt stays in one zone, the next attempt tries the next; null: so with cluster "
        "placement, EFA or storage of one zone, else any.",
        edit="replaces nodes",
        default=None,
    )
    placement: Literal["cluster", "partition", "spread", "none"] = setting(
        "cluster: machines close together in one zone, for fast networks; partition and spread: on separate hardware, "
        "so that fewer fail together; none: any place, most capacity.",
        edit="replaces nodes",
        default="none",
    )
    partitions: int | None = setting(
        "Partitions of placement: partition, 1 to 7 a zone.", edit="replaces nodes", default=None, ge=1, le=7
    )
    maintenance: MaintenanceConfig = MaintenanceConfig()
    gang_timeout_seconds: int = setting(
        "How long a part of the gang waits for the rest before the attempt is given up, and the next zone tried.",
        edit="replaces nodes",
        default=900,
        ge=30,
    )
    boot_failure_limit: int = setting(
        "Machines that may fail to boot before the fleet is stopped, so that a bad image burns no money.",
        edit="in place",
        default=3,
        ge=1,
    )
