"""Facts about instance types and GPU models. `hardware.json` is the only file that contains them.

This package uses only the standard library because the stacks, the node program and the trainer all import it, and both
bundles contain it. Prices and offerings are in `stacks.capacity.catalogue` because a new price must not change the
bundles.

Sources (2026-11):
- types: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_InstanceTypeInfo.html, except `network_gbps`:
  https://docs.aws.amazon.com/ec2/latest/instancetypes/ac.html
- quotas: https://docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html
- NVLinks: https://www.nvidia.com/en-us/data-center/nvlink/ (12 per GPU on A100, 18 on Hopper and Blackwell), for the
  types with a fabric manager: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/install-nvidia-driver.html
- EFA cards: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html and, for p6e-gb200,
  https://github.com/aws/aws-parallelcluster/pull/6930
- GPU peaks: the `source` of each model, read 2026-11
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

HARDWARE_PATH = Path(__file__).with_name("hardware.json")


@dataclass(frozen=True)
class Source:
    """The source of a set of figures and the date when they were retrieved."""

    date: date
    source: str


@dataclass(frozen=True)
class GpuModel:
    """A GPU model, with the name that EC2 returns for it.

    `peak_teraflops` maps each number format (fp32, tf32, bf16, fp16) to the peak rate for dense (not sparse)
    operations, in tera floating-point operations per second.
    """

    name: str
    peak_teraflops: Mapping[str, float]
    source: str
    device_name: str | None = None
    """The part of the driver's device name that identifies the model. None: the same as `name`."""


@dataclass(frozen=True)
class Family:
    """An instance family, such as `p5en`.

    Attributes:
        quotas: Codes of the family's vCPU quotas, keyed by `on_demand` and `spot`.
        nvlinks: Number of NVLinks from each GPU to the NVSwitch chips that connect all GPUs. 0 means that the GPUs
            communicate over PCIe.
        first_efa_card: Index of the first network card with EFA. Card 0 may carry only IP traffic.
        efa_card_step: Difference between the indexes of consecutive EFA cards.
    """

    name: str
    quotas: Mapping[str, str] = field(default_factory=dict)
    nvlinks: int = 0
    first_efa_card: int = 0
    efa_card_step: int = 1


@dataclass(frozen=True)
class InstanceType:
    """One instance type, as returned by DescribeInstanceTypes, with its family.

    Attributes:
        efa_interfaces: Maximum number of EFA interfaces.
        ebs_mbps: Baseline EBS bandwidth in Mbit/s.
        ebs_optimized: "default" for types whose EBS bandwidth is always dedicated.
        nvme_gb: Total capacity of the local disks in GB.
        network_gbps: Total bandwidth of the EFA adapters in Gbit/s per direction, or None if the GPUs cannot use all
            of it.
    """

    name: str
    family: Family
    vcpus: int
    memory_gib: int
    gpus: int
    gpu: str | None
    gpu_memory_gib: float
    nvme_gb: int
    nvme_disks: int
    network_cards: int
    efa_interfaces: int
    ebs_mbps: int
    ebs_optimized: str
    nitro: bool
    cluster_placement: bool
    network_gbps: int | None = None

    @property
    def gib_per_gpu(self) -> float:
        """The memory of one GPU in GiB, or 0 for types without GPUs."""
        return self.gpu_memory_gib / self.gpus if self.gpus else 0.0

    @property
    def nvlinks(self) -> int:
        """The number of NVLinks from each GPU to the switches, or 0 for types without switches."""
        return self.family.nvlinks if self.gpus > 1 else 0

    @property
    def efa_cards(self) -> range:
        """The indexes of the network cards that have an EFA interface."""
        first, step = self.family.first_efa_card, self.family.efa_card_step
        return range(first, first + step * self.efa_interfaces, step)

    def quota_code(self, *, spot: bool) -> str | None:
        """Return the code of the type's vCPU quota, or None if unknown."""
        return self.family.quotas.get("spot" if spot else "on_demand")

    @property
    def facts(self) -> dict[str, Any]:
        """The type's entry in the file."""
        known = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("name", "family")}
        return {key: value for key, value in known.items() if key != "network_gbps" or value is not None}


@dataclass(frozen=True)
class Hardware:
    """All known GPU models, families and types. `facts` is the source of the types."""

    facts: Source
    gpus: Mapping[str, GpuModel]
    families: Mapping[str, Family]
    types: Mapping[str, InstanceType]


def read_hardware(path: Path = HARDWARE_PATH) -> Hardware:
    """Read the hardware table from a file."""
    loaded = json.loads(path.read_text(encoding="utf-8"))
    families = {
        name: Family(name, **{**row, "quotas": loaded["quotas"][row["quotas"]]})
        for name, row in loaded["families"].items()
    }
    types = {}
    for name, row in loaded["types"].items():
        family = name.split(".", 1)[0]
        types[name] = InstanceType(name, families.get(family, Family(family)), **row)
    return Hardware(
        facts=Source(date.fromisoformat(loaded["facts"]["date"]), loaded["facts"]["source"]),
        gpus={name: GpuModel(name, **row) for name, row in loaded["gpus"].items()},
        families=families,
        types=types,
    )


@cache
def hardware() -> Hardware:
    """Return the hardware table that ships with the project."""
    return read_hardware()


def instance_type(name: str) -> InstanceType | None:
    """Return the instance type with the given name, or None if the table does not contain it."""
    return hardware().types.get(name)


def gpu_model(device_name: str) -> GpuModel | None:
    """Return the GPU model for the device name that the driver reports, or None if the table does not contain it."""
    found = [model for model in hardware().gpus.values() if (model.device_name or model.name) in device_name]
    return max(found, key=lambda model: len(model.name), default=None)
