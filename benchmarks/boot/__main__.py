"""Boot time, and the cost of each kind of node loss: ``python -m benchmarks.boot``.

The command writes build/bench/boot.json. The boot time is computed as the critical path through its real steps, using a
table of latencies with sources. The losses are measured on nodes that each run a real supervisor, launcher and trainer
(CPU, gloo, the smallest model) with a deployment's default timings. Gangs of two and four nodes are disturbed in
several ways, one after another: the first node is lost, a node joins, freezes or is disconnected, or a node receives a
notice, either a short one or one that leaves time to continue training. Before each disturbance, every node has a
standby ready. When run as root, each node has its own network namespace, and a lost node sends no packets. Otherwise,
all nodes use the loopback interface, and none is disconnected.

Exits with 1 if a node that was declared lost committed after its successors had started, or if no generation followed a
loss.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import boto3
from moto.moto_api._internal.models import moto_api_backend

from benchmarks.boot.critical_path import critical_path
from benchmarks.boot.gang import Gang, TooSlowError, events
from benchmarks.boot.latencies import AFTER_BOOT, OF_AN_ATTACHED_VOLUME, Latency, table, tasks
from benchmarks.boot.losses import Loss, disconnect_last, freeze_last, give_notice, grow, lose_first
from benchmarks.boot.network import Network, has_namespaces
from benchmarks.boot.reforms import REFORMS, Reform, wait_for
from benchmarks.chaos.__main__ import make_dataset
from benchmarks.chaos.campaign import CONFIG
from benchmarks.chaos.supervised import DEPLOYMENT, RUN, Account
from benchmarks.servers.local_moto import client_options, local_moto
from bootstrap.boot_steps.boot_sequence import STEPS as BOOT_STEPS
from bootstrap.documents.object_keys import run_prefix
from stacks.config.heartbeat import SuperviseConfig
from training.checkpoint.log import newest_first
from training.checkpoint.storage.backend import Backend
from training.checkpoint.storage.s3 import S3Backend

BUCKET = "boot"
OUTPUT = Path("build/bench/boot.json")
LONG_NOTICE_SECONDS, SHORT_NOTICE_SECONDS = 20.0, 5.0
STEPS_WITHOUT_END = 1_000_000

Disturbance = Callable[[Gang, int], tuple[Loss, int]]
DISTURBANCES: dict[str, Disturbance] = {
    "lose_first_node": lose_first,
    "grow": grow,
    "freeze": freeze_last,
    "disconnect": disconnect_last,
    f"notice_{SHORT_NOTICE_SECONDS:g}_seconds": give_notice(SHORT_NOTICE_SECONDS),
    f"notice_{LONG_NOTICE_SECONDS:g}_seconds": give_notice(LONG_NOTICE_SECONDS),
}
REPEATED = ("lose_first_node", "grow")
"""Disturbances measured in every round, because they are quick and their results vary. All others are measured once."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write the figures; return the exit code."""
    options = _parser().parse_args(arguments)
    figures: dict[str, Any] = {
        "machine": {"cores": os.cpu_count(), "system": platform.platform(), "load_at_start": os.getloadavg()[0]},
        "supervise": SuperviseConfig().model_dump(),
        "network_namespaces": has_namespaces(),
        "losses": {},
        "reforms": {},
        "stale_commits": [],
    }
    after_boot: dict[str, Latency] = {}
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="boot-") as folder:
        root = Path(folder)
        dataset = make_dataset(root)
        for nodes in options.nodes:
            reforms: dict[str, list[Reform]] = {}
            with _limited(failures), _gang(root / f"{nodes}-in-place", dataset, nodes, reform=True) as (gang, backend):
                _reform(gang, nodes, options.rounds, reforms)
                figures["stale_commits"] += stale_commits(backend)
            figures["reforms"][f"{nodes}_nodes"] = {name: _reform_summary(each) for name, each in reforms.items()}
            if options.in_place_only:
                continue
            rounds: dict[str, list[Loss]] = {}
            with _limited(failures), _gang(root / f"{nodes}-nodes", dataset, nodes) as (gang, backend):
                after_boot = after_boot or _after_boot(gang)
                _measure(gang, nodes, options.rounds, rounds)
                figures["stale_commits"] += stale_commits(backend)
            figures["losses"][f"{nodes}_nodes"] = {name: _summary(losses) for name, losses in rounds.items()}
    figures["boot"] = {} if options.in_place_only else _boot(after_boot)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    sys.stdout.write(_table(figures))
    return 1 if failures or figures["stale_commits"] else 0


@contextmanager
def _limited(failures: list[str]) -> Iterator[None]:
    """Print and collect the error of a measurement that exceeds its time limit."""
    try:
        yield
    except TooSlowError as error:
        sys.stderr.write(f"{error}\n")
        failures.append(str(error))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.boot", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 4], help="gang sizes, two or more")
    parser.add_argument("--rounds", type=int, default=3, help=f"rounds of {' and '.join(REPEATED)}")
    parser.add_argument("--in-place-only", action="store_true", help="measure only changes in place")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="output file (JSON)")
    return parser


@contextmanager
def _gang(folder: Path, dataset: Path, nodes: int, *, reform: bool = False) -> Iterator[tuple[Gang, Backend]]:
    folder.mkdir()
    with ExitStack() as stack:
        network = Network() if has_namespaces() else None
        if network:
            stack.callback(network.close)
        account = stack.enter_context(_account(network.address if network else "127.0.0.1"))
        config = {**CONFIG, "steps": STEPS_WITHOUT_END, "parallel": {"reform": reform}}
        supervise = SuperviseConfig().model_dump()
        gang = Gang(folder, account, account.fill(dataset), dataset.name, nodes, config, supervise, network)
        stack.callback(gang.close)
        for _ in range(nodes):
            gang.launch()
        yield gang, S3Backend(BUCKET, f"{run_prefix(DEPLOYMENT, RUN)}/checkpoints", account.s3)


@contextmanager
def _account(address: str) -> Iterator[Account]:
    moto_api_backend.reset()  # moto keeps its records across servers
    with local_moto(address) as url:
        keys = client_options(url)
        account = Account(
            boto3.client("s3", **keys), boto3.client("ssm", **keys), boto3.client("logs", **keys), BUCKET, url
        )
        account.s3.create_bucket(Bucket=BUCKET)
        yield account


def _measure(gang: Gang, nodes: int, rounds: int, found: dict[str, list[Loss]]) -> None:
    started = time.monotonic()
    generation = gang.wait("the first generation", lambda: gang.training(0, nodes))
    for number in range(rounds):
        for name, disturb in DISTURBANCES.items():
            if (disturb is disconnect_last and not has_namespaces()) or (number > 0 and name not in REPEATED):
                continue
            gang.settle(generation)
            loss, generation = disturb(gang, generation)
            found.setdefault(name, []).append(loss)
            times = f"detected after {loss.detection_seconds:.1f} s, next step after {loss.restart_seconds:.1f} s"
            sys.stderr.write(
                f"{time.monotonic() - started:4.0f} s: {nodes} nodes, round {number + 1}/{rounds}, {name}: {times}, "
                f"{loss.steps_lost} steps lost\n"
            )


def _reform(gang: Gang, nodes: int, rounds: int, found: dict[str, list[Reform]]) -> None:
    """Change the gang in place, round after round. A node whose ranks were killed rejoins on its own."""
    started = time.monotonic()
    wait_for(gang, nodes)
    for number in range(rounds):
        for name in ("planned_leave", "join", "killed_process", "machine_cut_off", "join"):
            reform = REFORMS[name](gang)
            found.setdefault(name, []).append(reform)
            sys.stderr.write(
                f"{time.monotonic() - started:4.0f} s: {nodes} nodes, round {number + 1}/{rounds}, {name} in place: "
                f"next step after {reform.next_step_seconds:.1f} s, pause {reform.pause_seconds:.2f} s, "
                f"{reform.steps_lost} steps lost, {reform.restarts} restarts\n"
            )
            if name == "killed_process":
                wait_for(gang, nodes)


def _reform_summary(reforms: Sequence[Reform]) -> dict[str, Any]:
    """Return the medians, and every round. Rounds that fell back have no phases."""
    keys = ("pause_seconds", "next_step_seconds", "steps_lost", "restarts")
    rounds = [asdict(reform) for reform in reforms]
    return {**{key: median(each[key] for each in rounds) for key in keys}, "rounds": rounds}


def stale_commits(backend: Backend) -> list[str]:
    """Return the commits that generations made after a later generation had started."""
    stale, later = [], None
    for entry in newest_first(backend):
        if later is not None and entry.generation > later:
            stale.append(
                f"entry {entry.sequence + 1} of generation {later} follows an entry of generation {entry.generation}"
            )
        later = entry.generation
    return stale


def _summary(losses: Sequence[Loss]) -> dict[str, Any]:
    """Return the medians and the figures of every round."""
    rounds = [asdict(loss) for loss in losses]
    return {**_medians(rounds), "rounds": rounds}


def _medians(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        key: _medians([each[key] for each in rounds]) if isinstance(value, dict) else median(e[key] for e in rounds)
        for key, value in rounds[0].items()
        if not isinstance(value, list)
    }


def _after_boot(gang: Gang) -> dict[str, Latency]:
    """Return the latencies after the boot, measured on the first gang's last node."""
    generation = gang.wait("the first generation", lambda: gang.training(0))
    supervisors = max(events(node, "supervisor_started")[0]["unix_seconds"] for node in gang.nodes)
    generations = max(events(node, "generation_started")[0]["unix_seconds"] for node in gang.nodes)
    start, step = gang.records(generation, "start")[0], gang.records(generation, "step")[0]
    measured = {
        "supervisor": AFTER_BOOT["supervisor"].seconds,
        "election": generations - supervisors,
        "trainer_start": start["unix_seconds"] - generations,
        "first_step": step["unix_seconds"] - start["unix_seconds"],
    }
    return {name: replace(AFTER_BOOT[name], seconds=seconds) for name, seconds in measured.items()}


def _boot(measured: Mapping[str, Latency]) -> dict[str, Any]:
    rows = {**table(), **measured}
    ways = {"dataset_is_fetched": measured, "dataset_is_on_a_volume": {**OF_AN_ATTACHED_VOLUME, **measured}}
    paths = {}
    for name, differences in ways.items():
        found = critical_path(tasks(BOOT_STEPS, differences))
        paths[name] = {
            **asdict(found),
            "remedies": {
                each: {**rows, **differences}[each].remedy
                for each in sorted(found.path, key=lambda each: -found.saved_seconds[each])[:5]
            },
        }
    return {"latencies": {name: asdict(row) for name, row in rows.items()}, "paths": paths}


def _table(figures: Mapping[str, Any]) -> str:
    lines = []
    for name, found in figures["boot"].get("paths", {}).items():
        lines.append(
            f"{name}: {found['path_seconds']:.0f} s of {found['sum_seconds']:.0f}: {' > '.join(found['path'])}"
        )
        lines += [
            f"  {each}, at most {found['saved_seconds'][each]:.1f} s: {remedy}"
            for each, remedy in found["remedies"].items()
        ]
    lines.append(f"{'':34}{'found s':>9}{'next step s':>13}{'steps lost':>12}")
    for nodes, losses in figures["losses"].items():
        for name, found in losses.items():
            lines.append(
                f"{nodes + ' ' + name:34}{found['detection_seconds']:9.1f}{found['restart_seconds']:13.1f}"
                f"{found['steps_lost']:12.0f}"
            )
    lines.append(f"{'in place':34}{'pause s':>9}{'next step s':>13}{'steps lost':>12}{'restarts':>10}")
    for nodes, reforms in figures["reforms"].items():
        for name, found in reforms.items():
            lines.append(
                f"{nodes + ' ' + name:34}{found['pause_seconds']:9.2f}{found['next_step_seconds']:13.1f}"
                f"{found['steps_lost']:12.0f}{found['restarts']:10.0f}"
            )
    lines += ["", "sequential parts of adding a node:"]
    for nodes, losses in figures["losses"].items():
        if "grow" in losses:
            parts = losses["grow"]["also"]
            lines.append(
                f"{nodes}: " + ", ".join(f"{name[:-8].replace('_', ' ')} {parts[name]:.1f} s" for name in parts)
            )
    lines += [f"stale commit: {commit}" for commit in figures["stale_commits"]]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # runs the clean-up handlers
    sys.exit(main())
