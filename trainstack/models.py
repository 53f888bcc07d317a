"""The commands `weights`, `sample` and `evaluate`.

They find a run's checkpoint store and dataset, and then become `python -m training`, because only that program imports
torch.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from bootstrap.documents.object_keys import run_prefix
from trainstack import account
from trainstack.programs import python
from trainstack.session import FAILED, INVALID, Account, CommandError, Region

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
    # Otherwise, a prompt that starts with a dash would be parsed as an option.
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
