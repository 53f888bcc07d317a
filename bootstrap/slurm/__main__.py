"""The commands of a job: `python -m bootstrap.slurm begin|notice|conclude|node|health`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from bootstrap.slurm.commands import SlurmError
from bootstrap.slurm.records import RecordError, read_document

DOCUMENT = "TRAINSTACK_JOB"
"""Environment variable with the path of the job document."""


def main() -> int:
    """Run one command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m bootstrap.slurm", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("begin", help="claim a generation, and print its settings as shell assignments")
    for name, text in (
        ("notice", "submit the job that continues the run"),
        ("conclude", "decide what happens after the trainers exit, and print the action"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("--generation", type=int, required=True)
        command.add_argument("--reason", default="", help="reason why the job ends")
    commands.add_parser("node", help="run this node's trainers")
    health = commands.add_parser("health", help="check this node's GPUs; usable as a prolog or HealthCheckProgram")
    health.add_argument("--gpus", type=int, required=True, help="number of GPUs that the node must have")
    options = parser.parse_args()
    if options.command == "health":
        from bootstrap.slurm.health import report

        return report(options.gpus)
    try:
        document = read_document(Path(os.environ.get(DOCUMENT, "")))
        if options.command == "node":
            from bootstrap.slurm.node import run_node

            return run_node(document, os.environ)
        from bootstrap.slurm.job import Job

        job = Job(document, os.environ)
        if options.command == "begin":
            return job.begin()
        act = job.notice if options.command == "notice" else job.conclude
        print(act(options.generation, options.reason))
    except (RecordError, SlurmError, OSError) as error:
        print(f"trainstack: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
