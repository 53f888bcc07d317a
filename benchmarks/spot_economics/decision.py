"""Measures the time and the memory of a decision of the run controller, in a process of its own.

The process imports the modules of the Lambda function's asset and nothing else from this project.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from stacks.functions.run_controller.causes import Cause
from stacks.functions.run_controller.placement import Task, decide
from stacks.functions.run_controller.places import HOUR, Offer, Place, Record

PLACES = 200
DECISIONS = 50
NOW_UNIX_SECONDS = 1_800_000_000.0


@dataclass(frozen=True)
class Measured:
    """The time and the memory of decisions about many places.

    Attributes:
        places: Number of spot places.
        slowest_seconds: The longest time of a decision.
        median_seconds: The median time of a decision.
        peak_bytes: Highest resident memory of the process, including the interpreter.
    """

    places: int
    slowest_seconds: float
    median_seconds: float
    peak_bytes: int


def measure() -> Measured:
    """Measure decisions in a new process.

    Raises:
        subprocess.CalledProcessError: The process failed.
    """
    command = [sys.executable, "-m", "benchmarks.spot_economics.decision"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    return Measured(**json.loads(done.stdout))


def offers(places: int) -> list[Offer]:
    """Return the offers of spot places and one On-Demand place. Each place has a history of launches and refusals."""
    found = []
    for number in range(places):
        record = Record().launched(NOW_UNIX_SECONDS - 6.0 * HOUR).ran(NOW_UNIX_SECONDS - (1 + number % 5) * HOUR)
        if number % 3 == 0:
            record = record.interrupted(NOW_UNIX_SECONDS - 0.5 * HOUR)
        if number % 7 == 0:
            record = record.refused(Cause.CAPACITY, NOW_UNIX_SECONDS - 60.0)
        region = f"region-{number % 8}"
        found.append(Offer(Place(region, f"{region}-{number}", "p5.48xlarge", "spot"), 20.0 + number % 29, record))
    return [*found, Offer(Place("region-0", "", "p5.48xlarge", "on_demand"), 55.0)]


def decisions(places: int, count: int) -> Measured:
    """Decide `count` times in this process."""
    given = offers(places)
    task = Task(40.0, NOW_UNIX_SECONDS + 50.0 * HOUR, 0.8, restart_hours=0.2, period_hours=0.05)
    seconds = []
    for number in range(count):
        current = given[number % places].place if number % 2 else None
        started = time.perf_counter()
        decide(task, given, current, NOW_UNIX_SECONDS)
        seconds.append(time.perf_counter() - started)
    return Measured(places, max(seconds), sorted(seconds)[count // 2], _peak_bytes())


def _peak_bytes() -> int:
    """Return this process's highest resident memory.

    On Linux, an exec preserves `ru_maxrss`, so it can be that of the parent process. VmHWM starts again. Source
    (2026-11): https://man7.org/linux/man-pages/man2/getrusage.2.html, section NOTES.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    print(json.dumps(asdict(decisions(PLACES, DECISIONS))))
