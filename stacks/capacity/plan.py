"""A deployment's fleet plan: GPUs, processes, network, zones and purchase options, derived from the deployment file.

The stacks, the validators and the run controller's settings all use these functions, so their results cannot differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from hardware import InstanceType
from stacks.capacity.catalogue import catalogue
from stacks.capacity.efa_layouts import PLAIN, Layout, efa_layout
from stacks.config import DeploymentConfig
from stacks.functions.run_controller.fleet_back_ends import BACK_ENDS, SPOT_ROLE, LinkedRole
from stacks.functions.run_controller.fleet_clients.auto_scaling_group import ON_DEMAND_SUFFIX
from stacks.functions.run_controller.market.moving import may_move

PCS_ROLE = LinkedRole("Pcs", "pcs.amazonaws.com", "AWSServiceRoleForPCS")
"""Source (2026-11): https://docs.aws.amazon.com/pcs/latest/userguide/security-key-policy-for-encrypted-volumes.html"""
RESERVED_MARKETS = ("reserved", "capacity_block", "interruptible_reservation")
"""Markets whose instances all run in the capacity reservation that `capacity.reservation` names."""


def known_types(config: DeploymentConfig) -> list[InstanceType]:
    """Return the listed types that the catalogue contains, in order of preference."""
    types = catalogue().types
    return [types[name] for name in config.capacity.instance_types if name in types]


def gpus(config: DeploymentConfig) -> int:
    """Return the GPUs per node: the number in the engine's section, or else the lowest among the listed types."""
    if config.runs_slurm_jobs and config.slurm is not None and config.slurm.gres is not None:
        return int(config.slurm.gres.rpartition(":")[2])
    if config.runs_pods and config.kubernetes is not None and config.kubernetes.gpus is not None:
        return config.kubernetes.gpus
    return min((one.gpus for one in known_types(config)), default=0)


def efa_adapters(config: DeploymentConfig) -> int:
    """Return the EFA adapters that each pod requests."""
    if config.kubernetes is not None and config.kubernetes.efa is not None:
        return config.kubernetes.efa
    if fabric(config) != "efa":
        return 0
    return min((one.efa_interfaces for one in known_types(config)), default=0)


def processes_per_node(config: DeploymentConfig) -> int:
    """Return the trainer processes per node: the configured number, or one per GPU, or one if there are no GPUs."""
    return config.training.processes_per_node or max(gpus(config), 1)


def fabric(config: DeploymentConfig) -> Literal["efa", "tcp"]:
    """Return the network between nodes: the configured one, or EFA for several nodes if every type supports it."""
    if config.node.fabric != "auto":
        return config.node.fabric
    types = catalogue().types
    have_efa = all(name in types and types[name].efa_interfaces for name in config.capacity.instance_types)
    return "efa" if config.capacity.nodes > 1 and config.capacity.instance_types and have_efa else "tcp"


def layouts(config: DeploymentConfig) -> Mapping[Layout, list[str]]:
    """Return the instance types grouped by network interface layout, in order of preference."""
    found: dict[Layout, list[str]] = {}
    for name in config.capacity.instance_types:
        found.setdefault(efa_layout(name) if fabric(config) == "efa" else PLAIN, []).append(name)
    return found


def fixed_zone(config: DeploymentConfig) -> str | None:
    """Return the letter of the only zone that the reservation or storage allows, or None if all zones are allowed."""
    reservation = config.capacity.reservation
    if reservation is not None:
        zone = reservation.zone if reservation.create is None else reservation.create.zone
        if zone is not None:
            return zone
    shared = config.storage.shared_volume
    return None if shared is None else shared.zone


def zone_candidates(config: DeploymentConfig) -> list[str]:
    """Return the letters of the zones that the fleet can use, in order of preference."""
    zone = fixed_zone(config)
    return config.network.subnet_zones if zone is None else [zone]


def one_zone_at_a_time(config: DeploymentConfig) -> bool:
    """Return True if each launch attempt uses one zone and the next attempt moves to another zone."""
    capacity, storage = config.capacity, config.storage
    if capacity.zone_policy is not None:
        return capacity.zone_policy == "one_at_a_time"
    # Cluster placement groups, EFA subnets, volumes and file systems are all zonal.
    zonal = storage.checkpoint_volume or storage.shared_volume or storage.lustre
    return capacity.placement == "cluster" or fabric(config) == "efa" or zonal is not None


def moves_nodes(config: DeploymentConfig) -> bool:
    """Return True if the run controller may move running nodes to a cheaper zone."""
    return may_move(config.capacity.choose, config.capacity.backend, on_demand_base(config))


def group_names(config: DeploymentConfig) -> list[str]:
    """Return the names of the Auto Scaling groups: one group, or one for each candidate zone, in order of preference.

    If each attempt uses one zone, each group has one subnet, and no deploy moves running nodes. Because the names are
    fixed, the run controller and the node role can refer to the groups without a dependency cycle. Deployment names
    do not contain dots.
    """
    name = f"trainstack-{config.name}"
    return [f"{name}.{zone}" for zone in zone_candidates(config)] if one_zone_at_a_time(config) else [name]


def on_demand_group_names(config: DeploymentConfig) -> list[str]:
    """Return the names of the Auto Scaling groups that buy nodes on demand to meet a deadline, one for each group.

    They do not depend on `limits.on_deadline_miss`, so that a change to this key does not replace nodes.
    """
    has_them = is_spot(config) and config.limits.deadline_hours is not None
    return [f"{name}{ON_DEMAND_SUFFIX}" for name in group_names(config)] if has_them else []


def group_name_patterns(config: DeploymentConfig) -> list[str]:
    """Return patterns that match the names of a deployment's groups in any zone.

    Policies use these patterns so that permissions do not depend on the zones.
    """
    name = f"trainstack-{config.name}"
    return [name, f"{name}.*"]


def is_spot(config: DeploymentConfig) -> bool:
    """Return True if the fleet uses spot instances."""
    return config.capacity.market == "spot"


def linked_roles(config: DeploymentConfig) -> tuple[LinkedRole, ...]:
    """Return the service-linked roles that launch a deployment's nodes."""
    if config.engine == "hyperpod" or config.has_eks_stack:
        return ()
    if config.engine == "pcs":
        role, needs_spot = PCS_ROLE, is_spot(config)
    else:
        back_end = BACK_ENDS[config.capacity.backend]
        role, needs = back_end.linked_role, back_end.needs_spot_role
        needs_spot = needs == "always" or (needs == "for spot instances" and is_spot(config))
    return (role, SPOT_ROLE) if needs_spot else (role,)


def on_demand_base(config: DeploymentConfig) -> int:
    """Return the number of non-spot instances."""
    return config.capacity.on_demand_base if is_spot(config) else config.capacity.nodes
