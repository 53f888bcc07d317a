"""Writes a checkpoint's weights to a folder: ``python -m training weights``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from training.checkpoint.selection import Selected, select
from training.checkpoint.tool.export import export_bytes, export_file, write_file
from training.checkpoint.tool.presentation import Presenter, size
from training.checkpoint.weights import load_selected_weights
from training.config import ModelConfig
from training.data.text.bpe import end_of_text_id
from training.errors import ConfigurationError
from training.inference.trained import settings_of, tokenizer_of
from training.models.hugging_face import config_document, to_hugging_face
from training.models.initial_weights import CONFIG_FILE, TOKENIZER_FILE, WEIGHTS_FILE
from training.models.named import build_named_model

TOKENIZER_CONFIG_FILE = "tokenizer_config.json"


def run_weights(options: argparse.Namespace) -> int:
    """Run the command; return its exit code. Raises TrainingError."""
    write_weights(options.model, options.output, options.layout, options.dataset)
    return 0


def write_weights(model: str, folder: Path, layout: str, dataset: str | None) -> None:
    """Write a checkpoint's weights to a folder, and print a line about it.

    Args:
        model: The checkpoint, as in `training.checkpoint.selection.select`.
        folder: The folder, which is new or empty.
        layout: `hugging-face` or `trainstack`.
        dataset: The dataset with the tokenizer, which is also written; None: no tokenizer.

    Raises:
        TrainingError: The checkpoint does not exist or is damaged, or the folder cannot be written.
    """
    selected = select(model)
    config = settings_of(selected)
    is_named = config is not None and config.function is None
    if not is_named and layout == "hugging-face":
        owner = "another trainer" if config is None else f"the custom model {config.function}"
        raise ConfigurationError(
            [f"{selected.title}: belongs to {owner}, which transformers does not support; use --layout trainstack"]
        )
    subject = selected.manifest.subject
    content = None
    if dataset is not None:
        content = tokenizer_of(dataset, frozenset({subject.tokenizer_sha256} if subject else ()))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigurationError([f"{folder}: not empty; choose another folder"])
        if is_named and config is not None:
            _write_named(selected, config, folder, layout, content)
        else:
            with Presenter(as_json=False).progress("read", export_bytes(selected, "weights")) as report:
                export_file(selected, folder / WEIGHTS_FILE, "weights", overwrite=False, report=report)
        if content is not None:
            (folder / TOKENIZER_FILE).write_bytes(content)
    except OSError as error:
        raise ConfigurationError([f"{folder}: cannot be written ({error.strerror}); choose another folder"]) from error
    written = size((folder / WEIGHTS_FILE).stat().st_size)
    sys.stdout.write(f"{folder}: the weights of {selected.title}, {written}\n")


def _write_named(selected: Selected, config: ModelConfig, folder: Path, layout: str, tokenizer: bytes | None) -> None:
    subject = selected.manifest.subject
    assert subject is not None, "a named model has one"
    model = build_named_model(config, subject.vocabulary_size)
    load_selected_weights(selected, model)
    state = model.state_dict()
    if layout == "hugging-face":
        end = None
        if tokenizer is not None:
            opened = Tokenizer.from_str(tokenizer.decode())
            end = end_of_text_id(opened)
            document = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": opened.id_to_token(end)}
            _write_json(document, folder / TOKENIZER_CONFIG_FILE)
        _write_json(config_document(config, subject.vocabulary_size, end), folder / CONFIG_FILE)
        state = to_hugging_face(config, state)
    # The format does not permit tensors that share memory, such as a tied head.
    tensors = {name: tensor.clone() for name, tensor in state.items()}
    write_file(tensors, {"format": "pt"}, folder / WEIGHTS_FILE)


def _write_json(document: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
