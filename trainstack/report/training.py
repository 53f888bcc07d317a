"""Builds the report's training section from the trainer's records: losses, throughput and resumes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Resume:
    """Any trainer start after the first. `resumed_from_step` is None if the trainer started from scratch."""

    unix_seconds: float
    resumed_from_step: int | None
    highest_step_before: int
    steps_lost: int
    downtime_seconds: float | None


@dataclass
class Training:
    """The run as the trainers recorded it. Points in `train` include their segment number, counted from 0."""

    facts: dict[str, Any] = field(default_factory=dict)
    train: list[dict[str, Any]] = field(default_factory=list)
    validation: list[dict[str, Any]] = field(default_factory=list)
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    resumes: list[Resume] = field(default_factory=list)
    steps_total: int | None = None
    last_step: int = 0
    has_finished: bool = False

    @property
    def steps_lost(self) -> int:
        """The number of trained steps that were lost, across all resumes."""
        return sum(resume.steps_lost for resume in self.resumes)

    @property
    def resumed_from_step(self) -> int | None:
        """The checkpoint step that the last resume started from, or None if the run never resumed."""
        return self.resumes[-1].resumed_from_step if self.resumes else None

    @property
    def downtime_seconds(self) -> float:
        """The time between the last step before each resume and the first step after it, across all resumes."""
        return round(sum(resume.downtime_seconds or 0.0 for resume in self.resumes), 3)

    def resumes_as_dicts(self) -> list[dict[str, Any]]:
        """Return the resumes in the form that the report uses."""
        return [asdict(resume) for resume in self.resumes]

    def step_at(self, unix_seconds: float) -> int | None:
        """Return the last step completed at a given time, or None before the first step."""
        done = [point["step"] for point in self.train if point["unix_seconds"] <= unix_seconds]
        return done[-1] if done else None


@dataclass
class _Segment:
    """The records from one start to the next."""

    start: Record | None
    steps: list[Record] = field(default_factory=list)
    highest_step: int = 0

    def note_step(self, step: object) -> None:
        if isinstance(step, int):
            self.highest_step = max(self.highest_step, step)


def training_of(events: Sequence[Record]) -> Training:
    """Build the report's training section from the nodes' events, which must be sorted by time."""
    training = Training()
    segments: list[_Segment] = []
    for kind, record in _records_of(events):
        if kind == "start" or not segments:
            segments.append(_Segment(record if kind == "start" else None))
        segment = segments[-1]
        if kind in ("step", "checkpoint", "validation", "end", "generation_ended"):
            segment.note_step(record.get("step"))
        if kind in ("step", "checkpoint", "validation") and not isinstance(record.get("step"), int):
            continue  # a user's own record
        if kind == "start":
            _note_start(training, record)
        elif kind == "step":
            segment.steps.append(record)
            training.train.append(_train_point(record, len(segments) - 1))
        elif kind == "validation":
            training.validation.append(
                _point(record, "step", "loss", "bits_per_byte", "unigram_loss", segment=len(segments) - 1)
            )
        elif kind == "checkpoint":
            training.checkpoints.append(_point(record, "step", "seconds", "blocked_seconds", "bytes_written", "reason"))
        elif kind == "run_finished" or (kind == "end" and record.get("outcome") == "finished"):
            training.has_finished = True
    training.last_step = max((segment.highest_step for segment in segments), default=0)
    training.resumes = list(_resumes(segments))
    return training


def _records_of(events: Sequence[Record]) -> Iterator[tuple[str, Record]]:
    """Yield (kind, record) for the training events, sorted by time.

    A trainer's record includes its own timestamp, since it reaches the log later.
    """
    found: list[tuple[str, Record]] = []
    for event in events:
        kind = event.get("event")
        record = event.get("record")
        if kind == "trainer" and isinstance(record, Mapping):
            found.append((str(record.get("record")), {"unix_seconds": event["unix_seconds"], **record}))
        elif kind in ("generation_ended", "run_finished"):
            found.append((str(kind), event))
    yield from sorted(found, key=lambda one: float(one[1]["unix_seconds"]))


def _note_start(training: Training, record: Record) -> None:
    names = ("world_size", "parameters", "precision", "attention", "device", "bytes_per_token", "config_digest")
    training.facts = {name: record[name] for name in names if name in record}
    if isinstance(record.get("steps_total"), int):
        training.steps_total = record["steps_total"]


def _train_point(record: Record, segment: int) -> dict[str, Any]:
    if "tokens_per_second" not in record:  # the dataset has samples without tokens
        record = {**record, "tokens_per_second": record.get("samples_per_second")}
    return _point(record, "step", "loss", "learning_rate", "tokens_per_second", "mfu", segment=segment)


def _point(record: Record, *names: str, **more: Any) -> dict[str, Any]:
    values = {name: _plain(record.get(name)) for name in names}
    return {**values, "unix_seconds": float(record["unix_seconds"]), **more}


def _plain(value: object) -> float | str | None:
    """Return a number or a text. A user's code can write any record, so other values become None."""
    if isinstance(value, str):
        return value
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300
    return value if is_number else None  # type: ignore[return-value]  # the comparison is false for NaN


def _resumes(segments: Sequence[_Segment]) -> Iterator[Resume]:
    for before, after in zip(segments, segments[1:], strict=False):
        assert after.start is not None  # only the first segment may be missing its start record
        resumed_from = after.start.get("resumed_from_step")
        downtime_seconds = None
        if before.steps and after.steps:
            downtime_seconds = round(float(after.steps[0]["unix_seconds"]) - float(before.steps[-1]["unix_seconds"]), 3)
        yield Resume(
            unix_seconds=float(after.start["unix_seconds"]),
            resumed_from_step=resumed_from,
            highest_step_before=before.highest_step,
            steps_lost=max(0, before.highest_step - (resumed_from or 0)),
            downtime_seconds=downtime_seconds,
        )
