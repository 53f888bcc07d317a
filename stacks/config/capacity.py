"""The `capacity` section: instance count, types, purchase options and placement."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from stacks.config.setting import Section, ZoneLetter, setting
from stacks.config.setting import section as optional_section
from stacks.functions.run_controller.fleet_back_ends import Backend
from stacks.functions.run_controller.placement import Choose

Market = Literal["spot", "on_demand", "reserved", "capacity_block", "interruptible_reservation"]


class AutoCapacity(Section):
    """Workload requirements. `python -m stacks candidates FILE` explains each candidate type, cheapest first."""

    gpus: int = setting("GPUs per instance; `0`: instance types without GPUs.", edit="replaces nodes", default=1, ge=0)
    gpu_memory_gib: float | None = setting(
        "Minimum memory per GPU, GiB; `null`: computed from the model and the micro-batch.",
        edit="replaces nodes",
        default=None,
        gt=0,
    )
    parameters_million: float | None = setting(
        "Model size in millions of parameters, used to compute the required GPU memory.",
        edit="replaces nodes",
        default=None,
        gt=0,
    )
    micro_batch_tokens: int | None = setting(
        "Tokens per micro-batch on each GPU; `null`: derived from the training section.",
        edit="replaces nodes",
        default=None,
        ge=1,
    )
    vcpus: int | None = setting("Minimum number of vCPUs per instance.", edit="replaces nodes", default=None, ge=1)
    memory_gib: int | None = setting("Minimum memory per instance, GiB.", edit="replaces nodes", default=None, ge=1)
    dataset_gib: float | None = setting(
        "Dataset size, GiB; the dataset must fit on the instance's local disks or root volume.",
        edit="replaces nodes",
        default=None,
        gt=0,
    )
    hours: float | None = setting(
        "Planned hours of training, used to estimate the total cost.", edit="nothing", default=None, gt=0
    )
    max_usd_per_hour: float | None = setting(
        "Maximum hourly price per instance in the chosen market, USD.", edit="replaces nodes", default=None, gt=0
    )
    types: int = setting(
        "Maximum number of instance types to choose; all have the same GPU model.",
        edit="new nodes",
        default=4,
        ge=1,
        le=40,
    )


class NewReservation(Section):
    """A capacity reservation that the stack creates. AWS bills it from its creation, whether or not it is used."""

    instance_type: str = setting("Reserved instance type.", edit="replaces nodes")
    zone: ZoneLetter = setting("Letter of the reservation's availability zone.", edit="replaces nodes")
    count: int = setting("Number of reserved instances.", edit="in place", ge=1, le=1000)
    end: datetime | None = setting(
        "End time, with time zone; `null`: the reservation lasts until the stack is deleted.",
        edit="in place",
        default=None,
        strict=False,
    )


class ReservationConfig(Section):
    """Source of reserved capacity. Set exactly one of `id`, `resource_group_arn` and `create`."""

    id: str | None = setting(
        "Capacity reservation id or capacity block id.",
        edit="replaces nodes",
        default=None,
        pattern=r"^cr-[0-9a-f]{8,17}$",
    )
    resource_group_arn: str | None = setting(
        "ARN of a resource group that contains reservations; instances can use any of them.",
        edit="replaces nodes",
        default=None,
        pattern=r"^arn:aws[a-z-]*:resource-groups:[a-z0-9-]+:\d{12}:group/\S+$",
    )
    zone: ZoneLetter | None = setting(
        "Letter of the availability zone that `id` is in; the fleet uses only this zone. `null`: any of the network's "
        "zones.",
        edit="replaces nodes",
        default=None,
    )
    create: NewReservation | None = optional_section(
        "A capacity reservation to create; `null`: use an existing one.", edit="replaces nodes"
    )


class MaintenanceConfig(Section):
    """How the back end replaces instances."""

    max_lifetime_days: int | None = setting(
        "Days after which an instance is replaced (`auto_scaling_group` only); `null`: never.",
        edit="in place",
        default=None,
        ge=1,
        le=365,
    )
    replace_unhealthy: bool = setting(
        "Replace instances that fail their status checks (`ec2_fleet` and `spot_fleet` only).",
        edit="replaces nodes",
        default=True,
    )
    rebalance: Literal["off", "launch", "launch_before_terminate"] = setting(
        "Response to a rebalance recommendation. `off`: the supervisor saves an extra checkpoint and continues. "
        "`launch` and `launch_before_terminate`: the back end replaces the instance; `auto_scaling_group` supports "
        "only `launch_before_terminate`.",
        edit="new nodes",
        default="off",
    )
    rebalance_termination_delay_seconds: int | None = setting(
        "Seconds before `launch_before_terminate` terminates the old instance (`ec2_fleet` and `spot_fleet` only).",
        edit="replaces nodes",
        default=None,
        ge=120,
        le=7200,
    )


class CapacityConfig(Section):
    """Instance count, types, purchase options and placement."""

    backend: Backend = setting(
        "AWS service that manages the instances. `ec2_fleet` and `spot_fleet` choose among more pools at once. With "
        "`ec2_fleet`, editing a node setting creates a second fleet before deleting the first. AWS considers "
        "`spot_fleet` legacy.",
        edit="replaces nodes",
        default="auto_scaling_group",
    )
    instance_types: list[str] = setting(
        "Instance types in order of preference, all with the same GPU model. More types mean more spot pools and fewer"
        " interruptions. Leave it empty if `auto` is set.",
        edit="new nodes",
        default=[],
        max_length=40,
    )
    auto: AutoCapacity | None = optional_section(
        "Workload requirements for choosing instance types; `null`: use `instance_types`.",
        edit="replaces nodes",
    )
    slots: int = setting(
        "Number of fleets, which train different runs side by side. Each has its own nodes, permissions, logs, alarms "
        "and limits; all share the network and the buckets. The first one trains the run in this file; `trainstack "
        "run` starts runs on the others. A fleet without a run has no nodes.",
        edit="in place",
        default=1,
        ge=1,
        le=10,
    )
    nodes: int = setting("Number of nodes in the run.", edit="restarts the trainer", default=1, ge=1, le=1000)
    min_nodes: int | None = setting(
        "Minimum number of nodes that may train while others are missing; `null`: equal to `nodes`.",
        edit="restarts the trainer",
        default=None,
        ge=1,
    )
    market: Market = setting(
        "Purchase option. `spot`: up to 90% cheaper, with a two-minute notice before an interruption. `reserved`, "
        "`capacity_block` and `interruptible_reservation` use `reservation`; changing to or from one of these "
        "replaces nodes.",
        edit="new nodes",
        default="spot",
    )
    on_demand_base: int = setting(
        "Number of on-demand instances to launch before spot instances, in `reservation` if it is set. Runs survive "
        "interruptions even if this is 0.",
        edit="new nodes",
        default=0,
        ge=0,
    )
    reservation: ReservationConfig | None = optional_section(
        "Reserved capacity, which spot instances never use; `null`: none.", edit="replaces nodes"
    )
    allocation_strategy: Literal["price-capacity-optimized", "capacity-optimized", "lowest-price"] = setting(
        "How to choose among spot pools; `price-capacity-optimized` weighs price against the risk of interruption.",
        edit="new nodes",
        default="price-capacity-optimized",
    )
    max_price_usd: float | None = setting(
        "Maximum hourly price per spot instance, USD; `null`: the on-demand price, as AWS recommends.",
        edit="new nodes",
        default=None,
        gt=0,
    )
    zone_policy: Literal["any", "one_at_a_time"] | None = setting(
        "Zones in which each attempt launches the gang. `any`: all zones. `one_at_a_time`: a single zone; the next "
        "attempt uses the next zone. `null`: `one_at_a_time` with cluster placement, EFA or zonal storage, otherwise "
        "`any`.",
        edit="replaces nodes",
        default=None,
    )
    choose: Choose = setting(
        "How to choose the zone of each attempt if each attempt uses one zone. `order`: one zone after another, as "
        "listed. `cost`: the lowest expected spot price per hour of training. `availability`: the longest expected "
        "training. `cost` and `availability` consider the launches and interruptions that the run controller has "
        "observed, and try the next zone as soon as AWS rejects a launch. With at least three instance types, they "
        "also consider AWS's placement scores, for which the run controller needs another permission. `cost` also "
        "moves running nodes to a cheaper zone when the expected saving exceeds the cost of two restarts, at most once "
        "an hour, if all nodes are Spot Instances of Auto Scaling groups.",
        edit="in place",
        default="order",
    )
    placement: Literal["cluster", "partition", "spread", "none"] = setting(
        "Placement strategy. `cluster`: instances close together in one zone, for fast networks. `partition`, "
        "`spread`: instances on separate hardware, so fewer fail together. `none`: no constraint, which makes the "
        "most capacity available.",
        edit="replaces nodes",
        default="none",
    )
    partitions: int | None = setting(
        "Number of partitions per zone, 1 to 7, with `placement: partition`.",
        edit="replaces nodes",
        default=None,
        ge=1,
        le=7,
    )
    maintenance: MaintenanceConfig = MaintenanceConfig()
    gang_timeout_seconds: int = setting(
        "Maximum time, seconds, that an incomplete gang waits for the remaining nodes. The attempt then ends, and "
        "the next attempt uses the next zone.",
        edit="replaces nodes",
        default=900,
        ge=30,
    )
    boot_failure_limit: int = setting(
        "Number of failed boots after which the run controller stops the fleet; this limits the cost of a broken "
        "image.",
        edit="in place",
        default=3,
        ge=1,
    )
