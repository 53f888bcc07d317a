"""``python -m training prepare``: a function makes a dataset's files from raw ones, as `training.prepare` names it.

The functions that come with Trainstack are here too.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from training.data.arguments import SHARD_TOKENS, VALIDATION_SHARE
from training.data.publish import files_to_publish
from training.data.tokenize import run_tokenize
from training.errors import DatasetError

KEY = "training.prepare.function"


def run_prepare(options: argparse.Namespace) -> int:
    """Run the command; return its exit code.

    Raises:
        ConfigurationError: there is no such function, or it does not take the options.
        DatasetError: what it left is no dataset.
    """
    from training.own_code import call  # imports torch

    folder = options.target
    given = {} if options.options is None else json.loads(options.options.read_bytes())
    folder.mkdir(parents=True, exist_ok=True)
    call(options.function, KEY, given, source=options.source, target=folder)
    try:
        files_to_publish(folder)
    except DatasetError as error:
        raise DatasetError([f"{KEY}: {options.function}: {problem}" for problem in error.problems]) from error
    return 0


def tokenize(
    source: Path,
    target: Path,
    *,
    vocabulary_size: int,
    text_key: str = "text",
    extensions: str | None = None,
    max_bytes: int | None = None,
    validation_share: float = VALIDATION_SHARE,
    shard_tokens: int = SHARD_TOKENS,
) -> None:
    """Make a dataset of tokens from text: files of text, JSON Lines and Parquet, as ``python -m training tokenize``.

    Args:
        source: the folder of texts.
        target: where the dataset goes.
        vocabulary_size: ids of the tokenizer, which is trained on the texts; 257 or more.
        text_key: key, or column of Parquet, that holds a document's text.
        extensions: only files with these, such as ``.py,.txt``; None: all that hold text.
        max_bytes: use about this much text, picked by hash of the path.
        validation_share: of the documents, that is not trained on.
        shard_tokens: most tokens in one shard file.

    Raises:
        TokenizeError: wrong options or text.
    """
    arguments = argparse.Namespace(
        input=source,
        output=str(target.parent),
        name=target.name,
        tokenizer=None,
        vocabulary_size=vocabulary_size,
        text_key=text_key,
        dtype="auto",
        extensions=extensions,
        max_bytes=max_bytes,
        workers=len(os.sched_getaffinity(0)),
        validation_share=validation_share,
        shard_tokens=shard_tokens,
    )
    run_tokenize(arguments)
