"""What libfabric, NCCL and torch.distributed are told by environment variables, and what they are not told, and why.

Few are left to set: aws-ofi-nccl, which every EFA image has, knows the instance families itself, and sets what
each needs before NCCL starts. What guides and old scripts set besides is in `NOT_SET`, so that nobody brings it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PLUGIN = "libnccl-net.so"
"""The file that NCCL loads by this name, to reach EFA through libfabric."""
# Where the EFA installer (Ubuntu, Amazon Linux) and older deep learning images put the plugin.
# Source (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start-nccl.html
PLUGIN_DIRECTORIES = (
    "/opt/amazon/ofi-nccl/lib",
    "/opt/amazon/ofi-nccl/lib64",
    "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu",
    "/opt/amazon/aws-ofi-nccl/lib",
    "/opt/aws-ofi-nccl/lib",
)
# In containers the installer lays down this name alone, which NCCL only loads when it is told `ofi`.
# Source (2026-11): https://github.com/aws/aws-ofi-nccl/blob/master/src/Makefile.am
NAMED_PLUGIN, PLUGIN_NAME = "libnccl-net-ofi.so", "ofi"
RECORDS_PREFIX, PIPE_PREFIX = "collectives-rank-", "collectives-pipe-"
"""In a run directory, before the number of the rank: its records of collectives, and the pipe that asks for them."""
_PLUGIN_SOURCE = "https://github.com/aws/aws-ofi-nccl/blob/master/src/platform-aws.cpp"
_NCCL_SOURCE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"


@dataclass(frozen=True)
class Variable:
    """One environment variable of the trainers, with the reason for it and where that is written (read 2026-11)."""

    name: str
    value: str
    reason: str
    source: str


ALWAYS = (
    Variable(
        "NCCL_DEBUG",
        "WARN",
        "an error of NCCL says why only from this level on",
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/logging.html",
    ),
    Variable(
        "TORCH_NCCL_DUMP_ON_TIMEOUT",
        "1",
        "a hanging collective leaves what each rank was at",
        "https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html",
    ),
)
WITH_EFA = (
    Variable("FI_PROVIDER", "efa", "libfabric offers its own TCP otherwise where EFA does not answer", _PLUGIN_SOURCE),
    # Since 1.13 the plugin is called Libfabric, and answers to its old name too, so that one value fits every image.
    Variable(
        "NCCL_NET",
        "AWS Libfabric",
        "NCCL fails where it would go on over TCP without a word",
        "https://github.com/aws/aws-ofi-nccl/blob/master/src/nccl_ofi_interface_nvidia.cpp; " + _NCCL_SOURCE,
    ),
)
_BY_PLUGIN = "aws-ofi-nccl sets it, for each instance family to what AWS measured"
NOT_SET: Mapping[str, str] = {
    "FI_EFA_USE_DEVICE_RDMA": "libfabric 1.18 and newer see it from the device; 1 aborts on g4dn and g5",
    "FI_EFA_FORK_SAFE": "aws-ofi-nccl sets it; without effect from Linux 5.13 on",
    "FI_EFA_USE_HUGE_PAGE": "off already wherever FI_EFA_FORK_SAFE is set",
    "RDMAV_FORK_SAFE": "belongs to rdma-core before 38; breaks programs on newer kernels",
    "NCCL_TUNER_PLUGIN": "aws-ofi-nccl sets it to itself, in the form that the NCCL at hand accepts",
    "NCCL_PROTO": "the tuner of aws-ofi-nccl chooses; Simple for all was for plugins before 1.6",
    "NCCL_ALGO": "the tuner of aws-ofi-nccl chooses",
    "NCCL_CROSS_NIC": "2, the default, keeps to one card where it can",
    "NCCL_BUFFSIZE": _BY_PLUGIN,
    "NCCL_P2P_NET_CHUNKSIZE": _BY_PLUGIN,
    "NCCL_NVLS_CHUNKSIZE": _BY_PLUGIN,
    "NCCL_NVLSTREE_MAX_CHUNKSIZE": _BY_PLUGIN,
    "NCCL_NET_FORCE_FLUSH": _BY_PLUGIN,
    "NCCL_NETDEVS_POLICY": _BY_PLUGIN,
    "NCCL_TOPO_FILE": _BY_PLUGIN,
    "NCCL_MIN_NCHANNELS": "more channels than NCCL takes cut messages too small for EFA",
    "NCCL_SOCKET_NTHREADS": "of TCP, which carries only the start-up",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3, the default, ends the process, which the supervisor waits for",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "the supervisor watches the trainers itself",
    "TORCH_FR_BUFFER_SIZE": "2000 collectives are kept by default",
}
"""Variables that guides set, and the reason why nobody should (sources as above; read 2026-11)."""


def collective_variables(*, fabric: str, run_directory: Path, interface: str | None) -> dict[str, str]:
    """Return the variables for the trainers of one node; those that the node has already are left as they are.

    Args:
        fabric: of the node document, `efa` or `tcp`.
        run_directory: where a hanging rank leaves the record of its collectives, and is asked for it.
        interface: the network interface of the node's address, None when it is not known.
    """
    variables = {each.name: each.value for each in (*ALWAYS, *(WITH_EFA if fabric == "efa" else ()))}
    variables["TORCH_FR_DUMP_TEMP_FILE"] = str(run_directory / RECORDS_PREFIX)
    variables["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] = str(run_directory / PIPE_PREFIX)
    if interface is not None:
        variables["GLOO_SOCKET_IFNAME"] = interface
        # Without the sign NCCL takes each interface whose name begins so.
        variables["NCCL_SOCKET_IFNAME"] = f"={interface}"
    return variables


def library_path(before: str, directory: str) -> str:
    """Return LD_LIBRARY_PATH with the plugin's directory at its end, where the image's own choice goes before it."""
    folders = [folder for folder in before.split(":") if folder]
    return ":".join(dict.fromkeys([*folders, directory]))


def plugin_variables(before: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which NCCL finds its plugin for EFA, given those that are set `before`."""
    directory = plugin_directory()
    if directory is None:
        return {}
    variables = {"LD_LIBRARY_PATH": library_path(before.get("LD_LIBRARY_PATH", ""), directory)}
    if not Path(directory, PLUGIN).exists():
        variables["NCCL_NET_PLUGIN"] = before.get("NCCL_NET_PLUGIN", PLUGIN_NAME)
    return variables


def plugin_directory() -> str | None:
    """Return the folder in which an image keeps NCCL's plugin for EFA, None when it is in none of the usual ones."""
    for name in (PLUGIN, NAMED_PLUGIN):
        for folder in PLUGIN_DIRECTORIES:
            if Path(folder, name).exists():
                return folder
    return None
