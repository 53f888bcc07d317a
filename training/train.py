"""The `train` command: runs one rank, from parsing the command line to writing the outcome file.

Stop signals are handled before any slow import, so a process that receives one during startup exits cleanly.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from training.errors import ConfigurationError, NotReformedError, SupersededError, TrainingError

if TYPE_CHECKING:
    from training.loop.interruption import Interruption
    from training.process.outcome import Ending, Outcome

logger = logging.getLogger("training")


def add_train_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the arguments of ``train``."""
    train = commands.add_parser("train", help="start or resume a run")
    train.add_argument("--config", type=Path, required=True, help="JSON file with a TrainingConfig")
    train.add_argument("--dataset", type=Path, required=True, help="dataset directory, as written by `tokenize`")
    train.add_argument("--dataset-url", help="the dataset's s3://bucket/prefix, required by `data.stream_cache_gib`")
    train.add_argument(
        "--checkpoints",
        required=True,
        help="checkpoint store: s3://bucket/prefix, a directory, or DIRECTORY,URL for a local and a durable tier",
    )
    train.add_argument(
        "--run-directory", type=Path, required=True, help="directory for stop and save requests, outcomes and metrics"
    )
    train.add_argument(
        "--generation", type=int, default=0, help="the gang's generation; later generations supersede earlier ones"
    )
    train.add_argument(
        "--joins",
        action="store_true",
        help="join a running gang, and receive the state from its ranks (parallel.reform)",
    )


def set_up_logging() -> None:
    """Log to standard error with the rank in every line."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format=f"%(asctime)s rank{os.environ.get('RANK', '0')} %(levelname)s %(name)s: %(message)s",
    )
    logging.getLogger("botocore").setLevel(logging.WARNING)


def run_rank(arguments: list[str]) -> int:
    """Run ``train`` as a rank forked by the standby process; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m training")
    add_train_parser(parser.add_subparsers(required=True))
    options = parser.parse_args(arguments)
    set_up_logging()
    return run_train(options)


def run_train(options: argparse.Namespace) -> int:
    """Run ``python -m training train``: train, and write the outcome file; return the exit code."""
    from training.loop.interruption import Interruption

    interruption = Interruption()
    interruption.watch(options.run_directory)

    from training.process.outcome import EXIT_CODES
    from training.process.stack_dump import dump_stacks_on_signal

    rank = int(os.environ.get("RANK", "0"))
    dump_stacks_on_signal(options.run_directory, rank)
    outcome = _train_to_outcome(options, interruption, rank)
    try:
        outcome.write(options.run_directory)
    except OSError as error:
        logger.error("%s: cannot write the outcome (%s): %s", options.run_directory, error.strerror, outcome)
        return EXIT_CODES["failed"]
    level = logging.INFO if outcome.outcome in ("finished", "stopped") else logging.ERROR
    for line in (outcome.message or outcome.outcome).splitlines():
        logger.log(level, "%s: %s", outcome.outcome, line)
    if outcome.outcome != "finished":
        # Do not join threads: they may be blocked in collectives or transfers, which could take minutes.
        sys.stderr.flush()
        os._exit(EXIT_CODES[outcome.outcome])
    return EXIT_CODES[outcome.outcome]


def _train_to_outcome(options: argparse.Namespace, interruption: Interruption, rank: int) -> Outcome:
    from training.observe.metrics import MetricsFile
    from training.process.outcome import Outcome

    progress = metrics = None
    ending: Ending
    trace = None
    try:
        from training.config import read_config

        config = read_config(options.config)
        is_main = rank == 0 and not options.joins
        metrics = MetricsFile(options.run_directory / "metrics.jsonl" if is_main else None)

        from training.loop.job import Job
        from training.loop.trainer import Progress, train

        progress = Progress(generation=options.generation, rank=rank)
        job = Job(
            config,
            options.dataset,
            options.checkpoints,
            options.run_directory,
            options.generation,
            options.dataset_url,
            options.joins,
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
    except NotReformedError as error:
        ending, message = "not_reformed", str(error)
    except SystemExit as error:
        ending, trace = "failed", traceback.format_exc()
        message = (
            f"the code exited with {error.code!r} (sys.exit, or argparse, which reads the trainer's command line); "
            "raise an exception, and use options for settings"
        )
        logger.error("%s", trace)
    # The outcome file must report every failure to the supervisor, so catch all exceptions.
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
    if progress is not None:  # the gang may have been re-formed since the start
        options.generation, rank = progress.generation, progress.rank
    return Outcome(options.generation, rank, ending, step, checkpoint_step, message, trace)
