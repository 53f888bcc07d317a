"""Pre-warm: pieces, order, rate, and resume."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from bootstrap.errors import StepError
from bootstrap.prewarm import reader
from bootstrap.prewarm.extents import PIECE_BYTES, Piece, file_extents, plan_pieces
from bootstrap.prewarm.reader import Prewarm, Progress
from bootstrap.prewarm.start import start_prewarm
from bootstrap.system import System
from tests.bootstrap.account import Account
from tests.bootstrap.test_steps import on_a_volume, real

REPOSITORY = Path(__file__).parent.parent.parent
MIB = 1024**2


def dataset(directory: Path, sizes: dict[str, int]) -> Path:
    directory.mkdir(parents=True)
    for name, size in sizes.items():
        (directory / name).write_bytes(os.urandom(size))
    (directory / "tokenizer.json").write_text("{}")
    shards = [{"file": name, "tokens": size // 2, "bytes": size, "blake3": "0"} for name, size in sizes.items()]
    index = {"splits": {"train": {"shards": shards}}, "tokenizer": {"file": "tokenizer.json", "sha256": "0"}}
    (directory / "dataset.json").write_text(json.dumps(index))
    return directory


class Reads:
    """Records reads instead of performing them; from offset `held_at` onward, waits for the gate."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, fails_at: int = -1, held_at: int = 2**60) -> None:
        self.offsets: list[int] = []
        self.gate = threading.Event()
        self.fails_at, self.held_at = fails_at, held_at
        monkeypatch.setattr(reader, "_read_piece", self._read)

    def _read(self, piece: Piece, buffer: object, descriptors: object) -> None:
        if piece.offset >= self.held_at:
            assert self.gate.wait(10)
        if piece.offset == self.fails_at:
            raise OSError(5, "Input/output error")
        self.offsets.append(piece.offset)


def make(root: Path, count: int, **settings: Any) -> Prewarm:
    pieces = [Piece(Path("/dev/x"), number * MIB, MIB) for number in range(count)]
    return Prewarm(pieces, system=System(), state=root / "state.json", **{"disk": "vol0a", "readers": 4, **settings})


def run(prewarm: Prewarm, first_bytes: int = 1) -> tuple[bool, list[Progress], list[Progress]]:
    first: list[Progress] = []
    progress: list[Progress] = []
    return prewarm.run(first_bytes=first_bytes, on_first=first.append, on_progress=progress.append), first, progress


def test_every_piece_is_read_once_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads(monkeypatch)
    complete, first, progress = run(make(tmp_path, 40, readers=1), 2 * MIB)
    assert complete and reads.offsets == [number * MIB for number in range(40)]
    assert len(first) == 1 and first[0].bytes_done >= 2 * MIB
    assert (progress[-1].bytes_done, progress[-1].remaining_seconds) == (40 * MIB, 0)


def test_a_resumed_prewarm_skips_pieces_of_the_same_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads(monkeypatch, held_at=20 * MIB)
    stopped = make(tmp_path, 40, readers=1)

    def stop(_: Progress) -> None:
        stopped.stop()
        reads.gate.set()

    assert not stopped.run(first_bytes=10 * MIB, on_first=stop, on_progress=lambda progress: None)
    done = len(reads.offsets)
    assert 10 <= done <= 21
    resumed = make(tmp_path, 40)
    assert 10 * MIB <= resumed.resumed_bytes == done * MIB
    assert run(resumed)[0] and sorted(reads.offsets) == [number * MIB for number in range(40)]
    assert make(tmp_path, 40).resumed_bytes == 40 * MIB
    assert make(tmp_path, 40, disk="vol0b").resumed_bytes == 0
    assert make(tmp_path, 39).resumed_bytes == 0
    (tmp_path / "state.json").write_text("{")
    assert make(tmp_path, 40).resumed_bytes == 0


def test_a_read_error_is_raised_and_later_pieces_do_not_count_as_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Reads(monkeypatch, fails_at=20 * MIB)
    with pytest.raises(OSError, match="Input/output error"):
        run(make(tmp_path, 40))
    assert make(tmp_path, 40).resumed_bytes <= 20 * MIB


def test_the_rate_limit_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Reads(monkeypatch)
    started = time.monotonic()
    run(make(tmp_path, 10, limit_bytes_per_second=40 * MIB))
    assert time.monotonic() - started >= 9 / 40  # the last of ten pieces starts after nine intervals


def test_adjacent_extents_are_merged_and_split_at_boundaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extents = {"a": [(4096, 8192), (12288, 4096)], "b": [(16384, PIECE_BYTES)], "c": [(0, 4096)], "d": None}
    monkeypatch.setattr("bootstrap.prewarm.extents.file_extents", lambda path: extents[path.name])
    (tmp_path / "d").write_bytes(bytes(100))
    disk = Path("/dev/x")
    assert plan_pieces([tmp_path / name for name in "abcd"], disk) == [
        Piece(disk, 4096, PIECE_BYTES - 4096),
        Piece(disk, PIECE_BYTES, 16384),
        Piece(disk, 0, 4096),
        Piece(tmp_path / "d", 0, 100),
    ]


def test_extents_exclude_holes(tmp_path: Path) -> None:
    sparse = tmp_path / "sparse"
    with sparse.open("wb") as stream:
        stream.write(os.urandom(8192))
        stream.seek(50 * MIB)
        stream.write(os.urandom(4096))
    extents = file_extents(sparse)
    if extents is None:
        pytest.skip("this file system does not report extents")
    assert sum(length for _, length in extents) < MIB


def test_files_are_read_if_the_disk_cannot_be(tmp_path: Path) -> None:
    """With sizes that are not multiples of the block size."""
    files = [tmp_path / str(size) for size in (0, 1, 4095, 4097, PIECE_BYTES, PIECE_BYTES + 5)]
    for path in files:
        path.write_bytes(bytes(int(path.name)))
    prewarm = Prewarm(plan_pieces(files, None), system=System(), state=tmp_path / "state", disk="x")
    complete, _, progress = run(prewarm)
    assert complete and progress[-1].bytes_done == sum(int(path.name) for path in files)


def events(root: Path) -> list[tuple[str, int | None]]:
    lines = [json.loads(line) for line in (root / "events.jsonl").read_text().splitlines()]
    return [(line["state"], line.get("bytes_done")) for line in lines if line["event"] == "prewarm"]


def test_the_boot_waits_only_for_the_first_bytes(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1")
    sizes = {"train-00000.bin": 3 * MIB, "train-00001.bin": 5000}
    folder = dataset(tmp_path / "mnt" / "datasets" / "words", sizes)
    context = on_a_volume(real(account, tmp_path / "root"), tmp_path / "mnt", warm=False)
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "node.json").write_text(json.dumps(context.node.to_json()))
    start_prewarm(context, folder)
    assert not (tmp_path / "root" / "events.jsonl").exists()
    context.uninitialized_mounts.add(str(tmp_path / "mnt"))
    start_prewarm(context, folder)
    context.system.kill_children()
    assert [state for state, _ in events(tmp_path / "root")][:2] == ["started", "first_read"]
    (folder / "train-00001.bin").unlink()
    with pytest.raises(StepError, match="No such file"):
        start_prewarm(context, folder)


def test_a_stopped_prewarm_resumes(account: Account, tmp_path: Path) -> None:
    folder = dataset(tmp_path / "words", {"train-00000.bin": 40 * MIB})
    root = tmp_path / "root"
    root.mkdir()
    (root / "node.json").write_text(json.dumps(account.node()))
    environment = {**os.environ, "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:1"}
    command = [sys.executable, "-m", "bootstrap", "prewarm", "--root", str(root), str(folder), "--first-mib", "1"]
    slow = subprocess.Popen(
        [*command, "--limit-mib-per-second", "4"], cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, text=True
    )
    assert slow.stdout is not None and json.loads(slow.stdout.readline()) == {"state": "first_read"}
    second = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=60)
    assert json.loads(second.stdout) == {"state": "another process is running"}
    slow.send_signal(signal.SIGTERM)
    slow.communicate(timeout=60)
    assert slow.returncode == 0 and events(root)[-1][0] == "stopped"
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    (started,) = [done for state, done in events(root)[3:] if state == "started"]
    assert started is not None and MIB <= started < 40 * MIB
    assert events(root)[-1][0] == "finished"


def test_invalid_options_are_reported_at_once(tmp_path: Path) -> None:
    options = ["--readers", "0", "--first-mib", "-1"]
    command = [sys.executable, "-m", "bootstrap", "prewarm", str(tmp_path), *options]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "--readers: 0" in done.stderr and "--first-mib: -1" in done.stderr
