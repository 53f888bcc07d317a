"""Speed of staging from S3 to disk, compared with the defaults of aws-cli and s5cmd, on a SeaweedFS server.

``python -m benchmarks.staging`` writes build/bench/staging.json. Each tool downloads one large object and 2,000 small
objects, then downloads them again unchanged and with 1% changed. For both kinds of objects, the tool is also killed
(SIGKILL) halfway and started again. The tools are interleaved for several rounds; each speed is the median over the
rounds. S3 serves 85 to 90 MB/s per request, after a latency of 100 to 200 ms. A proxy limits each connection to a lower
rate and a shorter latency, so that this machine can serve many connections. The large object is also downloaded without
the proxy. The times for staging include hashing every byte, which the other tools do not do. They exclude interpreter
startup, since boot stages data in its own process.
Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance-guidelines.html (2026-11).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
from blake3 import blake3

from benchmarks.servers.local_s3 import local_s3
from benchmarks.servers.paced_proxy import paced
from bootstrap.aws import Aws
from bootstrap.boot_steps.staging import stage_dataset
from bootstrap.context import Context
from bootstrap.documents import NodeDocument, RunDocument
from bootstrap.documents.decoding import SCHEMA_VERSION
from bootstrap.events.log import EventLog
from bootstrap.imds import InstanceMetadata
from bootstrap.layout import Layout
from bootstrap.system import System

MIB = 1024**2
BUCKET, REGION = "datasets", "us-east-1"
OUTPUT = Path("build/bench/staging.json")
KILL_AT = 0.5
SMALL_BYTES = 256 * 1024
Tool = Callable[[str, Path], list[str]]


@dataclass(frozen=True)
class Download:
    """Result of one download; `transferred_bytes` is the size of the files that it wrote."""

    seconds: float
    transferred_bytes: int


def staging(dataset: str, root: Path) -> list[str]:
    """Return a command that stages a dataset under a root directory."""
    return [sys.executable, "-m", "benchmarks.staging", "--stage", dataset, str(root)]


def s5cmd(dataset: str, root: Path) -> list[str]:
    """Return the s5cmd command with its defaults."""
    return ["s5cmd", "--log", "error", "sync", f"s3://{BUCKET}/datasets/{dataset}/*", f"{_directory(root, dataset)}/"]


def aws_cli(dataset: str, root: Path) -> list[str]:
    """Return the aws-cli command with its defaults."""
    source = f"s3://{BUCKET}/datasets/{dataset}/"
    return ["aws", "s3", "sync", "--only-show-errors", source, str(_directory(root, dataset))]


TOOLS: dict[str, Tool] = {"staging": staging, "s5cmd": s5cmd, "aws-cli": aws_cli}


def download(tool: str, dataset: str, root: Path) -> Download:
    """Download a dataset with a tool; staging runs in this process, as it does during boot."""
    directory = _directory(root, dataset)
    directory.mkdir(parents=True, exist_ok=True)
    before = _versions(directory)
    context, run = _boot(dataset, root)
    started = time.monotonic()
    if tool == "staging":
        stage_dataset(context, run)
    else:
        subprocess.run(TOOLS[tool](dataset, root), check=True)
    seconds = time.monotonic() - started
    after = _versions(directory)
    return Download(seconds, sum(each[1] for name, each in after.items() if before.get(name) != each))


def download_after_kill(tool: str, dataset: str, root: Path, size: int) -> tuple[float, Download]:
    """Kill a tool when half the bytes are on disk; return the share on disk, and the result of the second download."""
    directory = _directory(root, dataset)
    directory.mkdir(parents=True, exist_ok=True)
    process = psutil.Popen(TOOLS[tool](dataset, root))
    while _disk_bytes(directory) < KILL_AT * size and process.poll() is None:
        time.sleep(0.005)  # polling: short enough for a download of half a second
    family = [*process.children(recursive=True), process]
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):  # it exited with its parent
            member.kill()
    psutil.wait_procs(family)
    share = _disk_bytes(directory) / size
    return share, download(tool, dataset, root)


def _disk_bytes(directory: Path) -> int:
    """Return the allocated bytes of all files."""
    total = 0
    for entry in os.scandir(directory):
        with contextlib.suppress(FileNotFoundError):  # it has been renamed
            total += entry.stat().st_blocks * 512
    return total


def _versions(directory: Path) -> dict[str, tuple[int, int]]:
    """Return the modification time and size of each complete shard, even if it still has its temporary name."""
    found = {}
    for entry in os.scandir(directory):
        name = entry.name.removeprefix(".").removesuffix(".part")
        if name.endswith(".bin"):
            with contextlib.suppress(FileNotFoundError):  # it has been verified and renamed
                status = entry.stat()
                found[name] = (status.st_mtime_ns, status.st_size)
    return found


def _directory(root: Path, dataset: str) -> Path:
    return Layout(root).dataset(dataset)


def _boot(dataset: str, root: Path) -> tuple[Context, RunDocument]:
    """Return the context and run document that a boot's staging step uses."""
    system, layout = System(), Layout(root)
    zeros = {"bucket": BUCKET, "key": "none", "sha256": "0" * 64}
    timings = {"poll_seconds": 1, "heartbeat_seconds": 2, "heartbeat_timeout_seconds": 10}
    timings |= {"gang_timeout_seconds": 60, "boot_timeout_seconds": 600}
    node = NodeDocument.from_json(
        {"schema_version": SCHEMA_VERSION, "deployment": "bench", "region": REGION, "dataset_bucket": BUCKET, "gpus": 0}
        | {"role_id": "AROABENCH", "checkpoint_bucket": BUCKET, "control_bucket": BUCKET, "run_parameter": "none"}
        | {"log_group": "none", "bundle": zeros, "fabric": "tcp"}
        | {"python": {"interpreter": sys.executable, "packages": []}, "supervise": timings}
    )
    run = {
        "schema_version": SCHEMA_VERSION,
        "deployment": "bench",
        "run": "bench",
        "nodes": 1,
        "min_nodes": 1,
        "code": zeros,
    }
    document = RunDocument.from_json({**run, "processes_per_node": 1, "dataset": dataset, "training": {}})
    aws = Aws(REGION)
    aws.client("s3")  # the boot has created it in an earlier step
    events = EventLog(system, layout.events)
    return Context(system, layout, node, aws, InstanceMetadata(system), events), document


def make_dataset(folder: Path, name: str, count: int, size: int, changed: int = 0) -> int:
    """Write a dataset to the bucket, or change its first files; return its size in bytes."""
    source = folder / "source" / name
    source.mkdir(parents=True, exist_ok=True)
    for number in range(changed or count):
        (source / f"train-{number:05d}.bin").write_bytes(os.urandom(min(size, MIB)) * -(-size // MIB))
    (source / "tokenizer.json").write_text("{}", encoding="utf-8")
    files = sorted(source.glob("*.bin"))
    shards = [_record(path) for path in files]
    tokenizer = {"file": "tokenizer.json", "sha256": "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"}
    index = {"schema_version": 1, "name": name, "tokenizer": tokenizer, "splits": {"train": {"shards": shards}}}
    (source / "dataset.json").write_text(json.dumps(index), encoding="utf-8")
    target = f"s3://{BUCKET}/datasets/{name}/"
    subprocess.run(["s5cmd", "--log", "error", "sync", f"{source}/", target], check=True)
    return sum(path.stat().st_size for path in files)


def _record(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    return {"file": path.name, "tokens": size // 2, "bytes": size, "blake3": blake3().update_mmap(path).hexdigest()}


def _endpoint(url: str) -> None:
    os.environ.update(AWS_ENDPOINT_URL=url, S3_ENDPOINT_URL=url)


class Rounds:
    """Runs each scenario with all tools in turn, and collects the figures."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.figures: dict[str, dict[str, dict[str, Any]]] = {}

    def download(self, scenario: str, dataset: str, where: str) -> None:
        """Download a dataset with each tool, to separate directories."""
        for tool in TOOLS:
            self._keep(scenario, tool, download(tool, dataset, self._folder / where / tool))

    def download_after_kill(self, scenario: str, dataset: str, size: int) -> None:
        """Kill each tool halfway, and download again."""
        for tool in TOOLS:
            share, found = download_after_kill(tool, dataset, self._folder / scenario / tool, size)
            self._keep(scenario, tool, found)
            self.figures[scenario][tool].setdefault("shares_before", []).append(round(share, 3))

    def remove(self, *places: str) -> None:
        """Remove the downloads, so that the next round starts from scratch."""
        for place in places:
            shutil.rmtree(self._folder / place, ignore_errors=True)

    def _keep(self, scenario: str, tool: str, found: Download) -> None:
        sys.stderr.write(f"{scenario}: {tool}: {found.seconds:.2f} s\n")
        figures = self.figures.setdefault(scenario, {}).setdefault(tool, {"rounds_seconds": [], "transferred_bytes": 0})
        figures["rounds_seconds"].append(round(found.seconds, 3))
        figures["seconds"] = round(statistics.median(figures["rounds_seconds"]), 3)
        figures["transferred_bytes"] = max(figures["transferred_bytes"], found.transferred_bytes)

    def speed(self, scenario: str, over: str) -> float:
        """Return the speed of staging relative to another tool, as the median of the rounds' ratios."""
        own: list[float] = self.figures[scenario]["staging"]["rounds_seconds"]
        others: list[float] = self.figures[scenario][over]["rounds_seconds"]
        return statistics.median(other / one for one, other in zip(own, others, strict=True))


def measure(
    folder: Path, endpoint: str, rate: int, wait_seconds: float, large_mib: int, small: int, rounds: int
) -> Rounds:
    """Run every scenario with every tool, round by round."""
    found = Rounds(folder)
    _endpoint(endpoint)
    large_bytes = make_dataset(folder, "large", 1, large_mib * MIB)
    small_bytes = make_dataset(folder, "small", small, SMALL_BYTES)
    port = urlsplit(endpoint).port
    assert port is not None
    with paced(port, rate, wait_seconds) as limited:
        for _ in range(rounds):
            _endpoint(endpoint)
            found.download("large_without_limit", "large", "unlimited")
            found.remove("unlimited")
            _endpoint(limited)
            found.download("large", "large", "first")
            found.download("small", "small", "first")
            found.download("unchanged", "small", "first")
            _endpoint(endpoint)
            make_dataset(folder, "small", small, SMALL_BYTES, changed=max(1, small // 100))
            _endpoint(limited)
            found.download("one_percent_changed", "small", "first")
            found.remove("first")
            found.download_after_kill("resumed", "small", small_bytes)
            found.remove("resumed")
            found.download_after_kill("large_resumed", "large", large_bytes)
            found.remove("large_resumed")
    return found


def judge(found: Rounds) -> dict[str, dict[str, float | bool]]:
    """Return each bound with its figure, and whether the bound is met."""
    verdict: dict[str, dict[str, float | bool]] = {}

    def check(name: str, figure: float, bound: float, holds: bool) -> None:
        verdict[name] = {"figure": round(figure, 3), "bound": bound, "holds": holds}

    speed = found.speed("large", "s5cmd")
    check("large_over_s5cmd", speed, 1.3, speed >= 1.3)
    for scenario in ("large", "small", "unchanged", "one_percent_changed", "resumed", "large_resumed"):
        speed = found.speed(scenario, "aws-cli")
        check(f"{scenario}_over_aws_cli", speed, 2.0, speed >= 2.0)
    again = found.figures["unchanged"]["staging"]["transferred_bytes"]
    check("unchanged_bytes", again, 0, again == 0)
    return verdict


def main(arguments: list[str] | None = None) -> int:
    """Measure, write the figures, and return 1 if a bound is not met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.staging", description=__doc__)
    parser.add_argument("--large-mib", type=int, default=1024, help="size of the large object")
    parser.add_argument("--small-objects", type=int, default=2000, help="number of 256 KiB objects")
    parser.add_argument("--connection-mb-per-second", type=float, default=12, help="rate limit of each connection")
    parser.add_argument("--wait-milliseconds", type=float, default=50, help="latency of each response")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds; each round runs all tools")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument(
        "--stage", nargs=2, metavar=("DATASET", "ROOT"), help="only stage a dataset, from AWS_ENDPOINT_URL"
    )
    options = parser.parse_args(arguments)
    if options.stage:
        stage_dataset(*_boot(options.stage[0], Path(options.stage[1])))
        return 0
    wait = options.wait_milliseconds / 1000
    rate = int(options.connection_mb_per_second * 1e6)
    with tempfile.TemporaryDirectory(prefix="staging-") as name, local_s3(Path(name) / "s3", BUCKET) as endpoint:
        sizes = options.large_mib, options.small_objects
        found = measure(Path(name), endpoint, rate, wait, *sizes, options.rounds)
    setting = {"connection_bytes_per_second": rate, "wait_seconds": wait}
    setting |= {"large_mib": options.large_mib, "objects": options.small_objects, "rounds": options.rounds}
    result: dict[str, Any] = {
        "setting": {**setting, "cores": os.cpu_count()},
        "figures": found.figures,
        "verdict": judge(found),
    }
    result["speed_without_limit_over_s5cmd"] = round(found.speed("large_without_limit", "s5cmd"), 3)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    sys.stdout.write(json.dumps(result, indent=2) + "\n")
    return 0 if all(each["holds"] for each in result["verdict"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
