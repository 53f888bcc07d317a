"""Random events and a sweep on a real two-node Slurm cluster, which this program starts and stops: `make
test-slurm`."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.slurm.campaign import INTERVAL_STEPS, STORE_MIB, campaign, prepare_data, sweep
from tests.slurm.cluster import Cluster, missing_programs

REPORT = Path("build/bench/slurm.json")
PREEMPTION_SECONDS = 20.0


def main() -> int:
    """Run the campaign and return 0 if all bounds are met."""
    parser = argparse.ArgumentParser(prog="python -m tests.slurm", description=__doc__)
    parser.add_argument("--events", type=int, default=30, help="number of random events")
    parser.add_argument("--seed", type=int, default=1, help="seed of the events")
    parser.add_argument(
        "--continue-by", default="resubmit", choices=["resubmit", "spare", "requeue"], help="slurm.continue_by"
    )
    parser.add_argument("--no-sweep", action="store_true", help="only the events")
    options = parser.parse_args()
    missing = missing_programs()
    if os.geteuid() != 0 or missing:
        packages = " ".join(sorted(set(missing.values()))) or "none"
        print(f"make test-slurm: needs root and Debian's packages; missing packages: {packages}", file=sys.stderr)
        return 2
    for number in (signal.SIGINT, signal.SIGTERM):  # end the cluster's processes
        signal.signal(number, lambda received, frame: sys.exit(128 + received))
    with tempfile.TemporaryDirectory(prefix="trainstack-slurm-") as name:
        folder = Path(name)
        prepare_data(folder)
        store = folder / "store"
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={STORE_MIB}m", "tmpfs", str(store)], check=True)
        try:
            with Cluster(folder / "cluster") as cluster:
                found = {"events": campaign(cluster, folder, options.events, options.seed, options.continue_by)}
                if not options.no_sweep:
                    found["sweep"] = sweep(cluster, folder)
        finally:
            subprocess.run(["umount", "--lazy", str(store)], check=False)
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(json.dumps(found, indent=2) + "\n")
    return _report(found, options.no_sweep)


def _report(found: dict[str, dict[str, object]], no_sweep: bool) -> int:
    """Print each bound with its figure. Return 0 if all are met."""
    events = found["events"]
    seconds = events["preemption_seconds"]
    assert isinstance(seconds, list)
    bounds = [
        ("steps lost after events with a signal", events["lost_with_signal"], events["lost_with_signal"] == 0),
        (
            f"most steps lost after an event without a signal (at most {INTERVAL_STEPS})",
            events["most_lost_without"],
            int(str(events["most_lost_without"])) <= INTERVAL_STEPS,
        ),
        ("jobs left failed", events["failed_jobs"], not events["failed_jobs"]),
        (
            f"longest time from preemption to the next step, s (at most {PREEMPTION_SECONDS:.0f})",
            round(max(seconds, default=0.0), 1),
            max(seconds, default=0.0) <= PREEMPTION_SECONDS,
        ),
    ]
    if not no_sweep:
        runs = found["sweep"]
        bounds.append(("distinct settings of the sweep", runs["distinct_settings"], runs["distinct_settings"] == 9))
        bounds.append(("finished runs of the sweep", runs["finished"], runs["finished"] == 9))
    for text, value, is_met in bounds:
        print(f"{'met   ' if is_met else 'MISSED'} {text}: {value}")
    return 0 if all(is_met for _, _, is_met in bounds) else 1


if __name__ == "__main__":
    sys.exit(main())
