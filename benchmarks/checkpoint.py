"""Measures what a save costs and what a restore takes, beside torch's own ways, and prints each bound as met or not.

State: GPT-2 124M with AdamW in fp32, about 1.5 GB, after real optimizer steps. Every method syncs what it writes. All
times are medians of one run on one machine, the methods taking turns; so only their ratios mean anything, and only on a
machine that has nothing else to do. The S3 server is SeaweedFS on the loopback network.

Exit code: 0 if every bound is met, 1 if not; the report is written in both cases.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import checkpoint_measures as measures
from benchmarks.checkpoint_methods import Dcp, Method, OwnWriter, TorchSave
from benchmarks.checkpoint_s3 import BUCKET
from benchmarks.checkpoint_state import Workload
from benchmarks.goodput.costs import GOODPUT_KEY
from benchmarks.local_s3 import local_s3

Results = dict[str, Any]


@dataclass(frozen=True)
class Bound:
    """One promise: a number of the results, and the most that it may be."""

    name: str
    most: float
    value: Callable[[Results], float]


BOUNDS = (
    Bound("blocked / DCP async", 0.35, lambda r: _blocked(r, "own") / _blocked(r, "dcp async thread")),
    Bound("blocked / DCP async with kept stager", 1.1, lambda r: _blocked(r, "own") / _blocked(r, "dcp kept stager")),
    Bound("blocked / torch.save", 0.1, lambda r: _blocked(r, "own") / _blocked(r, "torch.save")),
    Bound(
        "training time lost / DCP with kept stager, two cores for both",
        1.25,
        lambda r: r["same cores"]["own"]["lost_seconds"] / r["same cores"]["dcp kept stager"]["lost_seconds"],
    ),
    Bound("step / normal step, writer on a core of its own", 1.1, lambda r: r["own core"]["own"]["step_ratio"]),
    Bound(
        "durable / DCP, writer on a core of its own",
        2.0,
        lambda r: r["own core"]["own"]["durable_seconds"] / r["own core"]["dcp kept stager"]["durable_seconds"],
    ),
    Bound("peak extra memory / state", 1.3, lambda r: r["peak_extra_bytes"] / r["state_bytes"]),
    Bound("stored / raw, dense", 0.84, lambda r: r["stored"]["dense"]),
    Bound("stored / raw, 10 of 12 blocks frozen", 0.60, lambda r: r["stored"]["10 of 12 blocks frozen"]),
    Bound("stored / raw, all but the head frozen", 0.25, lambda r: r["stored"]["all but the head frozen"]),
    Bound("stored / raw, best equal to last", 0.01, lambda r: r["stored"]["best equal to last"]),
    Bound(
        "restore, uncompressed / torch.load(mmap) and copy",
        2.5,
        lambda r: r["restore"]["own uncompressed"] / r["restore"]["torch.load(mmap) and copy"],
    ),
    Bound(
        "restore, compressed / torch.load", 1.0, lambda r: r["restore"]["own compressed"] / r["restore"]["torch.load"]
    ),
    Bound("restore from S3 / plain download", 2.0, lambda r: r["s3"]["restore"] / r["s3"]["plain download"]),
)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, write the report; return the exit code."""
    options = _parser().parse_args(arguments)
    logging.getLogger("torch.distributed").setLevel(logging.ERROR)
    # Ended from outside, it still removes its gigabytes and stops its server.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    report = _Report(options.output)
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
    """What has been measured, written after every part, so that a run that is cut off leaves what it has."""

    def __init__(self, path: Path) -> None:
        self.results: Results = {}
        self._path = path
        self._began = time.monotonic()

    def say(self, what: str) -> None:
        """Keep what there is, and tell what comes next."""
        self.write()
        sys.stderr.write(f"[{time.monotonic() - self._began:5.0f} s] {what}\n")

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
    parser.add_argument("--repeats", type=int, default=3, help="measured saves of each method (default 3)")
    parser.add_argument(
        "--preset", default="gpt2", choices=("demo", "gpt2"), help="demo: a tenth, to try the benchmark"
    )
    parser.add_argument("--scratch", type=Path, help="folder on the disk to be measured (default: the temporary one)")
    parser.add_argument("--no-s3", action="store_true", help="leave the S3 part out")
    parser.add_argument(
        "--output", type=Path, default=Path("build/bench/checkpoint.json"), help="where the report goes"
    )
    return parser


def _measure(folder: Path, options: argparse.Namespace, threads: int, report: _Report) -> None:
    report.say("building the state with real optimizer steps")
    workload = Workload(options.preset, threads)
    results = report.results
    results["machine"] = {"cores": threads, "platform": platform.platform(), "torch": str(torch.__version__)}
    results["load_average_at_start"] = os.getloadavg()[0]
    results["repeats"] = options.repeats
    results["state_bytes"] = workload.state_bytes()
    report.say("memory and stored bytes")
    first = OwnWriter(workload, str(folder / "stored"), threads)
    results["peak_extra_bytes"] = measures.peak_memory(first.save)
    results["stored"] = measures.stored_bytes(workload, first)
    report.say("restore")
    results["restore"] = {"own compressed": measures.restore(first, workload, options.repeats)}
    first.close()
    shutil.rmtree(folder / "stored")
    _measure_saves(folder, workload, threads, options.repeats, report)
    if not options.no_s3:
        report.say("S3")
        results["s3"] = _measure_s3(folder, workload, threads, options.repeats)
        results[GOODPUT_KEY] = _goodput(results)
    report.say("done")


def _measure_saves(folder: Path, workload: Workload, threads: int, repeats: int, report: _Report) -> None:
    results, say = report.results, report.say
    methods: dict[str, Method] = {
        "own": OwnWriter(workload, str(folder / "own"), threads),
        "torch.save": TorchSave(workload, _made(folder / "torch")),
        "dcp save": Dcp(workload, _made(folder / "save"), "save"),
        "dcp async thread": Dcp(workload, _made(folder / "thread"), "async thread"),
        "dcp kept stager": Dcp(workload, _made(folder / "stager"), "async kept stager"),
        "dcp async process": Dcp(workload, _made(folder / "process"), "async process"),
    }
    say(f"saves: {', '.join(methods)}")
    results["saves"] = measures.saves(workload, methods, repeats)
    results["restore"] |= measures.torch_restore(folder / "torch" / "state.pt", workload, repeats)
    rivals = {name: methods[name] for name in ("own", "dcp kept stager")}
    say("training and saving on the same cores")
    results["same cores"] = measures.contention(workload, rivals, repeats)
    for name in methods.keys() - {"dcp kept stager"}:
        methods[name].close()
    say("training on one core, the writer on another")
    torch.set_num_threads(max(1, threads - 1))
    rivals["own"] = OwnWriter(workload, str(folder / "pinned"), max(1, threads - 1), compress=True)
    results["own core"] = measures.contention(workload, rivals, repeats)
    torch.set_num_threads(threads)
    for method in rivals.values():
        method.close()
    say("restore of an uncompressed store")
    plain = OwnWriter(workload, str(folder / "plain"), threads, compress=False)
    plain.save()
    results["restore"]["own uncompressed"] = measures.restore(plain, workload, repeats)
    plain.close()


def _measure_s3(folder: Path, workload: Workload, threads: int, repeats: int) -> dict[str, float]:
    with local_s3(folder / "s3", BUCKET):
        writer = OwnWriter(workload, f"s3://{BUCKET}/run", threads)
        try:
            return {
                "save_durable_seconds": measures.durable(writer, workload, repeats),
                **measures.s3_restore(writer, workload, repeats),
            }
        finally:
            writer.close()


def _goodput(results: Results) -> dict[str, float]:
    """What the replay of spot traces needs: saving competes with training, and the store is S3."""
    return {
        "blocked_seconds": results["same cores"]["own"]["lost_seconds"],
        "durable_seconds": results["s3"]["save_durable_seconds"],
        "restore_seconds": results["s3"]["restore"],
        "synchronous_seconds": results["saves"]["torch.save"]["durable_seconds"],
        "other_blocked_seconds": results["same cores"]["dcp kept stager"]["lost_seconds"],
        "other_durable_seconds": results["same cores"]["dcp kept stager"]["durable_seconds"],
    }


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _blocked(results: Results, name: str) -> float:
    seconds: float = results["saves"][name]["blocked_seconds"]
    return seconds


def _print(results: Results) -> bool:
    """Print the table and add it to the results; return whether every bound is met."""
    sys.stdout.write(f"state {results['state_bytes'] / 1e9:.2f} GB; medians of {results['repeats']}\n")
    for name, row in results["saves"].items():
        sys.stdout.write(
            f"  {name:<20} blocked {row['blocked_seconds']:7.3f} s   durable {row['durable_seconds']:7.2f} s\n"
        )
    results["bounds"] = []
    for bound in BOUNDS:
        if bound.name.startswith("restore from S3") and "s3" not in results:
            continue
        value = bound.value(results)
        met = value <= bound.most
        results["bounds"].append({"name": bound.name, "value": value, "most": bound.most, "met": met})
        sys.stdout.write(
            f"  {'met    ' if met else 'NOT MET'} {bound.name:<62} {value:6.3f} (at most {bound.most:g})\n"
        )
    return all(bound["met"] for bound in results["bounds"])


if __name__ == "__main__":
    sys.exit(main())
