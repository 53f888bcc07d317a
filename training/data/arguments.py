"""Arguments for the dataset commands, kept separate so that ``--help`` does not import slow modules."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

VALIDATION_SHARE = 0.05
SHARD_TOKENS = 1 << 25


def add_tokenize_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the parser for ``tokenize``."""
    tokenize = commands.add_parser(
        "tokenize",
        help="create a dataset from a folder of text files",
        description="Create a dataset from a folder of text, JSON, JSON Lines and Parquet files. Compression (gzip, "
        "bzip2, xz, zstd), encoding (UTF-8, or UTF-16 and UTF-32 with a byte order mark) and JSON records are detected "
        "from the contents. Files that are not text are reported as errors, unless --extensions or --skip-files "
        "excludes them. Hidden folders and folders of installed packages are not searched. sources.jsonl in the "
        "dataset lists all files, with their losses or the reason for skipping them. Run the same command again "
        "to resume after an interruption. Until it finishes, it needs disk space for two copies of the dataset.",
    )
    tokenize.add_argument("--input", type=Path, required=True, help="folder with the text files")
    tokenize.add_argument(
        "--output", required=True, help="directory or s3://bucket/prefix; the dataset is written to NAME under it"
    )
    tokenize.add_argument("--name", required=True, help="name of the dataset")
    tokenizer = tokenize.add_mutually_exclusive_group(required=True)
    tokenizer.add_argument(
        "--vocabulary-size", type=int, help="train a tokenizer with this number of ids (at least 257) on the texts"
    )
    tokenizer.add_argument("--tokenizer", type=Path, help="use this tokenizer.json")
    tokenize.add_argument("--text-key", default="text", help="key or Parquet column with a document's text")
    tokenize.add_argument(
        "--decoding",
        choices=("strict", "replace", "skip-line"),
        default="strict",
        help="how to handle invalid characters: report an error, replace each with U+FFFD, or skip their lines",
    )
    tokenize.add_argument(
        "--json",
        choices=("records", "text"),
        default="records",
        help="records: JSON files contain records with --text-key; text: use them as plain text",
    )
    tokenize.add_argument(
        "--skip-files", action="store_true", help="skip files that are not text instead of reporting an error"
    )
    tokenize.add_argument(
        "--dtype", choices=("auto", "uint16", "uint32"), default="auto", help="auto: the smaller type that fits"
    )
    tokenize.add_argument("--extensions", help="use only files with these extensions, such as .py,.txt; default: all")
    tokenize.add_argument(
        "--max-bytes", type=int, help="use approximately this much text, selected by a hash of the paths"
    )
    tokenize.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="encoding processes")
    tokenize.add_argument(
        "--validation-share",
        type=float,
        default=VALIDATION_SHARE,
        help="share of the documents to hold out for validation",
    )
    tokenize.add_argument("--shard-tokens", type=int, default=SHARD_TOKENS, help="maximum tokens per shard file")


def add_publish_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the parser for ``publish``."""
    publish = commands.add_parser(
        "publish",
        help="publish a folder as a dataset that nodes can stage",
        description="Publish the files in a folder as a dataset, for `data.function` or a script. The folder must not "
        "have subfolders. Only new and changed files are written. The index, which staging reads, is written last.",
    )
    publish.add_argument("--input", type=Path, required=True, help="folder with the files")
    publish.add_argument(
        "--output", required=True, help="s3://bucket/prefix or directory; the dataset is written to NAME under it"
    )
    publish.add_argument("--name", required=True, help="name of the dataset")
    publish.add_argument(
        "--create",
        action="store_true",
        help="never overwrite a file; fail if a file with the same name in the destination has different contents",
    )
    publish.add_argument(
        "--compress",
        action="store_true",
        help="compress files with zstd; nodes decompress them while staging. Not for data.stream_cache_gib or Lustre",
    )


def add_prepare_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the parser for ``prepare``."""
    prepare = commands.add_parser(
        "prepare",
        help="run a function that creates a dataset from raw files, as nodes do for `training.prepare`",
        description="Call FUNCTION(source=..., target=..., **options), and check that the files in the target can be "
        "published. Nodes run this command for `training.prepare`. You can run it anywhere to test a function.",
    )
    prepare.add_argument("--function", required=True, help="package.module:function, found on PYTHONPATH")
    prepare.add_argument("--options", type=Path, help="JSON file with the keyword arguments; default: none")
    prepare.add_argument("--source", type=Path, required=True, help="folder with the raw files")
    prepare.add_argument("--target", type=Path, required=True, help="folder for the function's output")


def add_prepared_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the parser for ``prepared``."""
    prepared = commands.add_parser(
        "prepared",
        help="list or remove the datasets that nodes prepared for `training.prepare`",
        description="List prepared datasets, oldest first. A running deployment prepares a removed dataset again when "
        "it needs the dataset. A run that streams a removed dataset fails.",
    )
    prepared.add_argument("datasets", help="s3://DATASET_BUCKET/datasets")
    prepared.add_argument(
        "--remove", nargs="+", metavar="DIGEST", default=[], help="remove the datasets with these digests or prefixes"
    )
    prepared.add_argument(
        "--older-than-days", type=float, metavar="DAYS", help="remove datasets prepared more than DAYS days ago"
    )
