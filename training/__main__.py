"""Command line of the trainer: train, prepare data, inspect checkpoints, use a trained model, measure and tune."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from training.checkpoint.tool.arguments import add_checkpoint_parser
from training.data.arguments import (
    add_prepare_parser,
    add_prepared_parser,
    add_publish_parser,
    add_tokenize_parser,
)
from training.errors import TrainingError
from training.inference.arguments import add_inference_parsers
from training.train import add_train_parser, run_rank, run_train, set_up_logging

USAGE_EXIT_CODE = 2


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return its exit code."""
    options = _parser().parse_args(arguments)
    set_up_logging()
    if options.command == "train":
        return run_train(options)
    try:
        return _run(options)
    except TrainingError as error:
        sys.stderr.write(f"{error}\n")
        return USAGE_EXIT_CODE


def _run(options: argparse.Namespace) -> int:
    """Run any other command, importing only the modules that it needs."""
    match options.command:
        case "standby":
            from training.process.standby import run_standby

            return run_standby(run_rank)
        case "publish":
            from training.data.publish import run_publish

            return run_publish(options)
        case "prepare":
            from training.data.prepare import run_prepare

            return run_prepare(options)
        case "prepared":
            from training.data.prepare import run_prepared

            return run_prepared(options)
        case "tokenize":
            from training.data.text.tokenize import run_tokenize

            return run_tokenize(options)
        case "find-learning-rate":
            from training.bench.find_learning_rate import run_find_learning_rate

            return run_find_learning_rate(options)
        case "bench":
            from training.bench.ablations import run_bench

            return run_bench(options)
        case "weights":
            from training.inference.weights import run_weights

            return run_weights(options)
        case "sample":
            from training.inference.sample import run_sample

            return run_sample(options)
        case "evaluate":
            from training.inference.evaluate import run_evaluate

            return run_evaluate(options)
        case "metrics":
            from training.observe.log_metrics import run_metrics

            return run_metrics(options)
        case "diagnose":
            from training.observe.diagnosis import run_diagnose

            return run_diagnose(options)
        case _:
            from training.checkpoint.tool.actions import run_checkpoint

            return run_checkpoint(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    add_train_parser(commands)
    commands.add_parser("standby", help="import all modules, then wait until the supervisor starts a generation")
    add_tokenize_parser(commands)
    add_publish_parser(commands)
    add_prepare_parser(commands)
    add_prepared_parser(commands)
    add_checkpoint_parser(commands)
    add_inference_parsers(commands)
    _add_find_learning_rate_parser(commands)
    bench = commands.add_parser("bench", help="benchmark a config and its ablations on synthetic tokens")
    bench.add_argument("--config", type=Path, help="JSON file with a TrainingConfig; if omitted, all defaults apply")
    bench.add_argument("--steps", type=int, default=60, help="steps per run")
    bench.add_argument("--processes", type=int, default=1, help="processes per run, on this machine")
    bench.add_argument("--vocabulary-size", type=int, default=50304, help="number of token ids")
    bench.add_argument("--only", help="run only ablations with this text in their names, such as compile")
    metrics = commands.add_parser("metrics", help="process metrics from a run or from another training script")
    actions = metrics.add_subparsers(dest="action", required=True)
    extract = actions.add_parser("extract", help="print the metrics found in a training script's log as JSON lines")
    extract.add_argument("log", type=Path, help="log file, or - for standard input")
    diagnosis = commands.add_parser("diagnose", help="report a run's bottlenecks and the settings that may remove them")
    diagnosis.add_argument("run", type=Path, help="run directory, or its metrics.jsonl")
    return parser


def _add_find_learning_rate_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "find-learning-rate", help="run a learning-rate range test, and print the suggested learning rate"
    )
    command.add_argument("--config", type=Path, required=True, help="JSON file with a TrainingConfig")
    command.add_argument("--dataset", type=Path, required=True, help="dataset directory, as written by `tokenize`")
    command.add_argument("--steps", type=int, default=100, help="number of steps in the test")
    command.add_argument("--lowest", type=float, default=1e-6, help="learning rate at the first step")
    command.add_argument("--highest", type=float, default=1.0, help="learning rate at the last step")


if __name__ == "__main__":
    sys.exit(main())
