"""Runs the other programs of this project.

`run` starts a program that is part of a command, and prints a line when the program prints nothing for a while. The
commands `weights`, `sample` and `evaluate` find a run's checkpoint store and dataset, and then become
`python -m training`, because only that program imports torch.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Annotated, Any, Literal

import typer

from bootstrap.documents.object_keys import run_prefix
from trainstack import account
from trainstack.session import FAILED, INVALID, Account, CommandError, Region

SILENT_SECONDS = 4.0
"""Longest time without a line of output."""

Model = Annotated[
    str,
    typer.Argument(metavar="NAME|FOLDER|URL", help="Deployment name, ./folder, or s3://bucket/prefix of checkpoints."),
]
Step = Annotated[int | None, typer.Option(min=0, help="Step of the checkpoint; default: the newest checkpoint.")]
DatasetUrl = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Dataset directory or s3://bucket/prefix; default: the deployment's dataset."),
]
PANEL = "Use a trained model"


def python(module: str, *arguments: str) -> list[str]:
    """Return the command line of a program of this project."""
    return [sys.executable, "-m", module, *arguments]


def run(command: Sequence[str], what: str, *, environment: Mapping[str, str] | None = None) -> int:
    """Run a program without standard input, copy its output to standard error, and return its exit code.

    Args:
        command: The program and its arguments.
        what: Name of the action, to print while the program prints nothing.
        environment: The program's environment; None for this process's.
    """
    started = time.monotonic()
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    lines: queue.Queue[str | None] = queue.Queue()
    reader = threading.Thread(target=_read, args=(process.stdout, lines), name=f"output of {what}", daemon=True)
    reader.start()
    try:
        while True:
            try:
                line = lines.get(timeout=SILENT_SECONDS)
            except queue.Empty:
                line = f"{what} ... ({time.monotonic() - started:.0f} s)\n"
            if line is None:
                return process.wait()
            sys.stderr.write(line)
            sys.stderr.flush()
    except BaseException:  # also Ctrl-C: the program must not continue without this one
        process.terminate()
        process.wait()
        raise


def _read(output: IO[Any] | None, lines: queue.Queue[str | None]) -> None:
    assert output is not None
    for line in output:
        lines.put(line)
    lines.put(None)


def add(app: typer.Typer) -> None:
    """Add the commands to a command line."""
    for name, command in (("weights", weights), ("sample", sample), ("evaluate", evaluate)):
        app.command(name, rich_help_panel=PANEL)(command)


def weights(
    model: Model,
    output: Annotated[Path, typer.Option("--output", "-o", help="New or empty folder.")],
    step: Step = None,
    dataset: DatasetUrl = None,
    layout: Annotated[
        Literal["hugging-face", "trainstack"],
        typer.Option(help="Tensor names: those of transformers with a config.json, or those of the state_dict."),
    ] = "hugging-face",
    region: Region = None,
) -> None:
    """Write a checkpoint's weights to a folder, as safetensors."""
    address, data = _resolve(model, step, dataset, region)
    _become("weights", address, *data, "--output", str(output), "--layout", layout)


def sample(
    model: Model,
    prompt: Annotated[str, typer.Option(help="Text to continue.")],
    step: Step = None,
    dataset: DatasetUrl = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Greatest number of new tokens.")] = 100,
    temperature: Annotated[float, typer.Option(min=0.0, help="Divisor of the scores; 0: the most probable token.")] = 1,
    top_k: Annotated[int | None, typer.Option(min=1, help="Sample from this number of most probable tokens.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random choices.")] = 0,
    region: Region = None,
) -> None:
    """Continue a text with a trained GPT or Llama."""
    address, data = _resolve(model, step, dataset, region)
    numbers = ["--max-new-tokens", str(max_new_tokens), "--temperature", str(temperature), "--seed", str(seed)]
    # A prompt that starts with a dash would otherwise be an option.
    _become(
        "sample", address, *data, f"--prompt={prompt}", *numbers, *([] if top_k is None else ["--top-k", str(top_k)])
    )


def evaluate(
    model: Model,
    step: Step = None,
    dataset: DatasetUrl = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    region: Region = None,
) -> None:
    """Measure loss, perplexity and bits per byte on a dataset's complete validation split."""
    address, data = _resolve(model, step, dataset, region)
    if not data:
        raise CommandError(INVALID, f"{model}: no dataset; name one with --dataset")
    _become("evaluate", address, *data, *(["--json"] if as_json else []))


def _resolve(model: str, step: int | None, dataset: str | None, region: str | None) -> tuple[str, list[str]]:
    """Return the model's address and the arguments for the dataset."""
    if region is not None:
        os.environ["AWS_REGION"] = os.environ["AWS_DEFAULT_REGION"] = region
    if "/" in model or model.startswith("."):
        address = model
    else:
        opened = Account(region).prepare("cloudformation", "ssm")
        found = account.find(opened.client, model)
        problems: list[str] = []
        run = account.run_document(opened.client, found, problems)
        if run is None:
            raise CommandError(FAILED, "; ".join(problems))
        address = f"s3://{found.checkpoint_bucket}/{run_prefix(found.name, run.run)}/checkpoints"
        if dataset is None:
            if run.prepare is not None:
                raise CommandError(INVALID, f"{model}: its dataset is prepared by nodes; name a copy with --dataset")
            dataset = f"s3://{found.dataset_bucket}/datasets/{run.dataset}"
        os.environ["AWS_REGION"] = os.environ["AWS_DEFAULT_REGION"] = opened.region
    if step is not None:
        if "#" in address:
            raise CommandError(INVALID, f"{model}: selects a checkpoint, and so does --step; use one of them")
        address += f"#{step}"
    return address, [] if dataset is None else ["--dataset", dataset]


def _become(command: str, *arguments: str) -> None:
    """Replace this process with a program of this project."""
    words = python("training", command, *arguments)
    sys.stdout.flush()
    os.execv(words[0], words)  # noqa: S606 needs no shell
