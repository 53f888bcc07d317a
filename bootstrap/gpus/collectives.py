"""Environment variables for libfabric, NCCL and torch.distributed, with the reason for setting or omitting each.

Few variables need to be set because aws-ofi-nccl, which every EFA image contains, detects the instance family and
configures NCCL for it. `NOT_SET` lists variables that guides and old scripts set, with the reasons not to set them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PLUGIN = "libnccl-net.so"
"""File name of NCCL's network plugin for EFA through libfabric."""
# Directories that may contain the plugin, used by the EFA installer (Ubuntu, Amazon Linux) and older deep learning
# images.
# Source (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start-nccl.html
PLUGIN_DIRECTORIES = (
    "/opt/amazon/ofi-nccl/lib",
    "/opt/amazon/ofi-nccl/lib64",
    "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu",
    "/opt/amazon/aws-ofi-nccl/lib",
    "/opt/aws-ofi-nccl/lib",
)
# In containers, the installer creates only this file. NCCL loads it if NCCL_NET_PLUGIN is `ofi`.
# Source (2026-11): https://github.com/aws/aws-ofi-nccl/blob/master/src/Makefile.am
NAMED_PLUGIN, PLUGIN_NAME = "libnccl-net-ofi.so", "ofi"
EFA_INFO = "/opt/amazon/efa/bin/fi_info"
"""libfabric's program, as the EFA installer installs it. Source (2026-11): see PLUGIN_DIRECTORIES."""
RECORDS_PREFIX, PIPE_PREFIX = "collectives-rank-", "collectives-pipe-"
"""File name prefixes in a run directory, before the rank: the flight-recorder file and the pipe for dump requests."""
_DOMAIN = re.compile(r"^\s+domain: (\S+)-rdm$", re.MULTILINE)
_PLUGIN_SOURCE = "https://github.com/aws/aws-ofi-nccl/blob/master/src/platform-aws.cpp"
_NCCL_SOURCE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"


@dataclass(frozen=True)
class Variable:
    """An environment variable for the trainers, with its reason and source (read 2026-11)."""

    name: str
    value: str
    reason: str
    source: str


ALWAYS = (
    Variable(
        "NCCL_DEBUG",
        "WARN",
        "at lower levels, NCCL does not report the cause of an error",
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/logging.html",
    ),
    Variable(
        "TORCH_NCCL_DUMP_ON_TIMEOUT",
        "1",
        "when a collective hangs, each rank's state is dumped",
        "https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html",
    ),
)
WITH_EFA = (
    Variable("FI_PROVIDER", "efa", "otherwise, libfabric falls back to TCP if EFA is unavailable", _PLUGIN_SOURCE),
    # The plugin has been called Libfabric since 1.13 and still accepts its old name, so one value works for all images.
    Variable(
        "NCCL_NET",
        "AWS Libfabric",
        "NCCL fails instead of silently falling back to TCP",
        "https://github.com/aws/aws-ofi-nccl/blob/master/src/nccl_ofi_interface_nvidia.cpp; " + _NCCL_SOURCE,
    ),
)
_BY_PLUGIN = "aws-ofi-nccl sets it for each instance family, to values that AWS measured"
NOT_SET: Mapping[str, str] = {
    "FI_EFA_USE_DEVICE_RDMA": "libfabric 1.18 and newer detect it from the device; 1 aborts on g4dn and g5",
    "FI_EFA_FORK_SAFE": "aws-ofi-nccl sets it; no effect since Linux 5.13",
    "FI_EFA_USE_HUGE_PAGE": "already off if FI_EFA_FORK_SAFE is set",
    "RDMAV_FORK_SAFE": "for rdma-core before 38; breaks programs on newer kernels",
    "NCCL_TUNER_PLUGIN": "aws-ofi-nccl sets it to its own library, in the form that the installed NCCL expects",
    "NCCL_PROTO": "the aws-ofi-nccl tuner chooses; the fixed value Simple was meant for plugins before 1.6",
    "NCCL_ALGO": "the aws-ofi-nccl tuner chooses",
    "NCCL_CROSS_NIC": "the default, 2, stays on one network card if possible",
    "NCCL_BUFFSIZE": _BY_PLUGIN,
    "NCCL_P2P_NET_CHUNKSIZE": _BY_PLUGIN,
    "NCCL_NVLS_CHUNKSIZE": _BY_PLUGIN,
    "NCCL_NVLSTREE_MAX_CHUNKSIZE": _BY_PLUGIN,
    "NCCL_NET_FORCE_FLUSH": _BY_PLUGIN,
    "NCCL_NETDEVS_POLICY": _BY_PLUGIN,
    "NCCL_TOPO_FILE": _BY_PLUGIN,
    "NCCL_MIN_NCHANNELS": "with more channels than NCCL chooses, messages are too small for EFA",
    "NCCL_SOCKET_NTHREADS": "applies to TCP, which is used only during start-up",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "the default, 3, ends the process, and the supervisor handles the exit",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "the supervisor monitors the trainers",
    "TORCH_FR_BUFFER_SIZE": "the default records 2000 collectives",
}
"""Variables that guides set, and the reason not to set each (same sources, read 2026-11)."""


def collective_variables(*, fabric: str, run_directory: Path, interface: str | None) -> dict[str, str]:
    """Return the variables for a node's trainers. The caller keeps variables that are already set.

    Args:
        fabric: The node document's fabric, `efa` or `tcp`.
        run_directory: Directory for flight-recorder files and pipes.
        interface: Network interface of the node's address, or None if unknown.
    """
    variables = {each.name: each.value for each in (*ALWAYS, *(WITH_EFA if fabric == "efa" else ()))}
    variables["TORCH_FR_DUMP_TEMP_FILE"] = str(run_directory / RECORDS_PREFIX)
    variables["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] = str(run_directory / PIPE_PREFIX)
    if interface is not None:
        variables["GLOO_SOCKET_IFNAME"] = interface
        # The leading = makes NCCL match the exact name instead of a prefix.
        variables["NCCL_SOCKET_IFNAME"] = f"={interface}"
    return variables


def efa_domains(text: str) -> list[str]:
    """Return the adapters in the output of `fi_info -p efa -t FI_EP_RDM`. Newer versions list each one twice."""
    return sorted(set(_DOMAIN.findall(text)))


def library_path(before: str, directory: str) -> str:
    """Return LD_LIBRARY_PATH with the plugin's directory appended, so that the image's own directories come first."""
    directories = [each for each in before.split(":") if each]
    return ":".join(dict.fromkeys([*directories, directory]))


def plugin_variables(before: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that NCCL uses to find its EFA plugin. `before` is the current environment."""
    directory = plugin_directory()
    if directory is None:
        return {}
    variables = {"LD_LIBRARY_PATH": library_path(before.get("LD_LIBRARY_PATH", ""), directory)}
    if not Path(directory, PLUGIN).exists():
        variables["NCCL_NET_PLUGIN"] = before.get("NCCL_NET_PLUGIN", PLUGIN_NAME)
    return variables


def plugin_directory() -> str | None:
    """Return the directory of NCCL's EFA plugin, or None if no known directory contains it."""
    for name in (PLUGIN, NAMED_PLUGIN):
        for directory in PLUGIN_DIRECTORIES:
            if Path(directory, name).exists():
                return directory
    return None
