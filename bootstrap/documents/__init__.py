"""The node document and the run document: types, strict decoding and digests.

Standard library only, because the CDK app also imports this package.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from bootstrap.documents.decoding import (
    AtLeast,
    Matches,
    canonical_digest,
    checked,
    decode_document,
    parse_text,
    to_plain,
)
from bootstrap.documents.supervisor_limits import SuperviseTimings, heartbeat_problem
from bootstrap.errors import Problem

TERMINATING_HOOK = "trainstack-terminating"
"""Name of the Auto Scaling lifecycle hook, which the fleet defines and a leaving node completes."""
SNAPSHOTS_TAG = "trainstack:snapshots"
"""Tag on the checkpoint volume and all its snapshots (from the schedule or nodes). Its value is the deployment name."""
COPY_TAG = "trainstack:copy-of"
"""Tag on copies of the checkpoint volume. Its value is the volume's id. The schedule does not apply to these copies."""
TAKER_TAG = "trainstack:taken-by"
TAKER = "supervisor"
"""Tag on snapshots that nodes create, and its value. Nodes may not delete other snapshots."""

_Sha256 = Annotated[str, Matches(r"[0-9a-f]{64}", "must be 64 lower-case hexadecimal digits")]
_Name = Annotated[str, Matches(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", "must be 1 to 64 letters, digits, '.', '_' and '-'")]
_RunName = Annotated[str, Matches(r"[a-z0-9-]{1,40}", "must be 1 to 40 lower-case letters, digits and '-'")]
_RoleId = Annotated[str, Matches(r"[\w-]{1,128}", "must be the id of an IAM role, such as AROA0123456789EXAMPLE")]
_VolumeId = Annotated[str, Matches(r"vol-[0-9a-f]{8,17}", "must be a volume id, such as vol-0123456789abcdef0")]
_AbsolutePath = Annotated[
    str, Matches(r"/[A-Za-z0-9_./-]{1,100}", "must be an absolute path of letters, digits, '.', '_' and '-'")
]
_Importable = Annotated[
    str,
    Matches(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", "must be an importable name such as torch or torch.distributed"),
]
_Function = Annotated[
    str,
    Matches(
        r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*",
        "must be a module and a function, such as package.module:function",
    ),
]
_Prefix = Annotated[
    str,
    Matches(
        r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*",
        "must be names that consist of letters, digits, '.', '_' and '-', separated by '/'",
    ),
]


@dataclass(frozen=True)
class Bundle:
    """A zip archive in S3, identified by the SHA-256 of its bytes."""

    bucket: str
    key: str
    sha256: _Sha256


@dataclass(frozen=True)
class PythonEnvironment:
    """The training interpreter.

    Attributes:
        interpreter: Name on PATH, or absolute path, of a Python interpreter with torch.
        packages: Importable names that must be installed.
    """

    interpreter: str
    packages: tuple[_Importable, ...]


@dataclass(frozen=True)
class Volume:
    """An EBS volume that the node mounts.

    Attributes:
        kind: Purpose of the volume.
        device: Device name of the attachment.
        mount: Mount point.
        read_only: Whether to mount it read-only.
        warm: Whether to read each file in the dataset once. The first files are read before training starts.
        volume_id: Id of an existing volume, which the node attaches if it runs in `availability_zone`. A node in
            another zone runs without the volume or with a copy (see below). If None, the launch template creates the
            volume.
        availability_zone: Zone of `volume_id`.
        initialization: EBS initialization that replaces `warm`. If it is not enabled for the volume, the node reads the
            files itself.
        warm_limit_mib_per_second: Maximum read rate of `warm`.
        restored_elsewhere: Whether nodes in other zones create a copy from the volume's newest snapshot.
    """

    kind: Literal["dataset", "checkpoint", "shared"]
    device: _AbsolutePath
    mount: _AbsolutePath
    read_only: bool
    warm: bool
    volume_id: _VolumeId | None = None
    availability_zone: str | None = None
    initialization: Literal["provisioned_rate", "fast_snapshot_restore"] | None = None
    warm_limit_mib_per_second: Annotated[int, AtLeast(1)] | None = None
    restored_elsewhere: bool = False


@dataclass(frozen=True)
class Lustre:
    """An FSx for Lustre file system that the node mounts.

    Attributes:
        dns_name: DNS name of the file system.
        mount_name: Its mount name.
        mount: Mount point.
        options: Options of mount(8), separated by commas.
        stripe_count: Number of servers to stripe each new file over, or -1 for all.
    """

    dns_name: str
    mount_name: str
    mount: _AbsolutePath
    options: str
    stripe_count: int


@dataclass(frozen=True)
class NodeDocument:
    """The settings that a node needs to boot. Editing them replaces nodes. See docs/architecture.md, section 2."""

    schema_version: int
    deployment: _Name
    region: str
    role_id: _RoleId
    dataset_bucket: str
    checkpoint_bucket: str
    control_bucket: str
    run_parameter: str
    log_group: str
    bundle: Bundle
    gpus: Annotated[int, AtLeast(0)]
    fabric: Literal["efa", "tcp"]
    python: PythonEnvironment
    supervise: SuperviseTimings
    volumes: tuple[Volume, ...] = ()
    lustre: Lustre | None = None

    @classmethod
    def from_json(cls, value: object, *, document: str = "node document") -> NodeDocument:
        """Decode parsed JSON.

        Raises:
            DocumentError: The document is invalid. `problems` lists every problem.
        """
        node, problems = decode_document(cls, value, document)
        if node is not None:
            timings = node.supervise
            problem = heartbeat_problem(timings.heartbeat_seconds, timings.heartbeat_timeout_seconds)
            if problem is not None:
                problems.append(replace(problem, path=f"supervise.{problem.path}"))
        return checked(node, problems, document)

    @classmethod
    def from_text(cls, text: str, *, document: str = "node document") -> NodeDocument:
        """Decode JSON text. Raises DocumentError as `from_json` does."""
        return cls.from_json(parse_text(text, document), document=document)

    def to_json(self) -> dict[str, Any]:
        """Return the document as JSON values, which `from_json` decodes."""
        return typing.cast("dict[str, Any]", to_plain(self))

    def digest(self) -> str:
        """Return the SHA-256 of the canonical JSON, as 64 hexadecimal digits."""
        return canonical_digest(self.to_json())


@dataclass(frozen=True)
class Prepare:
    """Settings for creating the dataset from other objects in the dataset bucket, once for all nodes and runs.

    Attributes:
        function: `package.module:function` in the code bundle or an installed package. It is called with `source` (a
            directory with the objects), `target` (an empty directory for the result) and `options`.
        source: Prefix of the objects in the dataset bucket.
        options: Options passed to the function.
        timeout_minutes: Timeout for the function.
    """

    function: _Function
    source: _Prefix
    options: Mapping[str, Any]
    timeout_minutes: Annotated[int, AtLeast(1)]


@dataclass(frozen=True)
class RunDocument:
    """What to train. Editing it restarts the trainer in place. See docs/architecture.md, section 3.

    `training` is the trainer's configuration. It is passed on unchanged, and the trainer validates it.
    """

    schema_version: int
    deployment: _Name
    run: _RunName
    nodes: Annotated[int, AtLeast(1)]
    min_nodes: Annotated[int, AtLeast(1)]
    processes_per_node: Annotated[int, AtLeast(1)]
    code: Bundle
    dataset: _Name
    training: Mapping[str, Any]
    prepare: Prepare | None = None

    @property
    def streams_dataset(self) -> bool:
        """Whether the trainer reads the dataset from S3 while it trains."""
        data = self.training.get("data")
        return isinstance(data, Mapping) and data.get("stream_cache_gib") is not None

    @classmethod
    def from_json(cls, value: object, *, document: str = "run document") -> RunDocument:
        """Decode parsed JSON.

        Raises:
            DocumentError: The document is invalid. `problems` lists every problem.
        """
        run, problems = decode_document(cls, value, document)
        if run is not None and run.min_nodes > run.nodes:
            rule, remedy = f"must be at most nodes ({run.nodes})", "lower min_nodes or raise nodes"
            problems.append(Problem("min_nodes", str(run.min_nodes), rule, remedy))
        return checked(run, problems, document)

    @classmethod
    def from_text(cls, text: str, *, document: str = "run document") -> RunDocument:
        """Decode JSON text. Raises DocumentError as `from_json` does."""
        return cls.from_json(parse_text(text, document), document=document)

    def to_json(self) -> dict[str, Any]:
        """Return the document as JSON values, which `from_json` decodes."""
        return typing.cast("dict[str, Any]", to_plain(self))

    def digest(self) -> str:
        """Return the SHA-256 of the canonical JSON, as 64 hexadecimal digits."""
        return canonical_digest(self.to_json())
