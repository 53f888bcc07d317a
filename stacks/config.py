"""DeploymentConfig: every key of a deployment YAML, with unit, reason of the default, and what an edit does on deploy.

`python -m stacks check FILE` validates one; `load` is what the CDK app calls. Rules across sections are in
`stacks.validators`.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from training.config import TrainingConfig

Edit = Literal["nothing", "restarts the trainer", "replaces nodes", "touches data", "in place", "replaces the network"]
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,23}$")]


def setting(description: str, *, edit: Edit, default: Any = ..., **rules: Any) -> Any:
    """Declare a field with what it means and what an edit of it does to a deployed stack."""
    return Field(default, description=description, json_schema_extra={"edit": edit}, **rules)


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class NetworkConfig(_Section):
    """The private network of the nodes."""

    cidr: str = setting(
        "Address range of the VPC; a /16 leaves each zone 4,091 addresses.",
        edit="replaces the network",
        default="10.64.0.0/16",
    )
    zones: list[Annotated[str, Field(pattern=r"^[a-z]$")]] = setting(
        "Letters of the availability zones, one subnet each; three, since spot capacity differs by zone.",
        edit="replaces the network",
        default=["a", "b", "c"],
        min_length=1,
        max_length=6,
    )

    @field_validator("cidr")
    @classmethod
    def _cidr_is_a_vpc_range(cls, text: str) -> str:
        network = ipaddress.ip_network(text)
        # Source: https://docs.aws.amazon.com/vpc/latest/userguide/vpc-cidr-blocks.html (2026-11).
        if network.version != 4 or not 16 <= network.prefixlen <= 16:
            raise ValueError("must be an IPv4 range of size /16, such as 10.64.0.0/16")
        return text

    @field_validator("zones")
    @classmethod
    def _zones_are_distinct(cls, zones: list[str]) -> list[str]:
        if len(set(zones)) != len(zones):
            raise ValueError("names a zone twice; each zone gets one subnet")
        return zones


class StorageConfig(_Section):
    """Buckets and what happens to them."""

    deletion: Literal["retain", "destroy"] = setting(
        "Whether data goes with the stack; destroy also needs `-c allow-destroy=true`: one slip loses nothing.",
        edit="touches data",
        default="retain",
    )


class CapacityConfig(_Section):
    """How many machines of which kind, bought how."""

    backend: Literal["auto_scaling_group"] = setting(
        "What holds the machines.", edit="replaces nodes", default="auto_scaling_group"
    )
    instance_types: list[str] = setting(
        "Types in order of preference. More types mean more spot pools, so fewer interruptions; all of one GPU kind.",
        edit="replaces nodes",
        min_length=1,
        max_length=40,
    )
    nodes: int = setting("Machines that the run trains on.", edit="restarts the trainer", default=1, ge=1, le=1000)
    min_nodes: int | None = setting(
        "Smallest gang that may train when the rest does not come; null: all of `nodes`.",
        edit="restarts the trainer",
        default=None,
        ge=1,
    )
    market: Literal["spot", "on_demand"] = setting(
        "spot: up to 90 % cheaper, with two minutes' notice before AWS takes a machine back.",
        edit="replaces nodes",
        default="spot",
    )
    on_demand_base: int = setting(
        "Machines bought on demand before spot ones; 0: a run survives interruptions, so none is needed.",
        edit="replaces nodes",
        default=0,
        ge=0,
    )
    allocation_strategy: Literal["price-capacity-optimized", "capacity-optimized", "lowest-price"] = setting(
        "How AWS picks among spot pools; price-capacity-optimized weighs price against interruptions.",
        edit="in place",
        default="price-capacity-optimized",
    )
    max_price_usd: float | None = setting(
        "Most that is paid per spot machine and hour, USD; null: up to the on-demand price, which AWS advises.",
        edit="in place",
        default=None,
        gt=0,
    )
    placement: Literal["cluster", "none"] = setting(
        "cluster: machines close together in one zone, for fast networks; none: any zone, more capacity.",
        edit="replaces nodes",
        default="none",
    )
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


class RootVolumeConfig(_Section):
    """The root volume of a node (gp3, encrypted)."""

    gib: int = setting(
        "Size, GiB; the deep learning image needs 75.", edit="replaces nodes", default=100, ge=8, le=16384
    )
    iops: int = setting("Operations a second; 3000 are free.", edit="replaces nodes", default=3000, ge=3000, le=80000)
    throughput: int = setting("MiB/s; 125 are free.", edit="replaces nodes", default=125, ge=125, le=2000)


class PythonConfig(_Section):
    """The Python of the machine image."""

    interpreter: str = setting(
        "Name on PATH or absolute path of a Python with torch; the default is that of AWS's PyTorch image.",
        edit="replaces nodes",
        default="/opt/pytorch/bin/python3",
        pattern=r"^[A-Za-z0-9_./-]+$",
    )
    packages: list[str] = setting(
        "Importable names that the image must have; checked at boot, so that a missing one is named.",
        edit="replaces nodes",
        default=["torch", "numpy", "boto3", "pydantic", "blake3", "zstandard"],
    )


class SuperviseConfig(_Section):
    """How closely a node watches itself and its peers."""

    poll_seconds: float = setting("Between looks at the metadata service.", edit="replaces nodes", default=2.0, ge=0.05)
    heartbeat_seconds: float = setting("Between heart-beats.", edit="replaces nodes", default=2.0, ge=0.1)
    heartbeat_timeout_seconds: float = setting(
        "Silence after which a peer counts as lost.", edit="replaces nodes", default=10.0, ge=0.5
    )


class NodeConfig(_Section):
    """The machine image and what is on it."""

    ami: str = setting(
        "AMI id, or the name of a public SSM parameter that holds one: read at each deploy, so that a newer image "
        "replaces nodes; an id pins it.",
        edit="replaces nodes",
        default="/aws/service/deeplearning/ami/x86_64/oss-nvidia-driver-gpu-pytorch-2.13-amazon-linux-2023/latest/ami-id",
        pattern=r"^(ami-[0-9a-f]{8,17}|/[A-Za-z0-9_./-]+)$",
    )
    root_device: str = setting(
        "Device name of the image's root volume.", edit="replaces nodes", default="/dev/xvda", pattern="^/dev/"
    )
    root_volume: RootVolumeConfig = RootVolumeConfig()
    python: PythonConfig = PythonConfig()
    supervise: SuperviseConfig = SuperviseConfig()
    boot_timeout_seconds: int = setting(
        "Longest boot; a machine that is not ready by then is given back.",
        edit="replaces nodes",
        default=900,
        ge=30,
    )


class RunConfig(_Section):
    """What is trained."""

    run: str = setting(
        "Name of the run; its checkpoints lie under it, so another name starts from scratch.",
        edit="restarts the trainer",
        default="run-1",
        pattern=r"^[a-z0-9-]{1,40}$",
    )
    dataset: str = setting(
        "Name under datasets/ in the dataset bucket, as `python -m training tokenize --name` made it.",
        edit="restarts the trainer",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
    )
    processes_per_node: int | None = setting(
        "Processes a machine; null: one per GPU, one on a machine without.",
        edit="restarts the trainer",
        default=None,
        ge=1,
        le=64,
    )
    code: str | None = setting(
        "Folder of your own code, shipped beside the trainer; null: none.",
        edit="restarts the trainer",
        default=None,
    )
    config: TrainingConfig = TrainingConfig()


class ObservabilityConfig(_Section):
    """Logs."""

    log_retention_days: Literal[1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365] = setting(
        "Days that logs are kept; a month, to look back at a run that ended badly.", edit="in place", default=30
    )


class DeploymentConfig(_Section):
    """One deployment: a YAML file."""

    name: Name = setting(
        "Name of the deployment; part of stack names, log groups and parameters.", edit="replaces the network"
    )
    region: str = setting(
        "AWS region.", edit="replaces the network", default="us-east-1", pattern=r"^[a-z]{2}(-[a-z]+)+-\d$"
    )
    account: str | None = setting(
        "Account id; null: that of the credentials.", edit="replaces the network", default=None, pattern=r"^\d{12}$"
    )
    tags: dict[str, str] = setting("Tags on every resource, for cost reports.", edit="replaces nodes", default={})
    network: NetworkConfig = NetworkConfig()
    storage: StorageConfig = StorageConfig()
    capacity: CapacityConfig
    node: NodeConfig = NodeConfig()
    training: RunConfig
    observability: ObservabilityConfig = ObservabilityConfig()

    @property
    def run_parameter(self) -> str:
        """Name of the SSM parameter that holds the run document."""
        return f"/trainstack/{self.name}/run"

    @property
    def log_group(self) -> str:
        """Name of the log group of the nodes' events."""
        return f"/trainstack/{self.name}"

    @property
    def group_name(self) -> str:
        """Name of the fleet's group: fixed, so that run controller and node role can name it without a cycle."""
        return f"trainstack-{self.name}"


AMI_ID = re.compile(r"^ami-")


def load(path: Path) -> DeploymentConfig:
    """Read and validate a deployment file.

    Raises:
        ConfigError: With every problem: YAML, keys, types, and rules across sections.
    """
    from stacks.validators import check
    from stacks.yaml_source import read_yaml, validate

    data, doubled = read_yaml(path)
    config = validate(DeploymentConfig, data, str(path), doubled)
    check(config, str(path))
    return config
