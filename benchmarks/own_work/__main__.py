"""Checkpoints in user-supplied training scripts: `python -m benchmarks.own_work [--python PATH] [--nanogpt FOLDER]`.

Each script is trained once without interruption. Then it is trained again, all of its processes are killed with SIGKILL
after a checkpoint, and it is started again. The resumed run must receive the same batches as the uninterrupted one, in
the same order, and end with the same weights, bit for bit. Everything runs on the CPU.

Exit code: 0 if all runs are equal, 1 if not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.own_work.cases import CASES, NANOGPT, Case

KILL_SHARE = 0.6
"""Share of the batches after which the processes are killed."""
PROCESSES = {"HF Trainer": (1, 2), "Lightning": (1, 2), NANOGPT: (1, 2), "CNN": (1, 2)}


@dataclass(frozen=True)
class Row:
    """The result for one script.

    Attributes:
        added: lines added to the script.
        changed: lines changed in the script.
        batches: training batches per process in the uninterrupted run.
        killed_after: batches after which each process was killed.
        resumed_at: first batch of the resumed run, counted from 0.
        same_batches: True if the resumed run received the remaining batches of the uninterrupted run, on every rank.
        same_weights: True if both runs ended with the same weights.
    """

    added: int
    changed: int
    batches: int
    killed_after: int
    resumed_at: int
    same_batches: bool
    same_weights: bool

    @property
    def is_equal(self) -> bool:
        """True if the second run resumed from a checkpoint, and equals the uninterrupted run."""
        return self.same_batches and self.same_weights and 0 < self.resumed_at <= self.killed_after


def main(arguments: list[str] | None = None) -> int:
    """Train all scripts, print the table, write the report, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.own_work", description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="interpreter with transformers and lightning")
    parser.add_argument("--nanogpt", type=Path, metavar="FOLDER", help="clone of karpathy/nanoGPT")
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES), help="scripts to train")
    parser.add_argument("--output", type=Path, default=Path("build/bench/own-work.json"), help="path of the report")
    options = parser.parse_args(arguments)
    python = str(Path(options.python).absolute())  # the link into an environment, not its target
    rows: dict[str, Row] = {}
    sys.stdout.write(f"{'':26}{'added':>6}{'changed':>9}{'batches':>9}{'killed':>8}{'resumed':>9}  equal\n")
    for name in options.only:
        if name == NANOGPT and options.nanogpt is None:
            sys.stdout.write(f"{name:26}  not trained: --nanogpt was not specified\n")
            continue
        for processes in PROCESSES[name]:
            label = f"{name}, {processes} process{'es' if processes > 1 else ''}"
            row = rows[label] = compare(CASES[name], python, options.nanogpt, processes)
            equal = "yes" if row.is_equal else f"no (batches {row.same_batches}, weights {row.same_weights})"
            figures = f"{row.added:6}{row.changed:9}{row.batches:9}{row.killed_after:8}{row.resumed_at:9}"
            sys.stdout.write(f"{label:26}{figures}  {equal}\n")
            sys.stdout.flush()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({name: asdict(row) for name, row in rows.items()}, indent=2) + "\n")
    return int(not all(row.is_equal for row in rows.values()))


def compare(case: Case, python: str, source: Path | None, processes: int) -> Row:
    """Train a script without interruption, and killed and resumed; return the comparison.

    Raises:
        SystemExit: The script failed.
    """
    with tempfile.TemporaryDirectory(prefix="own-work-") as name:
        unbroken, broken = Path(name, "unbroken"), Path(name, "broken")
        for folder in (unbroken, broken):
            folder.mkdir()
            added, changed = case.write(folder, source, processes)
            for records in ("first", "second"):
                (folder / records).mkdir()
        _run(case, python, unbroken, "first", 0, processes)
        count = len((unbroken / "first" / "batches-0").read_text().split())
        _run(case, python, broken, "first", round(KILL_SHARE * count), processes)
        _run(case, python, broken, "second", 0, processes)
        same_batches = True
        for rank in range(processes):
            complete, before, after = (
                (folder / f"batches-{rank}").read_text().split()
                for folder in (unbroken / "first", broken / "first", broken / "second")
            )
            same_batches &= before == complete[: len(before)] and after == complete[len(complete) - len(after) :]
        one, two = (torch.load(folder / "weights.pt") for folder in (unbroken / "first", broken / "second"))
        same_weights = one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)
        return Row(added, changed, count, len(before), len(complete) - len(after), same_batches, same_weights)


def _run(case: Case, python: str, folder: Path, records: str, kill_at: int, processes: int) -> None:
    """Run a script in a folder, with its checkpoints in the same folder.

    Raises:
        SystemExit: The script failed, or was not killed although it should have been.
    """
    command = [python, "-m", "benchmarks.own_work.observed"]
    if processes > 1:
        torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        command = [python, "-m", *torchrun, "-m", "benchmarks.own_work.observed"]
    paths = [folder / records, case.model, kill_at, folder / "checkpoints", folder / case.script]
    command += [*map(str, paths), *case.arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "HF_HUB_OFFLINE": "1"}
    log = folder / f"{records}.log"
    with log.open("wb") as output:
        done = subprocess.run(command, cwd=folder, env=environment, stdout=output, stderr=output, check=False)
    if (done.returncode == 0) != (kill_at == 0):
        raise SystemExit(
            f"{case.script} ended with exit code {done.returncode}:\n{log.read_text(errors='replace')[-4000:]}"
        )


if __name__ == "__main__":
    sys.exit(main())
