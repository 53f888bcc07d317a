"""What a boot and each kind of loss cost, in seconds: ``python -m benchmarks.boot`` writes build/bench/boot.json.

The boot is computed: the longest path through its real steps, from a table of latencies that each name their source.
The losses are measured, on machines with a real supervisor, torchrun and trainer each (CPU, gloo, the smallest model),
with the timings that a deployment has by default: of two and of four machines the first is lost, one joins, one is
frozen, one is cut off, and one gets notice, a short one and one that leaves time to train on; each time the gang has
trained until every node has its standby again. As root each machine has a network of its own, and what is lost is lost
without a word; else all are on the loop-back interface, and nothing is cut off.

Exit code 1: a machine that was thought lost committed after its successors had begun, or nothing followed a loss.
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
from benchmarks.boot.losses import Loss, cut_last, freeze_last, give_notice, grow, lose_first
from benchmarks.boot.network import Network, can_cut
from benchmarks.chaos.__main__ import make_dataset
from benchmarks.chaos.campaign import CONFIG
from benchmarks.chaos.supervised import RUN, Account
from benchmarks.local_moto import client_options, local_moto
from bootstrap import boot
from stacks.config.node import SuperviseConfig
from training.checkpoint.backend import Backend
from training.checkpoint.log import newest_first
from training.checkpoint.s3 import S3Backend

BUCKET = "boot"
OUTPUT = Path("build/bench/boot.json")
LONG_NOTICE_SECONDS, SHORT_NOTICE_SECONDS = 20.0, 5.0
STEPS_WITHOUT_END = 1_000_000

Deed = Callable[[Gang, int], tuple[Loss, int]]
DEEDS: dict[str, Deed] = {
    "lose_first_node": lose_first,
    "grow": grow,
    "freeze": freeze_last,
    "cut_off": cut_last,
    f"notice_{SHORT_NOTICE_SECONDS:g}_seconds": give_notice(SHORT_NOTICE_SECONDS),
    f"notice_{LONG_NOTICE_SECONDS:g}_seconds": give_notice(LONG_NOTICE_SECONDS),
}
REPEATED = ("lose_first_node", "grow")
"""Cheap, and the more uncertain ones: the others are measured once, whatever the number of rounds."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; returns the exit code."""
    options = _parser().parse_args(arguments)
    figures: dict[str, Any] = {
        "machine": {"cores": os.cpu_count(), "system": platform.platform(), "load_at_start": os.getloadavg()[0]},
        "supervise": SuperviseConfig().model_dump(),
        "own_networks": can_cut(),
        "losses": {},
        "stale_commits": [],
    }
    after_boot: dict[str, Latency] = {}
    failed = False
    with tempfile.TemporaryDirectory(prefix="boot-") as folder:
        dataset = make_dataset(Path(folder))
        for nodes in options.nodes:
            rounds: dict[str, list[Loss]] = {}
            try:
                with _gang(Path(folder) / f"{nodes}-nodes", dataset, nodes) as (gang, backend):
                    after_boot = after_boot or _after_boot(gang)
                    _measure(gang, nodes, options.rounds, rounds)
                    figures["stale_commits"] += stale_commits(backend)
            except TooSlowError as error:
                sys.stderr.write(f"{error}\n")
                failed = True
            figures["losses"][f"{nodes}_nodes"] = {name: _summary(losses) for name, losses in rounds.items()}
    figures["boot"] = _boot(after_boot)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    sys.stdout.write(_table(figures))
    return 1 if failed or figures["stale_commits"] else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.boot", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 4], help="sizes of the gang, two or more")
    parser.add_argument("--rounds", type=int, default=3, help=f"of {' and '.join(REPEATED)}")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where the JSON goes")
    return parser


@contextmanager
def _gang(folder: Path, dataset: Path, nodes: int) -> Iterator[tuple[Gang, Backend]]:
    folder.mkdir()
    with ExitStack() as stack:
        network = Network() if can_cut() else None
        if network:
            stack.callback(network.close)
        account = stack.enter_context(_account(network.address if network else "127.0.0.1"))
        config = {**CONFIG, "steps": STEPS_WITHOUT_END}
        supervise = SuperviseConfig().model_dump()
        gang = Gang(folder, account, account.fill(dataset), dataset.name, nodes, config, supervise, network)
        stack.callback(gang.close)
        for _ in range(nodes):
            gang.launch()
        yield gang, S3Backend(BUCKET, f"runs/{RUN}/checkpoints", account.s3)


@contextmanager
def _account(address: str) -> Iterator[Account]:
    moto_api_backend.reset()  # what an earlier gang left: moto's records outlive its server
    with local_moto(address) as url:
        keys = client_options(url)
        account = Account(
            boto3.client("s3", **keys), boto3.client("ssm", **keys), boto3.client("logs", **keys), BUCKET, url
        )
        account.s3.create_bucket(Bucket=BUCKET)
        yield account


def _measure(gang: Gang, nodes: int, rounds: int, found: dict[str, list[Loss]]) -> None:
    began = time.monotonic()
    generation = gang.wait("the first generation", lambda: gang.training(0, nodes))
    for number in range(rounds):
        for name, deed in DEEDS.items():
            if (deed is cut_last and not can_cut()) or (number > 0 and name not in REPEATED):
                continue
            gang.settle(generation)
            loss, generation = deed(gang, generation)
            found.setdefault(name, []).append(loss)
            told = f"seen after {loss.detection_seconds:.1f} s, next step after {loss.restart_seconds:.1f} s"
            sys.stderr.write(
                f"{time.monotonic() - began:4.0f} s: {nodes} nodes, round {number + 1}/{rounds}, {name}: {told}, "
                f"{loss.steps_lost} steps lost\n"
            )


def stale_commits(backend: Backend) -> list[str]:
    """Commits that a generation made after a later one had begun."""
    stale, later = [], None
    for entry in newest_first(backend):
        if later is not None and entry.generation > later:
            stale.append(f"entry {entry.sequence + 1} of generation {later} is after one of {entry.generation}")
        later = entry.generation
    return stale


def _summary(losses: Sequence[Loss]) -> dict[str, Any]:
    """Medians, and every round."""
    rounds = [asdict(loss) for loss in losses]
    return {**_medians(rounds), "rounds": rounds}


def _medians(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        key: _medians([each[key] for each in rounds]) if isinstance(value, dict) else median(e[key] for e in rounds)
        for key, value in rounds[0].items()
        if not isinstance(value, list)
    }


def _after_boot(gang: Gang) -> dict[str, Latency]:
    """What follows the boot, as the first gang did it: of the node that was last."""
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
        found = critical_path(tasks(boot.STEPS, differences))
        paths[name] = {
            **asdict(found),
            "what_would_shorten_it": {
                each: {**rows, **differences}[each].remedy
                for each in sorted(found.path, key=lambda each: -found.saved_seconds[each])[:5]
            },
        }
    return {"latencies": {name: asdict(row) for name, row in rows.items()}, "paths": paths}


def _table(figures: Mapping[str, Any]) -> str:
    lines = []
    for name, found in figures["boot"]["paths"].items():
        lines.append(
            f"{name}: {found['path_seconds']:.0f} s of {found['sum_seconds']:.0f}: {' > '.join(found['path'])}"
        )
        lines += [
            f"  {each}, at most {found['saved_seconds'][each]:.1f} s: {remedy}"
            for each, remedy in found["what_would_shorten_it"].items()
        ]
    lines.append(f"{'':34}{'seen s':>9}{'next step s':>13}{'steps lost':>12}")
    for nodes, losses in figures["losses"].items():
        for name, found in losses.items():
            lines.append(
                f"{nodes + ' ' + name:34}{found['detection_seconds']:9.1f}{found['restart_seconds']:13.1f}"
                f"{found['steps_lost']:12.0f}"
            )
    lines += ["", "what growth by a node goes into, one after the other:"]
    for nodes, losses in figures["losses"].items():
        if "grow" in losses:
            parts = losses["grow"]["also"]
            lines.append(
                f"{nodes}: " + ", ".join(f"{name[:-8].replace('_', ' ')} {parts[name]:.1f} s" for name in parts)
            )
    lines += [f"stale commit: {told}" for told in figures["stale_commits"]]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that all that runs is ended
    sys.exit(main())
