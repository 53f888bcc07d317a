"""Chooses instance types from what the work needs: every catalogued type is taken or refused, with the reason."""

from __future__ import annotations

from dataclasses import dataclass

from stacks.config import DeploymentConfig
from stacks.config.capacity import AutoCapacity
from stacks.gpu_memory import GpuMemory, from_parameters, from_shape
from stacks.instance_types import PURCHASES, InstanceType, Purchase, catalogue

GB_IN_GIB = 1e9 / 2**30


@dataclass(frozen=True)
class Needs:
    """What one machine must have; memory in GiB, money in USD per hour."""

    gpus: int
    gib_of_a_gpu: float
    vcpus: int
    memory_gib: int
    dataset_gib: float
    root_volume_gib: int
    efa: bool
    purchase: Purchase
    max_usd_per_hour: float | None
    types: int
    why_gpu_memory: str


@dataclass(frozen=True)
class Candidate:
    """One type's answer: taken in which place (0 first), or refused; prices by way to pay, None when unknown."""

    instance_type: InstanceType
    place: int | None
    reason: str
    usd_per_hour: dict[Purchase, float | None]

    @property
    def taken(self) -> bool:
        """Whether the type is in the list."""
        return self.place is not None


def needs_of(config: DeploymentConfig, auto: AutoCapacity) -> Needs:
    """Return what a machine must have, with GPU memory from the model when it is not said."""
    if auto.gpu_memory_gib is not None:
        memory, why = auto.gpu_memory_gib, "as said"
    elif auto.gpus:
        needed = gpu_memory_needed(config, auto)
        memory, why = needed.total_gib, str(needed)
    else:
        memory, why = 0.0, "no GPU"
    market = config.capacity.market
    purchase: Purchase = "spot" if market in ("spot", "interruptible_reservation") else "on_demand"
    return Needs(
        gpus=auto.gpus,
        gib_of_a_gpu=memory,
        vcpus=auto.vcpus or 1,
        memory_gib=auto.memory_gib or 1,
        dataset_gib=auto.dataset_gib or 0.0,
        root_volume_gib=config.node.root_volume.gib,
        efa=config.node.fabric == "efa",
        purchase=purchase,
        max_usd_per_hour=auto.max_usd_per_hour,
        types=auto.types,
        why_gpu_memory=why,
    )


def gpu_memory_needed(config: DeploymentConfig, auto: AutoCapacity) -> GpuMemory:
    """Return the memory that training takes on one GPU."""
    training = config.training.config
    shape = training.model.shape
    tokens = auto.micro_batch_tokens or training.least_micro_batch_sequences * shape.context
    if auto.parameters_million is not None:
        return from_parameters(auto.parameters_million * 1e6, tokens)
    return from_shape(shape, tokens)


def candidates(needs: Needs, region: str) -> list[Candidate]:
    """Return every type offered in a region: those taken first, in the order to try them, then those refused."""
    known = catalogue()
    if region not in known.regions:
        return []
    prices = known.regions[region]
    fitting: list[InstanceType] = []
    refused: list[tuple[InstanceType, str]] = []
    for name in prices.types:
        one = known.types[name]
        reason = _refusal(one, needs, prices.usd_per_hour(name, needs.purchase))
        if reason is None:
            fitting.append(one)
        else:
            refused.append((one, reason))

    def price(one: InstanceType) -> float:
        return prices.usd_per_hour(one.name, needs.purchase) or float("inf")

    fitting.sort(key=lambda one: (price(one), one.name))

    def candidate(one: InstanceType, place: int | None, reason: str) -> Candidate:
        return Candidate(one, place, reason, {way: prices.usd_per_hour(one.name, way) for way in PURCHASES})

    taken: list[Candidate] = []
    for one in fitting:
        reason = _left_out(one, fitting[0], len(taken), needs)
        if reason is None:
            taken.append(candidate(one, len(taken), _why(one, needs, price(one))))
        else:
            refused.append((one, reason))
    order = {name: place for place, name in enumerate(prices.types)}
    refused.sort(key=lambda pair: order[pair[0].name])
    return taken + [candidate(one, None, reason) for one, reason in refused]


def _refusal(one: InstanceType, needs: Needs, usd_per_hour: float | None) -> str | None:
    if one.gpus != needs.gpus:
        return f"{one.gpus} GPUs, not {needs.gpus}"
    if needs.gpus and one.gib_of_a_gpu < needs.gib_of_a_gpu:
        return f"{one.gib_of_a_gpu:.1f} GiB a GPU, {needs.gib_of_a_gpu:.1f} needed ({needs.why_gpu_memory})"
    if one.vcpus < needs.vcpus:
        return f"{one.vcpus} vCPUs, {needs.vcpus} needed"
    if one.memory_gib < needs.memory_gib:
        return f"{one.memory_gib} GiB of memory, {needs.memory_gib} needed"
    disk_gib = max(one.nvme_gb * GB_IN_GIB, needs.root_volume_gib)
    if needs.dataset_gib > disk_gib:
        return f"{disk_gib:.0f} GiB of local disks or root volume, {needs.dataset_gib:.0f} needed for the dataset"
    if needs.efa and not one.efa_interfaces:
        return "no EFA, which node.fabric asks for"
    if usd_per_hour is None:
        return f"no {needs.purchase.replace('_', '-')} price is known; `python -m stacks catalogue refresh` asks for it"
    if needs.max_usd_per_hour is not None and usd_per_hour > needs.max_usd_per_hour:
        return f"{usd_per_hour:.4f} USD an hour, above {needs.max_usd_per_hour}"
    return None


def _left_out(one: InstanceType, cheapest: InstanceType, taken: int, needs: Needs) -> str | None:
    if one.gpu != cheapest.gpu:
        return f"{one.gpu or 'no GPU'}: the cheapest that fits, {cheapest.name}, has {cheapest.gpu or 'none'}"
    if taken >= needs.types:
        return f"fits, but capacity.auto.types takes {needs.types}"
    return None


def _why(one: InstanceType, needs: Needs, usd_per_hour: float) -> str:
    market = needs.purchase.replace("_", "-")
    if not one.gpus:
        return f"{one.vcpus} vCPUs, {one.memory_gib} GiB; {usd_per_hour:.4f} USD an hour {market}"
    return (
        f"{one.gpus} x {one.gpu} of {one.gib_of_a_gpu:.1f} GiB, {needs.gib_of_a_gpu:.1f} needed; "
        f"{usd_per_hour:.4f} USD an hour {market}"
    )
