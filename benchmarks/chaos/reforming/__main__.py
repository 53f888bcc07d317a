"""Interrupts ranks that change in place, at every phase of a change, and compares the run with resumed runs.

    python -m benchmarks.chaos.reforming --interruptions 60 --seed 1

The ranks are real; the benchmark writes the handovers that supervisors would elect. A rank that is cut off or frozen
lives on, and still reaches the checkpoint store. The report counts the interruptions by kind, the kills by the phase in
which they hit, and the fall-backs by cause. A violation is a wait past the limits, a rank that ends for no reason, a
commit by a superseded generation, a step that is missing or was reported twice, or a bit that differs from a resumed
run.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.boot.__main__ import STEPS_WITHOUT_END, stale_commits
from benchmarks.boot.network import Network, has_namespaces
from benchmarks.chaos.__main__ import make_dataset
from benchmarks.chaos.campaign import CONFIG
from benchmarks.chaos.reforming.campaign import PLACES, Campaign, HangError
from benchmarks.chaos.reforming.ranks import Nodes
from benchmarks.chaos.reforming.resumed import Resumed, history
from training.checkpoint.storage.urls import open_backend


def main() -> int:
    """Run the interruptions, print the report as JSON, and return 1 if there was a violation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--interruptions", type=int, default=300, help="number of interruptions")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no interruption after this time")
    parser.add_argument("--seed", type=int, default=1, help="seed of all choices")
    parser.add_argument("--keep", type=Path, help="folder for the run directories, which is not removed")
    options = parser.parse_args()
    ends = time.monotonic() + options.minutes * 60
    with ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="reforming-")))
        folder.mkdir(parents=True, exist_ok=True)
        network = Network() if has_namespaces() else None
        if network:
            stack.callback(network.close)
        dataset = make_dataset(folder)
        config: dict[str, Any] = {**CONFIG, "steps": STEPS_WITHOUT_END, "parallel": {"reform": True}}
        nodes = Nodes(folder / "nodes", dataset, config, network, PLACES)
        stack.callback(nodes.close)
        choice = random.Random(options.seed)  # noqa: S311 (not a secret)
        campaign = Campaign(nodes, choice, has_network=network is not None)
        problems = campaign.violations
        try:
            campaign.begin()
            for number in range(options.interruptions):
                if time.monotonic() > ends:
                    break
                _show(f"{number + 1}/{options.interruptions} {campaign.interrupt()}")
            campaign.end()
        except HangError as error:
            problems.append(str(error)[:12000])
        records = [each for kind in ("start", "reform", "step") for each in nodes.records(kind)]
        segments = history(sorted(records, key=lambda each: float(each["unix_seconds"])), problems)
        nodes.close()
        backend = open_backend(nodes.checkpoints)
        problems += stale_commits(backend)
        resumed = Resumed(folder / "resumed", dataset, config, _show)
        stack.callback(resumed.close)
        resumed.compare(segments, backend, problems)
        seconds = sorted(float(each["seconds"]) for each in nodes.records("reform"))
    report = {
        "seed": options.seed,
        "interruptions": sum(campaign.made.values()),
        "kinds": campaign.made,
        "kills_by_phase": campaign.phases,
        "changes": campaign.results,
        "fallbacks": campaign.fallbacks,
        "segments": len(segments),
        "steps_equal_to_resumed_runs": resumed.compared,
        "median_seconds": seconds[len(seconds) // 2] if seconds else None,
        "network_namespaces": network is not None,
        "violations": problems,
    }
    sys.stdout.write(json.dumps(report, indent=2) + "\n")
    return int(bool(problems))


def _show(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # runs the clean-up handlers
    sys.exit(main())
