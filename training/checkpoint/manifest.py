"""The JSON documents in a checkpoint store: log entries and checkpoint manifests.

Each rank writes one *part*, which is its share of the tensors. The tensors are laid out one after another in a flat
byte range, which the part's chunks cover in order. An offset is therefore sufficient to locate a tensor, and a reader
only concatenates chunks.
"""

from __future__ import annotations

import math
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from training.checkpoint.chunks import Layout
from training.errors import ConfigurationError, CorruptCheckpointError

SCHEMA_VERSION: Final = 2
"""Version of log entries and manifests. Version 2 uses Hugging Face's names for model keys in config and subject."""
CHUNK_PREFIX = "chunks/"
MAX_CHUNK_BYTES = 1 << 30
"""Limit on the memory that a damaged record can allocate. It is larger than any chunk or manifest."""
ALIGNMENT_BYTES = 64
"""Alignment of tensors in the flat range: a multiple of every element size and of the cache line size."""
MAX_UNIX_SECONDS = 253402300799
"""End of the year 9999, the latest time that datetime can represent."""


def chunk_key(fence: int, blake3: str) -> str:
    """Return a chunk's key; ``fence`` names its writer's folder."""
    return f"{CHUNK_PREFIX}{fence:08d}/{blake3}"


class Record(BaseModel):
    """Base for the store's JSON documents. Types are strict. Unknown fields, added by later versions, are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class ChunkRecord(Record):
    """One chunk, whose ``key`` is its full key in the store."""

    key: str = Field(pattern=r"^chunks/[0-9]{8}/[0-9a-f]{64}$")
    bytes: int = Field(ge=0, le=MAX_CHUNK_BYTES, description="Plain bytes.")
    stored_bytes: int = Field(ge=0)

    @property
    def blake3(self) -> str:
        """The plain bytes' hash."""
        return self.key.rpartition("/")[2]


class TensorRecord(Record):
    """One tensor in a part."""

    dtype: str
    shape: list[int]
    offset_bytes: int = Field(ge=0, multiple_of=ALIGNMENT_BYTES, description="Offset in the part's flat range.")
    bytes: int = Field(ge=0)


def tensor_records(layout: Layout) -> dict[str, TensorRecord]:
    """Return the records of a layout's tensors, by name."""
    return {name: TensorRecord(**place._asdict()) for name, place in layout.tensors.items()}


class PartRecord(Record):
    """The tensors and chunks that one rank wrote."""

    tensors: dict[str, TensorRecord]
    chunks: list[ChunkRecord]
    written_bytes: int = Field(ge=0, description="Stored bytes added to the store by this save.")

    @property
    def plain_bytes(self) -> int:
        """The flat range's length."""
        return sum(chunk.bytes for chunk in self.chunks)

    @model_validator(mode="after")
    def _check_chunks_cover_tensors(self) -> PartRecord:
        held_bytes, end_bytes = self.plain_bytes, 0
        for name, tensor in sorted(self.tensors.items(), key=lambda item: (item[1].offset_bytes, item[1].bytes)):
            if min(tensor.shape, default=0) < 0 or tensor.offset_bytes + tensor.bytes > held_bytes:
                raise ValueError(f"tensor {name} is not within the {held_bytes} bytes of its chunks")
            if tensor.offset_bytes < end_bytes:
                raise ValueError(f"tensor {name} overlaps another tensor")
            end_bytes = tensor.offset_bytes + tensor.bytes
        return self


class PartMessage(Record):
    """The result of one rank's part of a save, sent to rank 0: the part or an error."""

    part: PartRecord | None = None
    error: str | None = None
    cancelled: bool = False


PROBE_TOLERANCE = 1e-3
"""Maximum relative difference between probes of the same sample on different processors."""


class Subject(Record):
    """A checkpoint's model, dataset, tokenizer and seed. A run resumes only from a checkpoint with the same subject."""

    num_hidden_layers: int
    num_attention_heads: int
    hidden_size: int
    sequence_length: int
    vocabulary_size: int
    dataset_name: str
    dataset_identity: str
    tokenizer_sha256: str
    seed: int | None = Field(default=None, description="The run's seed, which determines the data order.")
    samples: Literal["joined", "apart", "streamed"] | None = Field(
        default=None, description="How samples are made from a token dataset; null for other datasets."
    )
    dataset_probe: list[float | None] = Field(
        default_factory=list, description="See `training.data.probe`; empty for a token dataset."
    )

    def differences(self, wanted: Subject) -> list[str]:
        """Return one sentence for each difference between this subject and ``wanted``."""
        problems = []
        for name in ("num_hidden_layers", "num_attention_heads", "hidden_size", "sequence_length", "vocabulary_size"):
            if getattr(self, name) != getattr(wanted, name):
                problems.append(f"its model has {name} {getattr(self, name)}, but this run has {getattr(wanted, name)}")
        if None not in (self.seed, wanted.seed) and self.seed != wanted.seed:
            problems.append(f"its seed is {self.seed}, but this run's is {wanted.seed}, so the data order differs")
        if None not in (self.samples, wanted.samples) and self.samples != wanted.samples:
            problems.append(
                f"its samples are {self.samples}, but this run's are {wanted.samples} "
                "(data.documents, data.stream_cache_gib), so the samples' contents or order differ"
            )
        if self.tokenizer_sha256 != wanted.tokenizer_sha256:
            problems.append(f"it was trained with a different tokenizer (from dataset {self.dataset_name!r})")
        elif self.dataset_identity != wanted.dataset_identity:
            problems.append(
                f"it was trained on different text: dataset {self.dataset_name!r}, not {wanted.dataset_name!r}"
            )
        elif _differ(self.dataset_probe, wanted.dataset_probe):
            problems.append(
                f"dataset {self.dataset_name!r} has the same number of samples but different contents: the "
                "checkpoint was trained on different data"
            )
        return problems


def _differ(one: list[float | None], other: list[float | None]) -> bool:
    """Compare two probes: checksums (even positions) exactly, and sums (odd positions) with a tolerance."""
    for place, (ours, theirs) in enumerate(zip(one, other, strict=False)):
        tolerance = PROBE_TOLERANCE if place % 2 else 0.0
        if None not in (ours, theirs) and not math.isclose(ours, theirs, rel_tol=tolerance, abs_tol=tolerance):  # type: ignore[arg-type]
            return True
    return False


class ValidationRecord(Record):
    """A run's newest validation result at the time of a checkpoint."""

    step: int = Field(ge=0, description="Optimizer steps completed at the measurement; at most the checkpoint's step.")
    loss: float = Field(allow_inf_nan=False)


class OptimizerRecord(Record):
    """An optimizer's state without its tensors. ``training.checkpoint.state.values`` encodes the values."""

    kind: str = Field(description="The optimizer's module and class.")
    groups: list[dict[str, Any]] = Field(description="Parameter groups, without their parameters.")
    parameters: list[list[str]] = Field(description="Each group's parameter names, in order.")
    values: dict[str, Any] = Field(description="Non-tensor state, by parameter.")


class Manifest(Record):
    """Everything about a checkpoint except its tensor bytes."""

    schema_version: Literal[2] = SCHEMA_VERSION
    subject: Subject | None = Field(default=None, description="None: saved by another trainer.")
    step: int = Field(ge=0, description="Optimizer steps completed.")
    position: int = Field(ge=0, description="Number of samples consumed by the run: its data position.")
    generation: int = Field(ge=0)
    world_size: int = Field(ge=1)
    config: dict[str, Any]
    config_digest: str
    scaler: dict[str, Any]
    precision: str
    device_type: str
    torch_version: str
    validation: ValidationRecord | None = None
    extra: dict[str, Any] = Field(default_factory=dict, description="The caller's small state, encoded.")
    optimizer: OptimizerRecord | None = Field(default=None, description="None: imported weights.")
    extra_states: dict[str, Any] = Field(default_factory=dict, description="The modules' extra states, by name.")
    parts: list[PartRecord]

    @property
    def chunks(self) -> list[ChunkRecord]:
        """All chunks of all parts."""
        return [chunk for part in self.parts for chunk in part.chunks]


class ManifestReference(Record):
    """A manifest's key. A manifest is stored as a chunk."""

    key: str = Field(pattern=r"^chunks/[0-9]{8}/[0-9a-f]{64}$")
    bytes: int = Field(ge=1, le=MAX_CHUNK_BYTES)


class LogEntry(Record):
    """One entry in the append-only log."""

    schema_version: Literal[2] = SCHEMA_VERSION
    kind: Literal["fence", "checkpoint"]
    sequence: int = Field(ge=0, le=99_999_999)
    generation: int = Field(ge=0, le=2**53)
    writer: str = Field(description="Random name of the process that appended it.")
    unix_seconds: float = Field(ge=0, le=MAX_UNIX_SECONDS, allow_inf_nan=False)
    step: int | None = None
    manifest: ManifestReference | None = None
    reason: str | None = None
    bytes: int | None = Field(default=None, description="Plain bytes in all tensors.")
    written_bytes: int | None = Field(default=None, description="Stored bytes added by this checkpoint.")
    validation: ValidationRecord | None = None
    origin: str | None = Field(default=None, description="Store and entry from which the tool copied it.")

    @model_validator(mode="after")
    def _checkpoint_has_a_step(self) -> LogEntry:
        if self.kind == "checkpoint" and self.step is None:
            raise ValueError("a checkpoint entry must have a step")
        return self


R = TypeVar("R", bound=Record)


def parse_record(record_type: type[R], content: bytes | bytearray, where: str) -> R:
    """Parse a JSON document from the store.

    Args:
        record_type: the document's type.
        content: the document's bytes.
        where: the document's URL or path, for errors.

    Raises:
        ConfigurationError: Another version of this package wrote the document.
        CorruptCheckpointError: The document is damaged.
    """
    try:
        return record_type.model_validate_json(content)
    except ValidationError as error:
        refuse_other_version(error, where)
        raise CorruptCheckpointError(f"{where}: not a valid {record_type.__name__} ({error})") from error


def refuse_other_version(error: ValidationError, where: str) -> None:
    """Raise ConfigurationError if validation failed because of a schema version. The caller handles other causes."""
    for problem in error.errors(include_url=False):
        version = problem["input"]
        if problem["loc"] == ("schema_version",) and type(version) is int and version > 0:
            age = "an older" if version < SCHEMA_VERSION else "a newer"
            raise ConfigurationError(
                [
                    f"{where}: schema_version {version}: {age} version of Trainstack wrote it, and this one reads only "
                    f"schema_version {SCHEMA_VERSION}; use that version, or name a new run to start from the beginning"
                ]
            ) from error
