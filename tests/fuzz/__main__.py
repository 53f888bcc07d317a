"""Give damaged input to every reader of external data, and count the results: `make fuzz`.

A reader must return a value, or raise an error with a message for the user. It must do so within 5 s of CPU time and
with bounded memory. The supervisor and the run controller must continue, and the review must require approval for each
dangerous change. Inputs depend only on their kind and the seed: repeat a fault with `--only KIND --seed SEED`.

Exit code: 0 if no reader failed, otherwise 1. The inputs of the failures are written to build/fuzz/.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import resource
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from .readers import (
    REFUSALS,
    Reader,
    control_readers,
    document_readers,
    metadata_readers,
    object_readers,
    template_readers,
    yaml_readers,
)

MAX_CPU_SECONDS = 5.0
MAX_GROWTH_BYTES = 1 << 30
"""Growth of the process's peak memory over all inputs of a kind."""


@dataclass(frozen=True)
class Kind:
    """A kind of input.

    Attributes:
        count: number of inputs.
        readers: opens the readers.
    """

    count: int
    readers: Callable[[], AbstractContextManager[list[Reader]]]


KINDS = {
    "yaml": Kind(20_000, yaml_readers),
    "documents": Kind(20_000, document_readers),
    "objects": Kind(10_000, object_readers),
    "metadata": Kind(5_000, metadata_readers),
    "control": Kind(5_000, control_readers),
    "templates": Kind(200, template_readers),
}


@dataclass
class Tally:
    """The results of one kind of input."""

    kind: str
    accepted: int = 0
    refused: int = 0
    slowest_cpu_seconds: float = 0.0
    growth_bytes: int = 0
    failures: list[tuple[bytes, str]] = field(default_factory=list)

    def __str__(self) -> str:
        count = self.accepted + self.refused + len(self.failures)
        return (
            f"{self.kind}: {count} inputs: {self.accepted} accepted, {self.refused} refused, {len(self.failures)} "
            f"failures; slowest {self.slowest_cpu_seconds:.2f} s of CPU time; memory grew by "
            f"{self.growth_bytes >> 20} MiB"
        )


def fuzz(kind: str, count: int, seed: int) -> Tally:
    """Read ``count`` damaged inputs; return the results."""
    tally, random = Tally(kind), Random(f"{kind} {seed}")
    with KINDS[kind].readers() as readers:
        for reader in readers:  # undamaged input shows that the reader works
            for content in reader.valid:
                reader.read(content)
        peak = _peak_bytes()
        for number in range(count):
            reader = readers[number % len(readers)]
            content = reader.damage(random, random.choice(reader.valid))
            started = time.process_time()
            try:
                reader.read(content)
                tally.accepted += 1
            except REFUSALS as error:
                tally.refused += 1
                if not str(error).strip():
                    tally.failures.append((content, f"{type(error).__name__} without a message"))
            except BaseException as error:  # noqa: BLE001
                if isinstance(error, KeyboardInterrupt):
                    raise
                tally.failures.append((content, traceback.format_exc()))
            seconds = time.process_time() - started
            tally.slowest_cpu_seconds = max(tally.slowest_cpu_seconds, seconds)
            if seconds > MAX_CPU_SECONDS:
                tally.failures.append((content, f"took {seconds:.1f} s of CPU time"))
        tally.growth_bytes = _peak_bytes() - peak
        if tally.growth_bytes > MAX_GROWTH_BYTES:
            tally.failures.append((b"", f"memory grew by {tally.growth_bytes} bytes"))
    return tally


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--only", choices=KINDS, help="one kind of input; default: all")
    parser.add_argument("--count", type=int, help="number of inputs of each kind; default: the numbers in KINDS")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path("build/fuzz"), help="folder for inputs of failures")
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)  # readers log the objects that they set aside
    failures = 0
    for name, kind in KINDS.items():
        if options.only not in (None, name):
            continue
        tally = fuzz(name, options.count or kind.count, options.seed)
        print(tally, flush=True)
        failures += len(tally.failures)
        for content, text in tally.failures:
            options.output.mkdir(parents=True, exist_ok=True)
            path = options.output / f"{name}-{hashlib.sha256(content).hexdigest()[:12]}"
            path.write_bytes(content)
            print(f"{path}: {text}", file=sys.stderr, flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
