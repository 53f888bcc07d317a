"""Arguments of ``python -m training tokenize``; apart from the work, so that ``--help`` imports nothing slow."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

VALIDATION_SHARE = 0.05
SHARD_TOKENS = 1 << 25


def add_tokenize_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command."""
    tokenize = commands.add_parser(
        "tokenize",
        help="make a dataset from the texts of a folder",
        description="Makes a dataset from the texts of a folder: files of text, JSON Lines (.jsonl, .ndjson, and with "
        ".json too: .gz, .zst) and Parquet. Interrupted, it goes on where it was when the same command is run "
        "again; until it is done it takes twice the room of the dataset.",
    )
    tokenize.add_argument("--input", type=Path, required=True, help="folder of texts")
    tokenize.add_argument(
        "--output", required=True, help="directory or s3://bucket/prefix; the dataset goes to NAME under it"
    )
    tokenize.add_argument("--name", required=True, help="name of the dataset")
    tokenizer = tokenize.add_mutually_exclusive_group(required=True)
    tokenizer.add_argument(
        "--vocabulary-size", type=int, help="train a tokenizer with so many ids, 257 or more, on the texts"
    )
    tokenizer.add_argument("--tokenizer", type=Path, help="use this tokenizer.json")
    tokenize.add_argument("--text-key", default="text", help="key, or column of Parquet, that holds a document's text")
    tokenize.add_argument(
        "--dtype", choices=("auto", "uint16", "uint32"), default="auto", help="auto: the smaller one that fits"
    )
    tokenize.add_argument("--extensions", help="only files with these, such as .py,.txt; default: all that hold text")
    tokenize.add_argument("--max-bytes", type=int, help="use about this much text, picked by hash of the path")
    tokenize.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="encoding processes")
    tokenize.add_argument(
        "--validation-share", type=float, default=VALIDATION_SHARE, help="share of the documents that is not trained on"
    )
    tokenize.add_argument("--shard-tokens", type=int, default=SHARD_TOKENS, help="most tokens in one shard file")


def add_publish_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command."""
    publish = commands.add_parser(
        "publish",
        help="put the files of a dataset of your own where nodes are staged from",
        description="Puts the files of a folder (no folders in it) into a dataset, for `data.function` or a script. "
        "Only files that are new or changed are written; the index, which staging goes by, comes last.",
    )
    publish.add_argument("--input", type=Path, required=True, help="folder of files")
    publish.add_argument(
        "--output", required=True, help="s3://bucket/prefix or directory; the dataset goes to NAME under it"
    )
    publish.add_argument("--name", required=True, help="name of the dataset")
    publish.add_argument(
        "--compress",
        action="store_true",
        help="store files as zstd; nodes expand them while they stage. Not for data.stream_cache_gib, nor Lustre",
    )


def add_prepare_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command."""
    prepare = commands.add_parser(
        "prepare",
        help="let a function make a dataset's files from raw ones, as nodes do for `training.prepare`",
        description="Calls FUNCTION(source=..., target=..., **options) and checks that what it left in the target can "
        "be published. Nodes run it for `training.prepare`; run it here to try a function.",
    )
    prepare.add_argument("--function", required=True, help="package.module:function, found on PYTHONPATH")
    prepare.add_argument("--options", type=Path, help="JSON file of an object: its keyword arguments; default: none")
    prepare.add_argument("--source", type=Path, required=True, help="folder of raw files")
    prepare.add_argument("--target", type=Path, required=True, help="folder for what the function makes")


def add_prepared_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command."""
    prepared = commands.add_parser(
        "prepared",
        help="list what nodes prepared for `training.prepare`, or remove what is stale",
        description="Lists prepared data, the oldest first. What a running deployment needs is prepared anew when it "
        "is removed; a run that streams it fails.",
    )
    prepared.add_argument("datasets", help="s3://DATASET_BUCKET/datasets")
    prepared.add_argument("--remove", nargs="+", metavar="DIGEST", default=[], help="remove these; first digits do")
    prepared.add_argument("--older-than-days", type=float, metavar="DAYS", help="remove those prepared before that")
