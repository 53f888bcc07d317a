"""Reports the run's progress to users and tools: the first member writes `status.json` alongside the control
records."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from bootstrap.supervise.membership.control import ControlStore
from bootstrap.supervise.membership.records import Checkpoint, GenerationRecord, RunStatus

INTERVAL_SECONDS = 10.0
_LATEST = ("start", "step", "validation", "checkpoint", "reform", "result")
MAX_METRICS = 50
_METRIC = re.compile(r"[a-z][a-z0-9_]{0,39}")


class Progress:
    """The latest metric record of each kind in one generation. The user's code can write any record."""

    def __init__(self) -> None:
        self._records: dict[str, Mapping[str, Any]] = {}

    def note(self, record: Mapping[str, Any]) -> None:
        """Store a record if the status contains values of its kind."""
        if record.get("record") in _LATEST:
            kind = str(record["record"])
            self._records.pop(kind, None)  # the newest record is the last one
            self._records[kind] = record

    def integer(self, kind: str, key: str) -> int | None:
        """Return a count from the latest record of a kind, or None if it has no valid value."""
        value = self._records.get(kind, {}).get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None

    def number(self, kind: str, key: str) -> float | None:
        """Return a finite number from the latest record of a kind, or None if it has no valid value."""
        return _finite(self._records.get(kind, {}).get(key))

    def metrics(self) -> dict[str, float]:
        """Return the metrics of a `result` record, and bits per byte of the last validation."""
        bits = self.number("validation", "bits_per_byte")
        found = {} if bits is None else {"bits_per_byte": bits}
        given = self._records.get("result", {}).get("metrics")
        for name, value in list(given.items())[:MAX_METRICS] if isinstance(given, Mapping) else ():
            number = _finite(value)
            if number is not None and isinstance(name, str) and _METRIC.fullmatch(name):
                found[name] = number
        return found

    def step(self) -> int | None:
        """Return the newest known step. Not every step has a record, so a save can report a later step."""
        step = self.integer("step", "step")
        if step is None:
            step = self.integer("start", "step")
        saved = self.integer("checkpoint", "step")
        is_newest = next(reversed(self._records), "") == "checkpoint"
        return max(step, saved) if is_newest and step is not None and saved is not None else step

    def checkpoint(self) -> Checkpoint | None:
        """Return the newest durable checkpoint, including the one that the generation resumed from."""
        step, resumed = self.integer("checkpoint", "step"), self.integer("start", "resumed_from_step")
        if step is not None and step >= (resumed or 0):
            return Checkpoint(step, self.number("checkpoint", "unix_seconds"))
        return None if resumed is None else Checkpoint(resumed, None)


def _finite(value: Any) -> float | None:
    """Return a finite number, or None for any other value."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < 1e300 else None  # false for NaN


@dataclass(frozen=True)
class _Source:
    store: ControlStore
    record: GenerationRecord
    progress: Progress
    has_ended: bool = False


class StatusWriter:
    """Writes the status of the generation whose first member is this node. A failed write is retried later.

    After the generation has ended, its status is written one last time, with the last save.

    Args:
        unix_seconds: Function that returns the current Unix time.
    """

    def __init__(self, unix_seconds: Callable[[], float]) -> None:
        self._unix_seconds = unix_seconds
        self._lock = threading.Lock()
        self._writing = threading.Lock()  # an older status must not replace a newer one
        self._source: _Source | None = None

    def follow(self, store: ControlStore, record: GenerationRecord | None, progress: Progress) -> bool:
        """Set the source of the next status. Return True if the generation has changed.

        `record` is None unless this node is the first member of a generation.
        """
        source = None if record is None else _Source(store, record, progress)
        with self._lock:
            changed = source is not None and (self._source is None or self._source.record != source.record)
            self._source = source
        return changed

    def conclude(self) -> bool:
        """End the generation: only its last status remains to be written. Return True if this call ended it."""
        with self._lock:
            if self._source is None or self._source.has_ended:
                return False
            self._source = replace(self._source, has_ended=True)
        return True

    def check(self) -> None:
        """Write the status if this node is the first member.

        Raises:
            ControlStoreError: The bucket does not respond.
        """
        with self._writing:
            with self._lock:
                source = self._source
            if source is None:
                return
            source.store.report(self._status(source))
            with self._lock:
                if source.has_ended and self._source is source:
                    self._source = None

    def _status(self, source: _Source) -> RunStatus:
        record, progress = source.record, source.progress
        return RunStatus(
            run=source.store.run,
            run_digest=record.run_digest,
            generation=record.generation,
            members=tuple(member.instance_id for member in record.members),
            step=progress.step(),
            steps_total=progress.integer("start", "steps_total") or progress.integer("reform", "steps_total"),
            loss=progress.number("step", "loss"),
            validation_loss=progress.number("validation", "loss"),
            tokens_per_second=progress.number("step", "tokens_per_second"),
            step_seconds=progress.number("step", "step_seconds"),
            mfu=progress.number("step", "mfu"),
            checkpoint=progress.checkpoint(),
            unix_seconds=self._unix_seconds(),
            ended=source.has_ended,
            metrics=progress.metrics() or None,
        )
