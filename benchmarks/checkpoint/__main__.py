"""Measures the cost of saves and restores, compares it with torch's methods, and checks it against bounds.

State: GPT-2 124M with AdamW in fp32, about 1.5 GB, after real optimizer steps. Every method syncs its files. The
methods are interleaved in rounds on one machine. Only the ratios of times are therefore meaningful, and only on an
otherwise idle machine. Each bound applies to the median ratio over the rounds; the range of the ratios is also printed.
The S3 server is SeaweedFS on the loopback network. Except for the restores, which are short and vary most, no part
begins a round after its share of `--minutes` has elapsed.

Apart from noise, the ratios depend on the following:

- Training time lost on shared cores is CPU time: torch's methods copy and write, and this project also hashes (0.3 s
  per GB) and compresses (2 s per GB). The writer stops compressing while its threads wait for a core.
- The step time with a writer on its own core is above 1 if the two cores are hardware threads of one core, because they
  share execution units and caches; the report states whether they are.
- Durable times depend on the disk, and on pages of earlier saves that the kernel is still writing, so each measurement
  starts with a sync.

Exit code: 0 if every bound is met, 1 if not; the report is written in both cases.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import platform
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.checkpoint import measures
from benchmarks.checkpoint.methods import Dcp, Method, OwnWriter, TorchSave
from benchmarks.checkpoint.s3 import BUCKET
from benchmarks.checkpoint.small_tensors import LIMIT_SECONDS, blocked_seconds
from benchmarks.checkpoint.state import Workload
from benchmarks.goodput.costs import GOODPUT_KEY
from benchmarks.servers.local_s3 import local_s3

Results = dict[str, Any]
RESTORES = measures.Limit(rounds=7, until_seconds=math.inf)


@dataclass(frozen=True)
class Bound:
    """An upper bound on a value computed from the results, or on its median if there is one value per round."""

    name: str
    limit: float
    value: Callable[[Results], float | list[float]]


BOUNDS = (
    Bound("blocked / DCP async", 0.35, lambda r: _ratios(r, "saves", "dcp async thread", "blocked_seconds")),
    Bound(
        "blocked / DCP async with kept stager",
        1.1,
        lambda r: _ratios(r, "saves", "dcp kept stager", "blocked_seconds"),
    ),
    Bound("blocked / torch.save", 0.1, lambda r: _ratios(r, "saves", "torch.save", "blocked_seconds")),
    Bound(
        "training time lost / DCP with kept stager, two cores for both",
        1.25,
        lambda r: _ratios(r, "same cores", "dcp kept stager", "lost_seconds"),
    ),
    Bound("step / normal step, writer on its own core", 1.1, lambda r: r["own core"]["own"]["step_ratio"]),
    Bound(
        "durable / DCP, writer on its own core",
        2.0,
        lambda r: _ratios(r, "own core", "dcp kept stager", "durable_seconds"),
    ),
    Bound("blocked seconds, 100,000 tensors", LIMIT_SECONDS, lambda r: max(r["small_tensors"]["blocked_seconds"])),
    Bound("peak extra memory / state", 1.3, lambda r: r["peak_extra_bytes"] / r["state_bytes"]),
    Bound("stored / raw, dense", 0.84, lambda r: r["stored"]["dense"]),
    Bound("stored / raw, 10 of 12 blocks frozen", 0.60, lambda r: r["stored"]["10 of 12 blocks frozen"]),
    Bound("stored / raw, all but the head frozen", 0.25, lambda r: r["stored"]["all but the head frozen"]),
    Bound("stored / raw, best equal to last", 0.01, lambda r: r["stored"]["best equal to last"]),
    Bound(
        "restore, uncompressed / torch.load(mmap) and copy",
        2.5,
        lambda r: _quotients(r["restore"]["own uncompressed"], r["restore"]["torch.load(mmap) and copy"]),
    ),
    Bound(
        "restore, compressed / torch.load",
        1.0,
        lambda r: _quotients(r["restore"]["own compressed"], r["restore"]["torch.load"]),
    ),
    Bound("restore from S3 / plain download", 2.0, lambda r: _quotients(r["s3"]["restore"], r["s3"]["plain download"])),
)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print and write the report, and return the exit code."""
    options = _parser().parse_args(arguments)
    logging.getLogger("torch.distributed").setLevel(logging.ERROR)
    # On SIGTERM, also remove the large files and stop the server.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    report = _Report(options.output, options.rounds, options.minutes)
    folder = Path(tempfile.mkdtemp(prefix="checkpoint-benchmark-", dir=options.scratch))
    try:
        _measure(folder, options, min(2, len(os.sched_getaffinity(0))), report)
    finally:
        shutil.rmtree(folder)
    met = _print(report.results)
    report.write()
    sys.stdout.write(f"{options.output}\n")
    return 0 if met else 1


class _Report:
    """The results, written after every part, so that an interrupted run leaves a partial report."""

    def __init__(self, path: Path, rounds: int, minutes: float) -> None:
        self.results: Results = {}
        self._path = path
        self._rounds, self._minutes = rounds, minutes
        self._began = time.monotonic()

    def limit(self, share: float) -> measures.Limit:
        """Return the limit for a part that should end at this share of the benchmark's time."""
        return measures.Limit(self._rounds, self._began + share * self._minutes * 60)

    def begin(self, part: str) -> None:
        """Write the results so far, and log which benchmark runs next."""
        self.write()
        sys.stderr.write(f"[{time.monotonic() - self._began:5.0f} s] {part}\n")

    def write(self) -> None:
        """Write the report."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self.results, indent=2) + "\n", encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.checkpoint",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="number of rounds; each round saves with every method (default 5)"
    )
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="time after which each part measures only 3 rounds (default 10)"
    )
    parser.add_argument(
        "--preset", default="gpt2", choices=("demo", "gpt2"), help="`demo` is a tenth of the size, for a quick trial"
    )
    parser.add_argument("--scratch", type=Path, help="directory on the disk to measure (default: a temporary one)")
    parser.add_argument("--no-s3", action="store_true", help="skip the S3 part")
    parser.add_argument("--output", type=Path, default=Path("build/bench/checkpoint.json"), help="path of the report")
    return parser


def _measure(folder: Path, options: argparse.Namespace, threads: int, report: _Report) -> None:
    report.begin("building the state with real optimizer steps")
    workload = Workload(options.preset, threads)
    results = report.results
    results["machine"] = {
        "cores": threads,
        "share_a_core": _share_a_core(),
        "platform": platform.platform(),
        "torch": str(torch.__version__),
    }
    results["load_average_at_start"] = os.getloadavg()[0]
    results["state_bytes"] = workload.state_bytes()
    report.begin("memory and stored bytes")
    first = OwnWriter(workload, str(folder / "stored"), threads)
    results["peak_extra_bytes"] = measures.peak_memory(first.save)
    results["stored"] = measures.stored_bytes(workload, first)
    first.close()
    shutil.rmtree(folder / "stored")
    _measure_saves(folder, workload, threads, report)
    report.begin("100,000 small tensors")
    small = blocked_seconds()
    results["small_tensors"] = {"blocked_seconds": [small.first, small.later]}
    if not options.no_s3:
        report.begin("S3")
        results["s3"] = _measure_s3(folder, workload, threads, report.limit(1.0))
        results[GOODPUT_KEY] = _goodput(results)
    report.begin("done")


def _measure_saves(folder: Path, workload: Workload, threads: int, report: _Report) -> None:
    results, begin = report.results, report.begin
    methods: dict[str, Method] = {
        "own": OwnWriter(workload, str(folder / "own"), threads),
        "torch.save": TorchSave(workload, _created(folder / "torch")),
        "dcp save": Dcp(workload, _created(folder / "save"), "save"),
        "dcp async thread": Dcp(workload, _created(folder / "thread"), "async thread"),
        "dcp kept stager": Dcp(workload, _created(folder / "stager"), "async kept stager"),
        "dcp async process": Dcp(workload, _created(folder / "process"), "async process"),
    }
    begin(f"saves: {', '.join(methods)}")
    results["saves"] = measures.saves(workload, methods, report.limit(0.45))
    rivals = {name: methods[name] for name in ("own", "dcp kept stager")}
    begin("training and saving on the same cores")
    results["same cores"] = measures.contention(workload, rivals, report.limit(0.65))
    for name in methods.keys() - {"dcp kept stager"}:
        methods[name].close()
    begin("training and writer on separate cores")
    torch.set_num_threads(max(1, threads - 1))
    rivals["own"] = OwnWriter(workload, str(folder / "pinned"), max(1, threads - 1), compress=True)
    results["own core"] = measures.contention(workload, rivals, report.limit(0.8))
    torch.set_num_threads(threads)
    for method in rivals.values():
        method.close()
    begin("restores")
    results["restore"] = _measure_restores(folder, workload, threads, RESTORES)


def _measure_restores(folder: Path, workload: Workload, threads: int, limit: measures.Limit) -> measures.Rounds:
    TorchSave(workload, _created(folder / "restored")).begin()
    backends = {}
    for name, compress in (("compressed", True), ("uncompressed", False)):
        writer = OwnWriter(workload, str(folder / name), threads, compress)
        writer.save()
        writer.close()
        backends[name] = writer.backend
    os.sync()
    return measures.restores(backends, folder / "restored" / "state.pt", workload, limit)


def _measure_s3(folder: Path, workload: Workload, threads: int, limit: measures.Limit) -> measures.Rounds:
    with local_s3(folder / "s3", BUCKET):
        writer = OwnWriter(workload, f"s3://{BUCKET}/run", threads)
        try:
            return {
                "save_durable_seconds": measures.durable(writer, workload, limit),
                **measures.s3_restore(writer, workload, limit),
            }
        finally:
            writer.close()


def _goodput(results: Results) -> dict[str, float]:
    """Return the input for replaying spot traces, where saves compete with training and the store is S3."""
    return {
        "blocked_seconds": statistics.median(results["same cores"]["own"]["lost_seconds"]),
        "durable_seconds": statistics.median(results["s3"]["save_durable_seconds"]),
        "restore_seconds": statistics.median(results["s3"]["restore"]),
        "synchronous_seconds": statistics.median(results["saves"]["torch.save"]["durable_seconds"]),
        "other_blocked_seconds": statistics.median(results["same cores"]["dcp kept stager"]["lost_seconds"]),
        "other_durable_seconds": statistics.median(results["same cores"]["dcp kept stager"]["durable_seconds"]),
    }


def _created(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _ratios(results: Results, part: str, other: str, figure: str) -> list[float]:
    """Return this project's value divided by another method's, in each round."""
    return _quotients(results[part]["own"][figure], results[part][other][figure])


def _quotients(ours: list[float], theirs: list[float]) -> list[float]:
    """Return the quotients of two methods' values, for the rounds that both parts ran."""
    return [one / two for one, two in zip(ours, theirs, strict=False)]


def _share_a_core() -> bool | None:
    """Return True if this process's first two cores are hardware threads of one core; None if the kernel hides it."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    paths = [Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list") for core in cores]
    try:
        siblings = [path.read_text(encoding="ascii") for path in paths]
    except OSError:
        return None
    return len(siblings) == 2 and siblings[0] == siblings[1]


def _spread(rounds: list[float]) -> str:
    """Return the median, the range and the number of rounds."""
    return f"{statistics.median(rounds):.3f} ({min(rounds):.3f} to {max(rounds):.3f}, {len(rounds)} rounds)"


def _print(results: Results) -> bool:
    """Print the table and add it to the results; return True if every bound is met."""
    machine = results["machine"]
    sys.stdout.write(
        f"state {results['state_bytes'] / 1e9:.2f} GB; {machine['cores']} cores, hardware threads of one core: "
        f"{machine['share_a_core']}; load average at the start {results['load_average_at_start']:.1f}\n"
    )
    for part, rows in ((part, results[part]) for part in ("saves", "same cores", "own core")):
        for name, row in rows.items():
            figures = "   ".join(f"{figure} {_spread(row[figure])}" for figure in sorted(row))
            sys.stdout.write(f"  {part:<10} {name:<18} {figures}\n")
    for name, seconds in results["restore"].items():
        sys.stdout.write(f"  {'restore':<10} {name:<26} seconds {_spread(seconds)}\n")
    for name, seconds in results.get("s3", {}).items():
        sys.stdout.write(f"  {'s3':<10} {name:<26} seconds {_spread(seconds)}\n")
    results["bounds"] = []
    for bound in BOUNDS:
        if bound.name.startswith("restore from S3") and "s3" not in results:
            continue
        found = bound.value(results)
        rounds = found if isinstance(found, list) else [found]
        value = statistics.median(rounds)
        met = value <= bound.limit
        results["bounds"].append(
            {"name": bound.name, "value": value, "limit": bound.limit, "met": met, "range": [min(rounds), max(rounds)]}
        )
        spread = f", {min(rounds):.3f} to {max(rounds):.3f}" if len(rounds) > 1 else ""
        sys.stdout.write(
            f"  {'met    ' if met else 'NOT MET'} {bound.name:<62} {value:6.3f} (at most {bound.limit:g}{spread})\n"
        )
    return all(bound["met"] for bound in results["bounds"])


if __name__ == "__main__":
    sys.exit(main())
