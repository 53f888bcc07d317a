"""Selects instance types for a workload. Each offered type is either chosen or rejected, with a reason."""

from __future__ import annotations

from dataclasses import dataclass

from hardware import InstanceType
from stacks.capacity.catalogue import PURCHASES, Purchase, catalogue
from stacks.capacity.gpu_memory import GpuMemory, from_parameters, from_shape
from stacks.capacity.images import ImageFacts, image_facts
from stacks.config import DeploymentConfig
from stacks.config.capacity import AutoCapacity

GB_IN_GIB = 1e9 / 2**30


@dataclass(frozen=True)
class Needs:
    """Requirements for one instance, with memory in GiB and prices in USD per hour."""

    gpus: int
    gib_per_gpu: float
    vcpus: int
    memory_gib: int
    dataset_gib: float
    root_volume_gib: int
    efa: bool
    image: ImageFacts | None
    purchase: Purchase
    max_usd_per_hour: float | None
    types: int
    gpu_memory_reason: str


@dataclass(frozen=True)
class Candidate:
    """A type and its price for each purchase option (None if unknown). `rank` starts at 0; None means rejected."""

    instance_type: InstanceType
    rank: int | None
    reason: str
    usd_per_hour: dict[Purchase, float | None]

    @property
    def chosen(self) -> bool:
        """Whether the type was chosen."""
        return self.rank is not None


def needs_of(config: DeploymentConfig, auto: AutoCapacity) -> Needs:
    """Return the requirements for an instance. GPU memory is estimated from the model unless configured."""
    if auto.gpu_memory_gib is not None:
        memory, reason = auto.gpu_memory_gib, "as configured"
    elif auto.gpus:
        needed = gpu_memory_needed(config, auto)
        memory, reason = needed.total_gib, str(needed)
    else:
        memory, reason = 0.0, "no GPU"
    market = config.capacity.market
    purchase: Purchase = "spot" if market in ("spot", "interruptible_reservation") else "on_demand"
    return Needs(
        gpus=auto.gpus,
        gib_per_gpu=memory,
        vcpus=auto.vcpus or 1,
        memory_gib=auto.memory_gib or 1,
        dataset_gib=auto.dataset_gib or 0.0,
        root_volume_gib=config.node.root_volume.gib,
        efa=config.node.fabric == "efa",
        image=image_facts(config.node.ami),
        purchase=purchase,
        max_usd_per_hour=auto.max_usd_per_hour,
        types=auto.types,
        gpu_memory_reason=reason,
    )


def gpu_memory_needed(config: DeploymentConfig, auto: AutoCapacity) -> GpuMemory:
    """Return an estimate of the memory that training needs on one GPU."""
    training = config.training.config
    shape = training.model.shape
    tokens = auto.micro_batch_tokens or training.min_micro_batch_size * shape.sequence_length
    if auto.parameters_million is not None:
        return from_parameters(auto.parameters_million * 1e6, tokens)
    return from_shape(shape, tokens)


def candidates(needs: Needs, region: str) -> list[Candidate]:
    """Return every type offered in a region: the chosen types in order of preference, then the rejected types."""
    known = catalogue()
    if region not in known.regions:
        return []
    prices = known.regions[region]
    fitting: list[InstanceType] = []
    rejected: list[tuple[InstanceType, str]] = []
    for name in prices.types:
        one = known.types[name]
        reason = _rejection(one, needs, prices.usd_per_hour(name, needs.purchase))
        if reason is None:
            fitting.append(one)
        else:
            rejected.append((one, reason))

    def price(one: InstanceType) -> float:
        return prices.usd_per_hour(one.name, needs.purchase) or float("inf")

    fitting.sort(key=lambda one: (price(one), one.name))

    def candidate(one: InstanceType, rank: int | None, reason: str) -> Candidate:
        return Candidate(one, rank, reason, {way: prices.usd_per_hour(one.name, way) for way in PURCHASES})

    chosen: list[Candidate] = []
    for one in fitting:
        reason = _exclusion(one, fitting[0], len(chosen), needs)
        if reason is None:
            chosen.append(candidate(one, len(chosen), _reason(one, needs, price(one))))
        else:
            rejected.append((one, reason))
    order = {name: index for index, name in enumerate(prices.types)}
    rejected.sort(key=lambda pair: order[pair[0].name])
    return chosen + [candidate(one, None, reason) for one, reason in rejected]


def _rejection(one: InstanceType, needs: Needs, usd_per_hour: float | None) -> str | None:
    if one.gpus != needs.gpus:
        return f"{one.gpus} GPUs, {needs.gpus} needed"
    if needs.gpus and one.gib_per_gpu < needs.gib_per_gpu:
        return f"{one.gib_per_gpu:.1f} GiB per GPU, {needs.gib_per_gpu:.1f} needed ({needs.gpu_memory_reason})"
    if one.vcpus < needs.vcpus:
        return f"{one.vcpus} vCPUs, {needs.vcpus} needed"
    if one.memory_gib < needs.memory_gib:
        return f"{one.memory_gib} GiB of memory, {needs.memory_gib} needed"
    disk_gib = max(one.nvme_gb * GB_IN_GIB, needs.root_volume_gib)
    if needs.dataset_gib > disk_gib:
        return f"{disk_gib:.0f} GiB on local disks or the root volume, {needs.dataset_gib:.0f} needed for the dataset"
    if needs.efa and not one.efa_interfaces:
        return "no EFA, which node.fabric requires"
    if needs.image is not None and not needs.image.supports(one):
        return f"the image in node.ami does not support {one.family.name}"
    if usd_per_hour is None:
        return f"unknown {needs.purchase.replace('_', '-')} price; run `python -m stacks catalogue refresh`"
    if needs.max_usd_per_hour is not None and usd_per_hour > needs.max_usd_per_hour:
        return f"{usd_per_hour:.4f} USD per hour, above the maximum of {needs.max_usd_per_hour}"
    return None


def _exclusion(one: InstanceType, cheapest: InstanceType, chosen: int, needs: Needs) -> str | None:
    if one.gpu != cheapest.gpu:
        return f"fits, but has {one.gpu or 'no GPU'}; the cheapest type, {cheapest.name}, has {cheapest.gpu or 'none'}"
    if chosen >= needs.types:
        return f"fits, but capacity.auto.types limits the list to {needs.types}"
    return None


def _reason(one: InstanceType, needs: Needs, usd_per_hour: float) -> str:
    market = needs.purchase.replace("_", "-")
    if not one.gpus:
        return f"{one.vcpus} vCPUs, {one.memory_gib} GiB; {usd_per_hour:.4f} USD per hour {market}"
    return (
        f"{one.gpus} x {one.gpu} with {one.gib_per_gpu:.1f} GiB, {needs.gib_per_gpu:.1f} needed; "
        f"{usd_per_hour:.4f} USD per hour {market}"
    )
