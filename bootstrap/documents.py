"""What a node is told: the node document and the run document, typed, strictly decoded, with a digest.

Not here: where the documents come from (user data, SSM) and what is done with them. Standard library only, because the
CDK app and the node's own interpreter (Python 3.9 on Amazon Linux 2023) both import it.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Optional

from bootstrap.document_decoding import (
    SCHEMA_VERSION,
    AtLeast,
    Matches,
    canonical_digest,
    decode_document,
    parse_text,
    plain,
    sound,
)
from bootstrap.errors import Problem

TERMINATING_HOOK = "trainstack-terminating"
"""Name of the Auto Scaling life-cycle hook that a leaving node completes; the fleet is made with it."""
SNAPSHOTS_TAG = "trainstack:snapshots"
"""On the checkpoint volume, and on every snapshot of its contents, whoever took it; value: the deployment."""
COPY_TAG = "trainstack:copy-of"
"""On copies of the checkpoint volume; value: its id. Not SNAPSHOTS_TAG: the schedule has no right to a copy."""
TAKER_TAG = "trainstack:taken-by"
TAKER = "supervisor"
"""Tag of snapshots that nodes take, and its value. Nodes may remove no others."""

_Sha256 = Annotated[str, Matches(r"[0-9a-f]{64}", "must be 64 lower-case hexadecimal digits")]
_Name = Annotated[str, Matches(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", "must be 1 to 64 letters, digits, '.', '_' and '-'")]
_RunName = Annotated[str, Matches(r"[a-z0-9-]{1,40}", "must be 1 to 40 lower-case letters, digits and '-'")]
_VolumeId = Annotated[str, Matches(r"vol-[0-9a-f]{8,17}", "must be the id of a volume, such as vol-0123456789abcdef0")]
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
        "must be names of letters, digits, '.', '_' and '-' with '/' between them",
    ),
]


@dataclass(frozen=True)
class Bundle:
    """A zip archive in S3, named by the SHA-256 of its bytes."""

    bucket: str
    key: str
    sha256: _Sha256


@dataclass(frozen=True)
class PythonEnvironment:
    """The interpreter that trains.

    `interpreter` is a name on PATH or an absolute path, with torch installed; `packages` are importable names that must
    be there.
    """

    interpreter: str
    packages: tuple[_Importable, ...]


PING_SECONDS = 1.0
"""Between the questions of a supervisor to each of its peers."""


@dataclass(frozen=True)
class SuperviseTimings:
    """How often the supervisor looks, and how long it waits.

    A peer is silent after `heartbeat_timeout_seconds` without a beat, and after `doubt_seconds` if it does not answer
    pings either, though it did; a gang smaller than the run's `nodes` starts after `gang_timeout_seconds`; boot gives
    the machine back after `boot_timeout_seconds`.
    """

    poll_seconds: Annotated[float, AtLeast(0.05)]
    heartbeat_seconds: Annotated[float, AtLeast(0.1)]
    heartbeat_timeout_seconds: Annotated[float, AtLeast(0.5)]
    gang_timeout_seconds: Annotated[float, AtLeast(1)]
    boot_timeout_seconds: Annotated[float, AtLeast(1)]

    @property
    def doubt_seconds(self) -> float:
        """Half the time-out; long enough for two beats, of which one may be late, and for three pings."""
        doubt_seconds = max(self.heartbeat_timeout_seconds / 2, 2 * self.heartbeat_seconds, 3 * PING_SECONDS)
        return min(doubt_seconds, self.heartbeat_timeout_seconds)


@dataclass(frozen=True)
class Volume:
    """An EBS volume that the node mounts.

    Without `volume_id` the launch template made it with the machine, as `device`; with one the node attaches it there
    when it runs in `availability_zone`; in another it goes without, or, where the volume is `restored_elsewhere`, has a
    copy of its newest snapshot. `warm` reads every file of the dataset once, the first of them before training starts,
    at `warm_limit_mib_per_second` at most. `initialization` is what loads the volume instead: it is made sure of, and
    the files are read where it is not on.
    """

    kind: Literal["dataset", "checkpoint", "shared"]
    device: _AbsolutePath
    mount: _AbsolutePath
    read_only: bool
    warm: bool
    # Not `X | None`: the node's interpreter may be Python 3.9, which evaluates these types.
    volume_id: Optional[_VolumeId] = None  # noqa: UP045
    availability_zone: Optional[str] = None  # noqa: UP045
    initialization: Optional[Literal["provisioned_rate", "fast_snapshot_restore"]] = None  # noqa: UP045
    warm_limit_mib_per_second: Optional[Annotated[int, AtLeast(1)]] = None  # noqa: UP045
    restored_elsewhere: bool = False


@dataclass(frozen=True)
class Lustre:
    """An FSx for Lustre file system that the node mounts.

    `options` are those of mount(8), with commas; `stripe_count` is of the files that nodes make (-1: all servers).
    """

    dns_name: str
    mount_name: str
    mount: _AbsolutePath
    options: str
    stripe_count: int


@dataclass(frozen=True)
class NodeDocument:
    """What a machine needs to come up; an edit replaces nodes. See docs/architecture.md, section 2."""

    schema_version: Annotated[int, AtLeast(SCHEMA_VERSION)]
    deployment: _Name
    region: str
    dataset_bucket: str
    checkpoint_bucket: str
    run_parameter: str
    log_group: str
    bundle: Bundle
    gpus: Annotated[int, AtLeast(0)]
    fabric: Literal["efa", "tcp"]
    python: PythonEnvironment
    supervise: SuperviseTimings
    volumes: tuple[Volume, ...] = ()
    lustre: Optional[Lustre] = None  # noqa: UP045

    @classmethod
    def from_json(cls, value: object, *, document: str = "node document") -> NodeDocument:
        """Decode parsed JSON.

        Raises:
            DocumentError: With every problem of the document.
        """
        node, problems = decode_document(cls, value, document)
        if node is not None:
            timings = node.supervise
            if timings.heartbeat_timeout_seconds < 2 * timings.heartbeat_seconds:
                problems.append(
                    Problem(
                        "supervise.heartbeat_timeout_seconds",
                        f"{timings.heartbeat_timeout_seconds:g}",
                        f"must be at least twice heartbeat_seconds ({timings.heartbeat_seconds:g}), "
                        "or one late beat looks like a lost node",
                        "raise it, or beat more often",
                    )
                )
        return sound(node, problems, document)

    @classmethod
    def from_text(cls, text: str, *, document: str = "node document") -> NodeDocument:
        """Decode JSON text; raises DocumentError as `from_json`."""
        return cls.from_json(parse_text(text, document), document=document)

    def to_json(self) -> dict[str, Any]:
        """Return the document as JSON values; `from_json` reads it back."""
        return typing.cast("dict[str, Any]", plain(self))

    def digest(self) -> str:
        """Return the SHA-256 over the canonical JSON, 64 hexadecimal digits."""
        return canonical_digest(self.to_json())


@dataclass(frozen=True)
class Prepare:
    """How the dataset is made from other objects of the dataset bucket, once for all nodes and runs.

    `function` is `package.module:function` of the code bundle or an installed package; it is called with `source`, a
    folder with what is below `source` in the bucket, `target`, an empty folder to write to, and the `options`, and is
    ended after `timeout_minutes`.
    """

    function: _Function
    source: _Prefix
    options: Mapping[str, Any]
    timeout_minutes: Annotated[int, AtLeast(1)]


@dataclass(frozen=True)
class RunDocument:
    """What is trained; an edit restarts the trainer in place. See docs/architecture.md, section 3.

    `training` is the trainer's own configuration: it is carried as it is, and validated by the trainer.
    """

    schema_version: Annotated[int, AtLeast(SCHEMA_VERSION)]
    deployment: _Name
    run: _RunName
    nodes: Annotated[int, AtLeast(1)]
    min_nodes: Annotated[int, AtLeast(1)]
    processes_per_node: Annotated[int, AtLeast(1)]
    code: Bundle
    dataset: _Name
    training: Mapping[str, Any]
    prepare: Optional[Prepare] = None  # noqa: UP045

    @property
    def streams_dataset(self) -> bool:
        """Whether the trainer reads the dataset from S3 itself, while it trains."""
        data = self.training.get("data")
        return isinstance(data, Mapping) and data.get("stream_cache_gib") is not None

    @classmethod
    def from_json(cls, value: object, *, document: str = "run document") -> RunDocument:
        """Decode parsed JSON.

        Raises:
            DocumentError: With every problem of the document.
        """
        run, problems = decode_document(cls, value, document)
        if run is not None and run.min_nodes > run.nodes:
            problems.append(
                Problem(
                    "min_nodes",
                    str(run.min_nodes),
                    f"must be at most nodes ({run.nodes})",
                    "lower min_nodes or raise nodes",
                )
            )
        return sound(run, problems, document)

    @classmethod
    def from_text(cls, text: str, *, document: str = "run document") -> RunDocument:
        """Decode JSON text; raises DocumentError as `from_json`."""
        return cls.from_json(parse_text(text, document), document=document)

    def to_json(self) -> dict[str, Any]:
        """Return the document as JSON values; `from_json` reads it back."""
        return typing.cast("dict[str, Any]", plain(self))

    def digest(self) -> str:
        """Return the SHA-256 over the canonical JSON, 64 hexadecimal digits."""
        return canonical_digest(self.to_json())
