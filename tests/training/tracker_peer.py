"""A program for an environment with the trackers: `tracker_peer.py TRACKER FOLDER` writes a run, and reads it again."""

from __future__ import annotations

import json
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bootstrap.documents.object_keys import is_tracking_file
from training.config.observation import ObservationConfig
from training.observe.sinks import Sink, open_sinks

LOSSES = ((1, 3.0), (2, 2.5), (3, 2.25), (2, 2.375), (3, 2.0))
WAIT_SECONDS = 60.0
HEADER_BYTES, BLOCK_BYTES = 7, 32768


def main(tracker: str, folder: Path) -> None:
    (sink,) = open_sinks(ObservationConfig.model_validate({tracker: True}), folder, 0)
    common = {"schema_version": 2, "unix_seconds": 1_800_000_000.5}
    sink.take({"record": "start", "step": 0, "world_size": 2, **common})
    for step, loss in LOSSES:
        sink.take({"record": "step", "step": step, "loss": loss, "mfu": None, "skipped": False, **common})
    sink.take({"record": "validation", "step": 3, "loss": 2.5, **common})
    written = wait_for_file(sink, folder, common)
    sink.close()
    found = read_wandb(folder) if tracker == "wandb" else read_mlflow(folder)
    outside = [path for path in Path.cwd().iterdir() if path.name in ("wandb", "mlruns")]
    result = {**found, "bytes_while_training": written, "bytes_outside": len(outside)}
    (folder / "result.json").write_text(json.dumps(result))


def wait_for_file(sink: Sink, folder: Path, common: dict[str, Any]) -> int:
    """Write records until some of them are in the files, which W&B writes in blocks of 32 KiB; return the bytes."""
    deadline = time.monotonic() + WAIT_SECONDS
    while (written := tracking_bytes(folder)) < 1000 and time.monotonic() < deadline:
        sink.take({"record": "ranks", "step": 3, "slowest_over_median": 1.5, **common})
        time.sleep(0.01)  # polling: the library's process writes the files
    return written


def tracking_bytes(folder: Path) -> int:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in files if is_tracking_file(path.relative_to(folder).as_posix()))


def read_wandb(folder: Path) -> dict[str, Any]:
    """Read the records of the offline run, as `wandb sync` does."""
    from wandb.proto import wandb_internal_pb2

    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    found: dict[str, Any] = {}
    for data in log_records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "run":
            found["name"] = record.run.display_name
        items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
        values = {name: json.loads(value) for name, value in items.items()}
        for name, value in values.items():
            if "/" in name:
                found.setdefault(name, []).append([values["step"], value])
    return found


def log_records(content: bytes) -> Iterator[bytes]:
    """Yield the records of a LevelDB log with W&B's header of seven bytes in its first block.

    Each part of a record has a header of seven bytes: checksum, length, and type (1: complete, 2: first, 3: middle,
    4: last). Parts do not cross the blocks of 32 KiB.
    Sources (2026-11): https://github.com/google/leveldb/blob/main/doc/log_format.md and
    https://github.com/wandb/wandb/tree/main/core/pkg/leveldb
    """
    assert content[:4] == b":W&B"
    position, parts = HEADER_BYTES, b""
    while position + HEADER_BYTES <= len(content):
        if BLOCK_BYTES - position % BLOCK_BYTES < HEADER_BYTES:  # padding
            position += BLOCK_BYTES - position % BLOCK_BYTES
            continue
        _, length, kind = struct.unpack_from("<IHB", content, position)
        position += HEADER_BYTES
        parts += content[position : position + length]
        position += length
        if kind in (1, 4):
            yield parts
            parts = b""


def read_mlflow(folder: Path) -> dict[str, Any]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient((folder / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("trainstack")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    found: dict[str, Any] = {"name": run.info.run_name}
    for name in run.data.metrics:
        found[name] = [[each.step, each.value] for each in client.get_metric_history(run.info.run_id, name)]
    return found


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
