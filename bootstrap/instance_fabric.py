"""What connects the GPUs of the instance types that can have EFA: adapters, NVLink, and how fast they are together.

The numbers of adapters are those of `stacks/instance_types.json`, which a node does not carry; a test compares the two.
Sources (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html (adapters),
https://docs.aws.amazon.com/ec2/latest/instancetypes/ac.html (network bandwidth),
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/install-nvidia-driver.html (which types need the fabric manager),
https://www.nvidia.com/en-us/data-center/nvlink/ (12 links a GPU on A100, 18 on Hopper and Blackwell).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional


@dataclass(frozen=True)
class InstanceFabric:
    """What connects the GPUs of one instance type.

    Attributes:
        efa_adapters: that a machine of the type has when all are asked for, as the launch template does.
        nvlinks: of each GPU to the switches (NVSwitch) that connect them all; 0: none, GPUs meet over PCIe.
        network_gbps: of all adapters together, Gbit/s each way; None where GPUs cannot use it all anyway.
    """

    efa_adapters: int
    nvlinks: int = 0
    network_gbps: Optional[int] = None  # noqa: UP045 the node's interpreter may be Python 3.9

    @property
    def has_nvswitch(self) -> bool:
        """Whether switches connect the GPUs, which nvidia-fabricmanager must set up."""
        return self.nvlinks > 0


_ONE = InstanceFabric(1)
FABRICS = {
    **{f"g4dn.{size}xlarge": _ONE for size in (8, 12, 16)},
    **{f"g5.{size}xlarge": _ONE for size in (8, 12, 16, 24, 48)},
    **{f"g6.{size}xlarge": _ONE for size in (8, 12, 16, 24, 48)},
    "gr6.8xlarge": _ONE,
    **{f"g6e.{size}xlarge": _ONE for size in (8, 12, 16)},
    "g6e.24xlarge": InstanceFabric(2),
    "g6e.48xlarge": InstanceFabric(4),
    "p4d.24xlarge": InstanceFabric(4, nvlinks=12, network_gbps=400),
    "p4de.24xlarge": InstanceFabric(4, nvlinks=12, network_gbps=400),
    "p5.4xlarge": InstanceFabric(1, network_gbps=100),
    "p5.48xlarge": InstanceFabric(32, nvlinks=18, network_gbps=3200),
    "p5e.48xlarge": InstanceFabric(32, nvlinks=18, network_gbps=3200),
    "p5en.48xlarge": InstanceFabric(16, nvlinks=18, network_gbps=3200),
    "p6-b200.48xlarge": InstanceFabric(8, nvlinks=18, network_gbps=3200),
    "p6-b300.48xlarge": InstanceFabric(16, nvlinks=18, network_gbps=6400),
}
"""By instance type; one that is not here is asked for an EFA adapter at least, and for no NVLink."""
UNKNOWN = _ONE


def fabric_of(instance_type: str) -> InstanceFabric:
    """Return what connects the GPUs of a type."""
    return FABRICS.get(instance_type, UNKNOWN)
