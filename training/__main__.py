"""Command line: ``train`` a model (under torchrun or alone), ``tokenize`` a folder, look into a ``checkpoint`` store.

Signals are caught before anything slow is imported: a process that is told to stop while it starts will stop in order.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from training.checkpoint.tool_arguments import add_checkpoint_parser
from training.data.arguments import (
    add_prepare_parser,
    add_prepared_parser,
    add_publish_parser,
    add_tokenize_parser,
)
from training.errors import ConfigurationError, SupersededError, TrainingError

if TYPE_CHECKING:
    from training.interruption import Interruption
    from training.outcome import Ending, Outcome

logger = logging.getLogger("training")

USAGE_EXIT_CODE = 2


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return its exit code."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format=f"%(asctime)s rank{os.environ.get('RANK', '0')} %(levelname)s %(name)s: %(message)s",
    )
    logging.getLogger("botocore").setLevel(logging.WARNING)
    if options.command == "train":
        return _train(options)
    try:
        if options.command == "standby":
            from training.standby import run_standby

            return run_standby()
        if options.command == "publish":
            from training.data.publish import run_publish

            return run_publish(options)
        if options.command == "prepare":
            from training.data.preparation import run_prepare

            return run_prepare(options)
        if options.command == "prepared":
            from training.data.prepared import run_prepared

            return run_prepared(options)
        if options.command == "tokenize":
            from training.data.tokenize import run_tokenize

            return run_tokenize(options)
        if options.command == "find-learning-rate":
            from training.finders.learning_rate import run_find_learning_rate

            return run_find_learning_rate(options)
        if options.command == "bench":
            from training.bench.levers import run_bench

            return run_bench(options)
        if options.command == "metrics":
            from training.log_metrics import run_metrics

            return run_metrics(options)
        if options.command == "diagnose":
            from training.diagnosis import run_diagnose

            return run_diagnose(options)
        from training.checkpoint.tool import run_checkpoint

        return run_checkpoint(options)
    except TrainingError as error:
        sys.stderr.write(f"{error}\n")
        return USAGE_EXIT_CODE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    train = commands.add_parser("train", help="train, or go on training, one run")
    train.add_argument("--config", type=Path, required=True, help="JSON file of a TrainingConfig")
    train.add_argument("--dataset", type=Path, required=True, help="dataset directory, as `tokenize` makes it")
    train.add_argument("--dataset-url", help="s3://bucket/prefix of that dataset, for `data.stream_cache_gib`")
    train.add_argument(
        "--checkpoints",
        required=True,
        help="checkpoint store: s3://bucket/prefix, a directory, or DIRECTORY,URL: a fast tier, and the durable one",
    )
    train.add_argument(
        "--run-directory", type=Path, required=True, help="where stop and save requests, outcomes and metrics are"
    )
    train.add_argument(
        "--generation", type=int, default=0, help="number of the gang; a later one supersedes earlier ones"
    )

    commands.add_parser("standby", help="import all of it, and wait for a supervisor to say which generation to start")
    add_tokenize_parser(commands)
    add_publish_parser(commands)
    add_prepare_parser(commands)
    add_prepared_parser(commands)
    add_checkpoint_parser(commands)
    _add_finder_parser(commands)
    bench = commands.add_parser("bench", help="measure a config, and each lever on against off, on made-up tokens")
    bench.add_argument("--config", type=Path, help="JSON file of a TrainingConfig; default: the defaults")
    bench.add_argument("--steps", type=int, default=60, help="steps of each run")
    bench.add_argument("--processes", type=int, default=1, help="processes of each run, on this machine")
    bench.add_argument("--vocabulary-size", type=int, default=50304, help="token ids")
    bench.add_argument("--only", help="changes whose name has this, such as compile")
    metrics = commands.add_parser("metrics", help="metrics of a run or of somebody else's trainer")
    actions = metrics.add_subparsers(dest="action", required=True)
    extract = actions.add_parser("extract", help="print the metrics in a log of any script as JSON lines")
    extract.add_argument("log", type=Path, help="the log, or - for standard input")
    diagnosis = commands.add_parser("diagnose", help="say what limits a run, and which setting to change")
    diagnosis.add_argument("run", type=Path, help="run directory, or its metrics.jsonl")
    return parser


def _add_finder_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    finder = commands.add_parser(
        "find-learning-rate", help="let the learning rate grow until the loss no longer falls, and name a good one"
    )
    finder.add_argument("--config", type=Path, required=True, help="JSON file of a TrainingConfig")
    finder.add_argument("--dataset", type=Path, required=True, help="dataset directory, as `tokenize` makes it")
    finder.add_argument("--steps", type=int, default=100, help="steps of the test")
    finder.add_argument("--lowest", type=float, default=1e-6, help="learning rate of the first step")
    finder.add_argument("--highest", type=float, default=1.0, help="learning rate of the last step")


def _train(options: argparse.Namespace) -> int:
    from training.interruption import Interruption

    interruption = Interruption()
    interruption.watch(options.run_directory)

    from training.outcome import EXIT_CODES
    from training.stack_dump import answer_with_stacks

    rank = int(os.environ.get("RANK", "0"))
    answer_with_stacks(options.run_directory, rank)
    outcome = _train_to_outcome(options, interruption, rank)
    try:
        outcome.write(options.run_directory)
    except OSError as error:
        logger.error("%s: the outcome cannot be written (%s): %s", options.run_directory, error.strerror, outcome)
        return EXIT_CODES["failed"]
    level = logging.INFO if outcome.outcome in ("finished", "stopped") else logging.ERROR
    for line in (outcome.message or outcome.outcome).splitlines():
        logger.log(level, "%s: %s", outcome.outcome, line)
    if outcome.outcome != "finished":
        # Threads may still be in collectives or transfers that nobody will answer; joining them could take minutes.
        sys.stderr.flush()
        os._exit(EXIT_CODES[outcome.outcome])
    return EXIT_CODES[outcome.outcome]


def _train_to_outcome(options: argparse.Namespace, interruption: Interruption, rank: int) -> Outcome:
    from training.metrics import MetricsFile
    from training.outcome import Outcome

    progress = metrics = None
    ending: Ending
    trace = None
    try:
        from training.config import read_config

        config = read_config(options.config)
        metrics = MetricsFile(options.run_directory / "metrics.jsonl" if rank == 0 else None)

        from training.assembly import Job
        from training.trainer import Progress, train

        progress = Progress()
        job = Job(
            config, options.dataset, options.checkpoints, options.run_directory, options.generation, options.dataset_url
        )
        if config.entrypoint is None:
            ending, message = train(job, interruption, metrics, progress)
        else:
            from training.script import run_entrypoint

            ending, message = run_entrypoint(job, interruption, progress)
    except ConfigurationError as error:
        ending, message = "bad_configuration", str(error)
    except SupersededError as error:
        ending, message = "superseded", str(error)
    # The top level: whatever it is, the supervisor has to find it in the outcome file.
    except Exception as error:  # noqa: BLE001
        ending, message, trace = "failed", str(error) or type(error).__name__, traceback.format_exc()
        logger.error("%s", trace)
    step = progress.step if progress else None
    checkpoint_step = progress.checkpoint_step if progress else None
    if metrics is not None:
        try:
            metrics.write("end", step=step, outcome=ending)
            metrics.close()
        except TrainingError as error:
            logger.error("%s", error)
    return Outcome(options.generation, rank, ending, step, checkpoint_step, message, trace)


if __name__ == "__main__":
    sys.exit(main())
