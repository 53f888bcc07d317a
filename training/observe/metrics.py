"""A run's metrics: `metrics.jsonl` has one JSON object per line. Rank 0 writes it and flushes every line.

Each record has a `schema_version`, because several starts, and several versions, may append to one file.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from training.errors import ConfigurationError, TrainingError
from training.observe.sinks import Sink

SCHEMA_VERSION = 2
"""Version of the records. Version 2 uses the config's new key names (`micro_batch_size`, ...). Version 1 records have
no `schema_version`."""

Record = Mapping[str, Any]


class MetricsFile:
    """Appends records to a file.

    Args:
        path: file to append to; None discards all records, as on ranks other than 0.
    """

    def __init__(self, path: Path | None) -> None:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._file = None if path is None else path.open("a", encoding="utf-8")
        self._sinks: list[Sink] = []

    @property
    def is_open(self) -> bool:
        """True on the rank that writes the records."""
        return self._file is not None

    def move(self, path: Path | None) -> None:
        """Write all further records to another file; None discards them. The sinks of this process end."""
        self.close()
        if self._file is not None:
            self._file.close()
        self._file = None if path is None else path.open("a", encoding="utf-8")
        self._sinks = []

    def add_sinks(self, sinks: Iterable[Sink]) -> None:
        """Also pass all further records to these sinks."""
        self._sinks += sinks

    def write(self, record: str, **values: Any) -> None:
        """Append one record. Non-finite numbers become null, because JSON cannot represent them.

        Raises:
            TrainingError: The file cannot be written.
        """
        if self._file is None:
            return
        document = {"record": record, "schema_version": SCHEMA_VERSION, **values, "unix_seconds": time.time()}
        finite = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in document.items()
        }
        try:
            self._file.write(json.dumps(finite) + "\n")
            self._file.flush()
        except OSError as error:
            raise TrainingError(
                f"{self._file.name}: cannot be written: {error.strerror}; free space or correct its permissions"
            ) from error
        for sink in self._sinks:
            sink.take(finite)

    def close(self) -> None:
        """Close the sinks. The file is already complete."""
        for sink in self._sinks:
            sink.close()


def read_records(path: Path) -> list[Record]:
    """Read a run's metrics from its directory, or from the file itself. An incomplete last line is ignored.

    Raises:
        ConfigurationError: The file cannot be read, is not JSON, or has another schema version.
    """
    file = path / "metrics.jsonl" if path.is_dir() else path
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigurationError(
            [f"{file}: cannot be read ({error.strerror}); specify a run directory, or its metrics.jsonl"]
        ) from error
    records: list[Record] = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except ValueError as error:
            if number < len(lines):
                raise ConfigurationError([f"{file}: line {number} is not JSON ({error}); remove it"]) from error
            continue
        version = record.get("schema_version", 1) if isinstance(record, dict) else None
        if version != SCHEMA_VERSION:
            raise ConfigurationError(
                [
                    f"{file}: line {number} has schema_version {version}, expected {SCHEMA_VERSION}; read it with the "
                    "release that wrote it"
                ]
            )
        records.append(record)
    return records
