"""The manifest of a checkpoint: what it is of, where the run stood, and which chunks hold which tensors.

Each rank writes one *part*: its share of the tensors, laid out one after another in a flat space that the part's chunks
tile in order. So a tensor is found from its offset alone, and reading is a plain concatenation.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

LARGEST_CHUNK_BYTES = 1 << 30
"""More than any chunk or manifest has; a damaged record may not ask for all memory."""
ALIGNMENT_BYTES = 64
"""Start of each tensor in the flat space: a multiple of any element's size, and of a cache line."""
LAST_UNIX_SECONDS = 253402300799
"""The end of the year 9999, the last moment that calendars of programs have."""


class Record(BaseModel):
    """What the store's JSON documents have in common: exact types, and room for fields of later versions."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class ChunkRecord(Record):
    """One chunk; ``key`` is its full key in the store."""

    key: str = Field(pattern=r"^chunks/[0-9]{8}/[0-9a-f]{64}$")
    bytes: int = Field(ge=0, le=LARGEST_CHUNK_BYTES, description="Plain bytes.")
    stored_bytes: int = Field(ge=0)

    @property
    def blake3(self) -> str:
        """Hash of the plain bytes."""
        return self.key.rpartition("/")[2]


class TensorRecord(Record):
    """One tensor of a part."""

    dtype: str
    shape: list[int]
    offset_bytes: int = Field(ge=0, multiple_of=ALIGNMENT_BYTES, description="Place in the part's flat space.")
    bytes: int = Field(ge=0)


class PartRecord(Record):
    """What one rank wrote."""

    tensors: dict[str, TensorRecord]
    chunks: list[ChunkRecord]
    written_bytes: int = Field(ge=0, description="Stored bytes that were not in the store before.")

    @property
    def plain_bytes(self) -> int:
        """Length of the flat space."""
        return sum(chunk.bytes for chunk in self.chunks)

    @model_validator(mode="after")
    def _chunks_hold_the_tensors(self) -> PartRecord:
        held_bytes, end_bytes = self.plain_bytes, 0
        for name, tensor in sorted(self.tensors.items(), key=lambda item: (item[1].offset_bytes, item[1].bytes)):
            if min(tensor.shape, default=0) < 0 or tensor.offset_bytes + tensor.bytes > held_bytes:
                raise ValueError(f"tensor {name} does not lie in the {held_bytes} bytes of its chunks")
            if tensor.offset_bytes < end_bytes:
                raise ValueError(f"tensor {name} lies in the place of another")
            end_bytes = tensor.offset_bytes + tensor.bytes
        return self


class PartMessage(Record):
    """What one rank tells rank 0 of its part of a save: the part, or why there is none."""

    part: PartRecord | None = None
    error: str | None = None
    cancelled: bool = False


class Subject(Record):
    """What a checkpoint is of: a run may resume from it only if all of this is the same."""

    layers: int
    heads: int
    embedding: int
    context: int
    vocabulary_size: int
    dataset_name: str
    dataset_identity: str
    tokenizer_sha256: str

    def differences(self, wanted: Subject) -> list[str]:
        """In words, what this checkpoint has otherwise than ``wanted``; empty if it fits."""
        problems = []
        for name in ("layers", "heads", "embedding", "context", "vocabulary_size"):
            if getattr(self, name) != getattr(wanted, name):
                problems.append(f"its model has {name} {getattr(self, name)}, this run's {getattr(wanted, name)}")
        if self.tokenizer_sha256 != wanted.tokenizer_sha256:
            problems.append(f"it was trained with another tokenizer (of dataset {self.dataset_name!r})")
        elif self.dataset_identity != wanted.dataset_identity:
            problems.append(f"it was trained on other text: dataset {self.dataset_name!r}, not {wanted.dataset_name!r}")
        return problems


class ValidationRecord(Record):
    """The newest validation of a run when a checkpoint was made."""

    step: int = Field(ge=0, description="Optimizer steps done when it was measured; at most the checkpoint's.")
    loss: float = Field(allow_inf_nan=False)


class Manifest(Record):
    """A whole checkpoint."""

    schema_version: Literal[1] = 1
    subject: Subject | None = Field(default=None, description="None: of a trainer other than this package's.")
    step: int = Field(ge=0, description="Optimizer steps done.")
    position: int = Field(ge=0, description="Samples consumed by the run: where in the data it stands.")
    generation: int = Field(ge=0)
    world_size: int = Field(ge=1)
    config: dict[str, Any]
    config_digest: str
    scaler: dict[str, Any]
    precision: str
    device_type: str
    torch_version: str
    validation: ValidationRecord | None = None
    extra: dict[str, Any] = Field(default_factory=dict, description="Small state of the caller.")
    optimizer_groups: list[dict[str, Any]] = Field(default_factory=list, description="Without their parameters.")
    parts: list[PartRecord]

    @property
    def chunks(self) -> list[ChunkRecord]:
        """All chunks of all parts."""
        return [chunk for part in self.parts for chunk in part.chunks]


class ManifestReference(Record):
    """Where a manifest is; it is stored as a chunk like any other."""

    key: str = Field(pattern=r"^chunks/[0-9]{8}/[0-9a-f]{64}$")
    bytes: int = Field(ge=1, le=LARGEST_CHUNK_BYTES)


class LogEntry(Record):
    """One entry of the append-only log."""

    schema_version: Literal[1] = 1
    kind: Literal["fence", "checkpoint"]
    sequence: int = Field(ge=0)
    generation: int = Field(ge=0)
    writer: str = Field(description="Random name of the process that appended it.")
    unix_seconds: float = Field(ge=0, le=LAST_UNIX_SECONDS, allow_inf_nan=False)
    step: int | None = None
    manifest: ManifestReference | None = None
    reason: str | None = None
    bytes: int | None = Field(default=None, description="Plain bytes of all tensors.")
    written_bytes: int | None = Field(default=None, description="Stored bytes that this checkpoint added.")
    validation: ValidationRecord | None = None
    origin: str | None = Field(default=None, description="Store and entry that it was copied from, by the tool.")

    @model_validator(mode="after")
    def _checkpoint_has_a_step(self) -> LogEntry:
        if self.kind == "checkpoint" and self.step is None:
            raise ValueError("a checkpoint entry without its step")
        return self
