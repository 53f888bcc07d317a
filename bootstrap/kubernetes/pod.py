"""The pod in which the node program runs. The environment replaces the instance metadata service.

The variables come from the downward API and from the job controller, which sets JOB_COMPLETION_INDEX.
Sources (2026-11): https://kubernetes.io/docs/concepts/workloads/pods/downward-api/ and
https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode
"""

from __future__ import annotations

import ipaddress
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bootstrap.context import Context, PodSettings, make_context
from bootstrap.documents import NodeDocument
from bootstrap.errors import BootstrapError
from bootstrap.imds import InstanceMetadata
from bootstrap.layout import Layout
from bootstrap.system import System

logger = logging.getLogger(__name__)

DOCUMENTS = Path("/etc/trainstack")
"""Mount point of the ConfigMap with the documents."""
NODE_FILE, RUN_FILE = "node.json", "run.json"
NAME, UID, ADDRESS, INDEX, GRACE, INSTANCE_TYPE, MARKET, DOCUMENTS_VARIABLE = (
    "TRAINSTACK_POD_NAME",
    "TRAINSTACK_POD_UID",
    "TRAINSTACK_POD_ADDRESS",
    "JOB_COMPLETION_INDEX",
    "TRAINSTACK_GRACE_SECONDS",
    "TRAINSTACK_INSTANCE_TYPE",
    "TRAINSTACK_MARKET",
    "TRAINSTACK_DOCUMENTS",
)
REPORT_SECONDS = 15.0
"""Part of the grace period for the last records and results: `supervise.actor` uploads results for up to 10 s."""
MIN_GRACE_SECONDS = 20.0
_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True)
class Pod:
    """This pod.

    Attributes:
        name: Name of the pod.
        uid: UID of the pod, which differs from the UID of the pod that it replaces.
        index: Completion index. The pod that replaces this one has the same index.
        address: IP address.
        grace_seconds: Termination grace period.
        instance_type: Instance type of the machine; empty if the cluster chooses it.
        market: "spot" or "on-demand".
        documents: Folder with the documents.
    """

    name: str
    uid: str
    index: int
    address: str
    grace_seconds: float
    instance_type: str
    market: str
    documents: Path

    @property
    def instance_id(self) -> str:
        """Name of this node in the control records. It matches `membership.records.INSTANCE_ID`."""
        return instance_id(self.index, self.uid)


def instance_id(index: int, uid: str) -> str:
    """Return the name of a pod in the control records."""
    return f"i-{index}-{uid.replace('-', '')}"


def read_pod(environment: Mapping[str, str]) -> Pod:
    """Read the pod from the environment.

    Raises:
        BootstrapError: Variables are missing or invalid. The message lists all of them.
    """
    problems = list(_problems(environment))
    if problems:
        raise BootstrapError("; ".join(problems) + "; use the manifests of `trainstack kubernetes manifests`")
    return Pod(
        name=environment[NAME],
        uid=environment[UID],
        index=int(environment[INDEX]),
        address=environment[ADDRESS],
        grace_seconds=float(environment[GRACE]),
        instance_type=environment.get(INSTANCE_TYPE, ""),
        market=environment.get(MARKET, "on-demand"),
        documents=Path(environment.get(DOCUMENTS_VARIABLE) or DOCUMENTS),
    )


def _problems(environment: Mapping[str, str]) -> Iterator[str]:
    missing = [name for name in (NAME, UID, ADDRESS, INDEX, GRACE) if not environment.get(name)]
    if missing:
        yield f"{', '.join(missing)}: not set"
    if (uid := environment.get(UID)) and _UID.fullmatch(uid) is None:
        yield f"{UID}: {uid[:80]!r}: must be the UID of a pod"
    if (index := environment.get(INDEX)) and re.fullmatch(r"[0-9]{1,5}", index) is None:
        yield f"{INDEX}: {index[:80]!r}: must be a completion index"
    if address := environment.get(ADDRESS):
        try:
            ipaddress.IPv4Address(address)
        except ValueError:
            yield f"{ADDRESS}: {address[:80]!r}: must be an IPv4 address"
    if (grace := environment.get(GRACE)) and not _is_long(grace):
        yield f"{GRACE}: {grace[:80]!r}: must be at least {MIN_GRACE_SECONDS:.0f} seconds"


def _is_long(grace: str) -> bool:
    return re.fullmatch(r"[0-9]{1,6}", grace) is not None and float(grace) >= MIN_GRACE_SECONDS


class PodMetadata(InstanceMetadata):
    """The instance metadata of a pod: its identity. There are no notices, because the kubelet sends SIGTERM."""

    def __init__(self, system: System, pod: Pod) -> None:
        super().__init__(system)
        self._values = {
            "meta-data/instance-id": pod.instance_id,
            "meta-data/instance-type": pod.instance_type or "unknown",
            "meta-data/placement/availability-zone": "unknown",
            "meta-data/local-ipv4": pod.address,
            "meta-data/instance-life-cycle": pod.market,
        }

    @property
    def is_of_this_machine(self) -> bool:
        """False, because the machine belongs to the cluster: the node program must not change its disks or driver."""
        return False

    def _read(self, path: str) -> str | None:
        return self._values.get(path)


class PodSystem(System):
    """The machine on which a pod runs. A pod exits instead of shutting the machine down."""

    def shut_down(self) -> None:
        """Log that the pod exits."""
        logger.info("the pod exits")


def pod_context(pod: Pod, system: System, layout: Layout, node: NodeDocument) -> Context:
    """Return the context for a node document in a pod."""
    context = make_context(system, layout, node)
    context.metadata = PodMetadata(system, pod)
    context.pod = PodSettings(pod.documents / RUN_FILE, pod.grace_seconds - REPORT_SECONDS)
    return context
