"""Speed of the pre-warm on a volume with slow first reads, compared with `dd` and `fio` as documented by AWS.

``python -m benchmarks.prewarm`` (root, fio, FUSE) creates two ext4 volumes, one full and one 10% full. It reads each
volume with every tool in turn, with all blocks unread each time, and writes build/bench/prewarm.json. `dd` reads only
the first part of the volume, since its rate is constant and the rest would take minutes. The times include mapping
files to extents, but not mounting or starting interpreters.
Source of the commands: https://docs.aws.amazon.com/ebs/latest/userguide/initalize-volume.html (2026-11).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.servers.slow_volume import BLOCK_BYTES, SlowDisk, slow_disk
from bootstrap.prewarm.extents import plan_pieces
from bootstrap.prewarm.reader import READERS, Prewarm, Progress
from bootstrap.system import System

MIB = 1024**2
SHARD_BYTES = 64 * MIB
BATCH_BYTES = 256 * 1024
OUTPUT = Path("build/bench/prewarm.json")
TOOLS = ("fio", "dd", "mkfs.ext4", "losetup", "mount", "umount", "blockdev")


@dataclass(frozen=True)
class Figures:
    """Figures for one volume, as medians of the rounds.

    Attributes:
        volume_mib: Size of the volume.
        dataset_mib: Size of its files.
        prewarm_seconds: Time to load every file.
        prewarm_mib_per_second: Size of the files divided by `prewarm_seconds`.
        fio_seconds: Time that fio takes to read the complete volume.
        fio_mib_per_second: Size of the volume divided by `fio_seconds`.
        dd_mib_per_second: Rate of dd on the first part of the volume.
        first_batch_seconds: Time to load the first shard and read a batch from it through the file system.
        unwarmed_batch_seconds: Time to read the same batch without a pre-warm.
    """

    volume_mib: int
    dataset_mib: float
    prewarm_seconds: float
    prewarm_mib_per_second: float
    fio_seconds: float
    fio_mib_per_second: float
    dd_mib_per_second: float
    first_batch_seconds: float
    unwarmed_batch_seconds: float


def measure(folder: Path, volume_mib: int, filled: float, delay_seconds: float, dd_mib: int, rounds: int) -> Figures:
    """Measure all tools on a new volume; `filled` is the used share of the volume."""
    backing = folder / f"volume-{filled:g}"
    shards = _fill(backing, volume_mib, filled)
    dataset_mib = sum(size for _, size in shards) / MIB
    names = [name for name, _ in shards]
    fio, dd, prewarm, first, unwarmed = [], [], [], [], []
    with slow_disk(backing, delay_seconds) as disk:
        for number in range(rounds):
            _print(f"{filled:.0%} full, round {number + 1} of {rounds}")
            fio.append(_fio(disk))
            all_seconds, batch_seconds = _prewarm(disk, folder, names)
            prewarm.append(all_seconds)
            first.append(batch_seconds)
            dd.append(dd_mib / _dd(disk, dd_mib))
            unwarmed.append(_unwarmed(disk, folder, names[0]))
    backing.unlink()
    median = statistics.median
    return Figures(
        volume_mib=volume_mib,
        dataset_mib=round(dataset_mib, 1),
        prewarm_seconds=round(median(prewarm), 3),
        prewarm_mib_per_second=round(dataset_mib / median(prewarm), 1),
        fio_seconds=round(median(fio), 3),
        fio_mib_per_second=round(volume_mib / median(fio), 1),
        dd_mib_per_second=round(median(dd), 1),
        first_batch_seconds=round(median(first), 3),
        unwarmed_batch_seconds=round(median(unwarmed), 3),
    )


def _fill(backing: Path, volume_mib: int, filled: float) -> list[tuple[str, int]]:
    """Create an ext4 file system with shards in one directory; return their names and sizes."""
    backing.touch()
    os.truncate(backing, volume_mib * MIB)
    _run("mkfs.ext4", "-q", "-m", "0", str(backing))
    mount = backing.with_suffix(".filled")
    mount.mkdir()
    _run("mount", "-o", "loop", str(backing), str(mount))
    try:
        space = os.statvfs(mount)
        room = min(int(filled * volume_mib * MIB), space.f_bavail * space.f_frsize - 16 * MIB)
        block, shards = os.urandom(MIB), []
        (mount / "words").mkdir()
        for number in range(-(-room // SHARD_BYTES)):
            size = min(SHARD_BYTES, room - number * SHARD_BYTES) // MIB * MIB
            with (mount / "words" / f"train-{number:05d}.bin").open("wb") as stream:
                for _ in range(size // MIB):
                    stream.write(block)
            shards.append((f"train-{number:05d}.bin", size))
    finally:
        _run("umount", str(mount))
    return [shard for shard in shards if shard[1]]


def _fio(disk: SlowDisk) -> float:
    disk.forget()
    options = ["--rw=read", "--bs=1M", "--iodepth=32", "--ioengine=libaio", "--direct=1", "--name=volume-initialize"]
    command = ["fio", f"--filename={disk.device}", *options, "--readonly", "--output-format=json"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return float(found["jobs"][0]["read"]["runtime"]) / 1000


def _dd(disk: SlowDisk, count_mib: int) -> float:
    disk.forget()
    command = ["dd", f"if={disk.device}", "of=/dev/null", "bs=1M", f"count={count_mib}"]
    output = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}
    ).stderr
    found = re.search(r"copied, ([0-9.e-]+) s", output)
    if found is None:
        raise SystemExit(f"unexpected output of dd: {output}")
    return float(found[1])


def _prewarm(disk: SlowDisk, folder: Path, names: list[str]) -> tuple[float, float]:
    """Return the seconds until all blocks are loaded, and until the first shard is loaded and a batch is read."""
    first: list[float] = []
    with _mounted(disk, folder) as dataset:
        started = time.monotonic()

        def read_batch(_: Progress) -> None:
            _read_batch(dataset / names[0])
            first.append(time.monotonic() - started)

        pieces = plan_pieces([dataset / name for name in names], disk.device)
        state = folder / "state.json"
        state.unlink(missing_ok=True)
        work = Prewarm(pieces, system=System(), state=state, disk="benchmark")
        work.run(first_bytes=SHARD_BYTES, on_first=read_batch, on_progress=lambda progress: None)
        return time.monotonic() - started, first[0]


def _unwarmed(disk: SlowDisk, folder: Path, name: str) -> float:
    with _mounted(disk, folder) as dataset:
        started = time.monotonic()
        _read_batch(dataset / name)
        return time.monotonic() - started


def _read_batch(path: Path) -> None:
    """Read a batch as shuffled training does, in windows spread over the shard."""
    size, window = path.stat().st_size, 4096
    with path.open("rb", buffering=0) as stream:
        for number in range(BATCH_BYTES // window):
            stream.seek(number * 7919 * window % (size - window) // window * window)
            stream.read(window)


@contextmanager
def _mounted(disk: SlowDisk, folder: Path) -> Iterator[Path]:
    mount = folder / "mounted"
    mount.mkdir(exist_ok=True)
    disk.forget()
    _run("mount", "-o", "ro,noload", str(disk.device), str(mount))
    try:
        yield mount / "words"
    finally:
        _run("umount", str(mount))


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


def _print(line: str) -> None:
    sys.stderr.write(line + "\n")


def judge(full: Figures, tenth: Figures) -> dict[str, dict[str, float | bool]]:
    """Return each ratio with its bound, and whether the bound is met."""
    ratios = {
        "full_speed_over_fio": (full.prewarm_mib_per_second / full.fio_mib_per_second, 0.95, True),
        "full_speed_over_dd": (full.prewarm_mib_per_second / full.dd_mib_per_second, 10.0, True),
        "tenth_time_over_fio": (tenth.prewarm_seconds / tenth.fio_seconds, 0.15, False),
    }
    return {
        name: {"ratio": round(ratio, 3), "bound": bound, "holds": ratio >= bound if at_least else ratio <= bound}
        for name, (ratio, bound, at_least) in ratios.items()
    }


def main(arguments: list[str] | None = None) -> int:
    """Measure, write the figures, and return 1 if a bound is not met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prewarm", description=__doc__)
    parser.add_argument("--volume-mib", type=int, default=2048, help="size of each volume")
    parser.add_argument("--delay-milliseconds", type=float, default=100, help="latency of a first read (512 KiB)")
    parser.add_argument("--dd-mib", type=int, default=48, help="MiB that dd reads")
    parser.add_argument("--rounds", type=int, default=2, help="rounds for each volume")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args(arguments)
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing or os.geteuid() != 0:
        parser.error(f"requires root and the programs {', '.join(TOOLS)} (missing: {', '.join(missing) or 'none'})")
    delay = options.delay_milliseconds / 1000
    with tempfile.TemporaryDirectory(prefix="prewarm-") as folder:
        full, tenth = (
            measure(Path(folder), options.volume_mib, filled, delay, options.dd_mib, options.rounds)
            for filled in (1.0, 0.1)
        )
    verdict = judge(full, tenth)
    setting = {"first_touch_seconds": delay, "block_bytes": BLOCK_BYTES, "readers": READERS, "rounds": options.rounds}
    figures = {"setting": setting, "full": asdict(full), "tenth": asdict(tenth), "verdict": verdict}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    sys.stdout.write(json.dumps(figures, indent=2) + "\n")
    return 0 if all(each["holds"] for each in verdict.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
