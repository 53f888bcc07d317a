"""Apply each mutation of `tests.mutate.mutations` to a copy of the project and run its tests: `python -m tests.mutate`.

Prints one line per mutation: killed if its tests fail, SURVIVED if they pass. Exits with 1 if a mutation survives, if
its tests fail without it or cannot be run, or if its text does not occur exactly once in its file.
"""

from __future__ import annotations

import argparse
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .mutations import MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_SECONDS, TIMEOUT_OF_ALL_SECONDS = 300, 1800
"""Time limits for the tests of one mutation, and for all tests without a mutation."""
PASSED, FAILED = 0, 1
"""Exit codes of pytest; others mean that the tests were not run."""


def problems(mutations: Sequence[Mutation]) -> list[str]:
    """Return the mutations whose text does not occur exactly once, or whose tests do not exist."""
    found = []
    for each in mutations:
        path = ROOT / each.file
        count = path.read_text(encoding="utf-8").count(each.old) if path.is_file() else 0
        if count != 1:
            found.append(f"{each.file}: {each.old!r}: found {count} times, expected 1")
        found += [f"{test}: no such file" for test in each.tests if not (ROOT / test.partition("::")[0]).is_file()]
    return found


def copy_project(target: Path) -> None:
    """Copy the files of the working tree that git does not ignore."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    for name in subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0"):
        source = ROOT / name
        if name and source.is_file() and not source.is_symlink():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)
    for name in ("node_modules", ".venv"):
        (target / name).symlink_to(ROOT / name)


def run_tests(
    project: Path,
    tests: Sequence[str],
    timeout_seconds: float = TIMEOUT_SECONDS,
    expected: Sequence[int] = (PASSED, FAILED),
) -> int:
    """Run tests in a copy of the project; return pytest's exit code. A run that takes too long counts as failed.

    Prints the output of pytest if the exit code is not an expected one.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(project), "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, cwd=project, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            sys.stdout.write(f"the tests took longer than {timeout_seconds} s\n")
            return FAILED
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if code not in expected:
            output.seek(0)
            sys.stdout.write(output.read())
        return code


def apply(mutation: Mutation, project: Path) -> int:
    """Run the tests of a mutation in a copy of the project with the mutation; return pytest's exit code."""
    path = project / mutation.file
    original = path.read_text(encoding="utf-8")
    path.write_text(original.replace(mutation.old, mutation.new), encoding="utf-8")
    try:
        return run_tests(project, mutation.tests)
    finally:
        path.write_text(original, encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Apply the mutations; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutate", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="only mutations of files with TEXT in their path")
    parser.add_argument("--jobs", type=int, default=2, help="mutations at a time (default: 2)")
    options = parser.parse_args(arguments)
    mutations = [each for each in MUTATIONS if options.only in each.file]
    wrong = problems(mutations)
    if wrong:
        sys.stdout.write("".join(f"{line}\n" for line in wrong))
        return 1
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder, ThreadPoolExecutor(options.jobs) as pool:
        copies: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for number in range(options.jobs):
            copy = Path(folder) / str(number)
            copy_project(copy)
            copies.put(copy)

        def take(mutation: Mutation) -> int:
            copy = copies.get()
            try:
                return apply(mutation, copy)
            finally:
                copies.put(copy)

        first = copies.get()
        tests = sorted({test for each in mutations for test in each.tests})
        sys.stdout.write(f"{len(mutations)} mutations; running their tests without them\n")
        if run_tests(first, ["-n", str(options.jobs), *tests], TIMEOUT_OF_ALL_SECONDS, (PASSED,)) != PASSED:
            sys.stdout.write("the tests fail without a mutation\n")
            return 1
        copies.put(first)
        outcomes = []
        for mutation, code in zip(mutations, pool.map(take, mutations), strict=True):
            outcomes.append({PASSED: "SURVIVED", FAILED: "killed"}.get(code, f"NOT RUN (pytest ended with {code})"))
            sys.stdout.write(f"{outcomes[-1]:9} {mutation.file}: {mutation.old.strip()} -> {mutation.new.strip()}\n")
            sys.stdout.flush()
    killed = outcomes.count("killed")
    sys.stdout.write(f"{killed} of {len(outcomes)} mutations killed\n")
    return 0 if killed == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
