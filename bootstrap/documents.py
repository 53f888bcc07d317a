"""What a node is told: the node document and the run document, typed, strictly decoded, with a digest.

Not here: where the documents come from (user data, SSM) and what is done with them. Standard library only, because the
CDK app and the node's own interpreter (Python 3.9 on Amazon Linux 2023) both import it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Optional, TypeVar

from bootstrap.errors import DocumentError, Problem

SCHEMA_VERSION = 1
TERMINATING_HOOK = "trainstack-terminating"
"""Name of the Auto Scaling life-cycle hook that a leaving node completes; the fleet is made with it."""

T = TypeVar("T")


@dataclass(frozen=True)
class _Matches:
    pattern: str
    rule: str


@dataclass(frozen=True)
class _AtLeast:
    minimum: float


_Sha256 = Annotated[str, _Matches(r"[0-9a-f]{64}", "must be 64 lower-case hexadecimal digits")]
_Name = Annotated[
    str, _Matches(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", "must be 1 to 64 letters, digits, '.', '_' and '-'")
]
_RunName = Annotated[str, _Matches(r"[a-z0-9-]{1,40}", "must be 1 to 40 lower-case letters, digits and '-'")]
_VolumeId = Annotated[str, _Matches(r"vol-[0-9a-f]{8,17}", "must be the id of a volume, such as vol-0123456789abcdef0")]
_AbsolutePath = Annotated[
    str, _Matches(r"/[A-Za-z0-9_./-]{1,100}", "must be an absolute path of letters, digits, '.', '_' and '-'")
]
_Importable = Annotated[
    str,
    _Matches(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", "must be an importable name such as torch or torch.distributed"),
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


@dataclass(frozen=True)
class SuperviseTimings:
    """How often the supervisor looks, and how long it waits.

    A peer is silent after `heartbeat_timeout_seconds` without a beat; a gang smaller than the run's `nodes` starts
    after `gang_timeout_seconds`; boot gives the machine back after `boot_timeout_seconds`.
    """

    poll_seconds: Annotated[float, _AtLeast(0.05)]
    heartbeat_seconds: Annotated[float, _AtLeast(0.1)]
    heartbeat_timeout_seconds: Annotated[float, _AtLeast(0.5)]
    gang_timeout_seconds: Annotated[float, _AtLeast(1)]
    boot_timeout_seconds: Annotated[float, _AtLeast(1)]


@dataclass(frozen=True)
class Volume:
    """An EBS volume that the node mounts.

    Without `volume_id` the launch template made it with the machine, as `device`; with one the node attaches it there
    when it runs in `availability_zone`, and goes without in another. `warm` reads every file of the dataset once, the
    first of them before training starts, at `warm_limit_mib_per_second` at most. `initialization` is what loads the
    volume instead: it is made sure of, and the files are read where it is not on.
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
    warm_limit_mib_per_second: Optional[Annotated[int, _AtLeast(1)]] = None  # noqa: UP045


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

    schema_version: Annotated[int, _AtLeast(SCHEMA_VERSION)]
    deployment: _Name
    region: str
    dataset_bucket: str
    checkpoint_bucket: str
    run_parameter: str
    log_group: str
    bundle: Bundle
    gpus: Annotated[int, _AtLeast(0)]
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
        node, problems = _decode_document(cls, value, document)
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
        return _sound(node, problems, document)

    @classmethod
    def from_text(cls, text: str, *, document: str = "node document") -> NodeDocument:
        """Decode JSON text; raises DocumentError as `from_json`."""
        return cls.from_json(_parse(text, document), document=document)

    def to_json(self) -> dict[str, Any]:
        """Return the document as JSON values; `from_json` reads it back."""
        return typing.cast("dict[str, Any]", _plain(self))

    def digest(self) -> str:
        """Return the SHA-256 over the canonical JSON, 64 hexadecimal digits."""
        return canonical_digest(self.to_json())


@dataclass(frozen=True)
class RunDocument:
    """What is trained; an edit restarts the trainer in place. See docs/architecture.md, section 3.

    `training` is the trainer's own configuration: it is carried as it is, and validated by the trainer.
    """

    schema_version: Annotated[int, _AtLeast(SCHEMA_VERSION)]
    deployment: _Name
    run: _RunName
    nodes: Annotated[int, _AtLeast(1)]
    min_nodes: Annotated[int, _AtLeast(1)]
    processes_per_node: Annotated[int, _AtLeast(1)]
    code: Bundle
    dataset: _Name
    training: Mapping[str, Any]

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
        run, problems = _decode_document(cls, value, document)
        if run is not None and run.min_nodes > run.nodes:
            problems.append(
                Problem(
                    "min_nodes",
                    str(run.min_nodes),
                    f"must be at most nodes ({run.nodes})",
                    "lower min_nodes or raise nodes",
                )
            )
        return _sound(run, problems, document)

    @classmethod
    def from_text(cls, text: str, *, document: str = "run document") -> RunDocument:
        """Decode JSON text; raises DocumentError as `from_json`."""
        return cls.from_json(_parse(text, document), document=document)

    def to_json(self) -> dict[str, Any]:
        """Return the document as JSON values; `from_json` reads it back."""
        return typing.cast("dict[str, Any]", _plain(self))

    def digest(self) -> str:
        """Return the SHA-256 over the canonical JSON, 64 hexadecimal digits."""
        return canonical_digest(self.to_json())


def canonical_digest(value: object) -> str:
    """Return the SHA-256 over `value` as canonical JSON (sorted keys, no spaces, ASCII)."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        # What may be left out is, so that a document without it has the digest that it always had.
        items = ((each, getattr(value, each.name)) for each in dataclasses.fields(value))
        return {each.name: _plain(item) for each, item in items if item != each.default}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _sound(value: T | None, problems: list[Problem], document: str) -> T:
    if problems or value is None:
        raise DocumentError(document, problems)
    return value


def _parse(text: str, document: str) -> object:
    doubled: list[Problem] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for key, item in items:
            if key in seen:
                doubled.append(Problem(key, "given twice", "a key stands once", "remove one of the two"))
            seen[key] = item
        return seen

    try:
        value: object = json.loads(text, object_pairs_hook=pairs)
    except ValueError as error:
        problem = Problem(
            "document", f"{text[:40]!r}...", f"must be JSON ({error})", "write the document again by a deploy"
        )
        raise DocumentError(document, [problem]) from error
    if doubled:
        raise DocumentError(document, doubled)
    return value


def _decode_document(cls: type[T], value: object, document: str) -> tuple[T | None, list[Problem]]:
    problems: list[Problem] = []
    if isinstance(value, Mapping):
        version = value.get("schema_version")
        if isinstance(version, int) and not isinstance(version, bool) and version > SCHEMA_VERSION:
            # What else a newer document holds is not ours to judge: one clear answer, not a list of unknown keys.
            problem = Problem(
                "schema_version",
                str(version),
                f"is newer than what this program reads ({SCHEMA_VERSION})",
                "deploy the node bundle of the same Trainstack version as the document",
            )
            raise DocumentError(document, [problem])
    decoded = _decode_dataclass(cls, value, "", problems)
    return (None if problems else typing.cast("T", decoded)), problems


def _decode_dataclass(cls: type[Any], value: object, path: str, problems: list[Problem]) -> object:
    if not isinstance(value, Mapping):
        problems.append(_wrong_type(path or "document", value, "an object"))
        return None
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = {each.name: each for each in dataclasses.fields(cls)}
    for key in value:
        if key not in fields:
            known = ", ".join(sorted(set(fields) - set(value))) or "none is missing"
            remedy = f"remove it, or correct its name (keys not given: {known})"
            problems.append(Problem(_join(path, str(key)), _shown(value[key]), "is not a known key", remedy))
    arguments: dict[str, Any] = {}
    for name, field in fields.items():
        if name in value:
            arguments[name] = _decode(hints[name], value[name], _join(path, name), problems)
        elif field.default is dataclasses.MISSING:
            problems.append(Problem(_join(path, name), "missing", "must be given", "add it"))
        else:
            arguments[name] = field.default
    return cls(**arguments) if len(arguments) == len(fields) else None


def _decode(hint: Any, value: object, path: str, problems: list[Problem]) -> object:
    rule: object = None
    if typing.get_origin(hint) is Annotated:
        hint, rule = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Union:  # Optional[X]
        return None if value is None else _decode(typing.get_args(hint)[0], value, path, problems)
    if dataclasses.is_dataclass(hint):
        return _decode_dataclass(typing.cast("type[Any]", hint), value, path, problems)
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            problems.append(Problem(path, _shown(value), "must be one of " + ", ".join(choices), "choose one of them"))
    elif typing.get_origin(hint) is tuple:
        if isinstance(value, (list, tuple)):
            element = typing.get_args(hint)[0]
            return tuple(_decode(element, item, f"{path}[{index}]", problems) for index, item in enumerate(value))
        problems.append(_wrong_type(path, value, "a list"))
    elif hint is str:
        _check_text(value, path, rule, problems)
    elif hint is bool:
        if not isinstance(value, bool):
            problems.append(_wrong_type(path, value, "true or false"))
    elif hint in (int, float):
        _check_number(value, path, rule, problems, whole=hint is int)
    elif not isinstance(value, Mapping):
        problems.append(_wrong_type(path, value, "an object"))
    return value


def _check_text(value: object, path: str, rule: object, problems: list[Problem]) -> None:
    if not isinstance(value, str):
        problems.append(_wrong_type(path, value, "a text"))
    elif isinstance(rule, _Matches) and re.fullmatch(rule.pattern, value, re.ASCII) is None:
        problems.append(Problem(path, _shown(value), rule.rule, "correct the value"))
    elif not value:
        problems.append(Problem(path, _shown(value), "must be a text that is not empty", "give a value"))


def _check_number(value: object, path: str, rule: object, problems: list[Problem], *, whole: bool) -> None:
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        problems.append(_wrong_type(path, value, "a whole number" if whole else "a number"))
    elif not math.isfinite(value):
        problems.append(Problem(path, _shown(value), "must be finite", "give a number"))
    elif isinstance(rule, _AtLeast) and value < rule.minimum:
        problems.append(Problem(path, _shown(value), f"must be at least {rule.minimum:g}", "raise it"))


def _wrong_type(path: str, value: object, wanted: str) -> Problem:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    found = names.get(type(value), "a number")
    return Problem(path, _shown(value), f"must be {wanted}, and is {found}", f"write {wanted}")


def _shown(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
