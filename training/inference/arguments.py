"""Arguments of ``weights``, ``sample`` and ``evaluate``. Every command imports this module, so importing it is fast."""

from __future__ import annotations

import argparse
from pathlib import Path

from training.checkpoint.address import GRAMMAR

MODEL_HELP = "URL[#CHECKPOINT] of a checkpoint store, or a folder with a GPT-2 or Llama in Hugging Face's layout"
DATASET_HELP = "dataset with the model's tokenizer, as written by `tokenize`: a directory or s3://bucket/prefix"


def add_inference_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the parsers for the three commands."""
    weights = _add(commands, "weights", "write a checkpoint's weights to a folder that transformers can load")
    weights.add_argument("model", metavar="URL[#CHECKPOINT]", help="the checkpoint")
    weights.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="new or empty folder")
    weights.add_argument(
        "--layout",
        choices=("hugging-face", "trainstack"),
        default="hugging-face",
        help="tensor names: those of transformers, with a config.json, or those of this project's state_dict. "
        "A custom model has only the second layout. Default: %(default)s",
    )
    weights.add_argument("--dataset", metavar="URL", help=f"{DATASET_HELP}; adds the tokenizer to the folder")
    sample = _add(commands, "sample", "continue a text with a trained GPT or Llama")
    sample.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    sample.add_argument("--dataset", metavar="URL", help=f"{DATASET_HELP}; not needed if MODEL has a tokenizer.json")
    sample.add_argument("--prompt", required=True, help="text to continue")
    sample.add_argument("--max-new-tokens", type=int, default=100, help="default: %(default)s")
    sample.add_argument(
        "--temperature", type=float, default=1.0, help="divisor of the scores; 0: the most probable token. Default: 1"
    )
    sample.add_argument("--top-k", type=int, help="sample only from this number of most probable tokens")
    sample.add_argument("--seed", type=int, default=0, help="random seed for sampling; default: %(default)s")
    evaluate = _add(commands, "evaluate", "measure a model's loss on the complete validation split of a dataset")
    evaluate.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    evaluate.add_argument("--dataset", metavar="URL", required=True, help=DATASET_HELP)
    evaluate.add_argument("--batch-size", type=int, default=8, help="sequences per batch; default: %(default)s")
    evaluate.add_argument("--json", action="store_true", help="print JSON")


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, summary: str
) -> argparse.ArgumentParser:
    return commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}. {GRAMMAR}")
