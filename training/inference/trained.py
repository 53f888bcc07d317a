"""Opens a trained GPT or Llama, and the dataset or tokenizer to use with it."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import zstandard
from blake3 import blake3
from pydantic import ValidationError
from tokenizers import Tokenizer

from training.checkpoint.selection import Selected, select
from training.checkpoint.storage.urls import open_backend
from training.checkpoint.weights import load_selected_weights
from training.config import ModelConfig
from training.data.dataset import RECORD_FILE, Dataset, DatasetRecord, parse_record
from training.errors import ConfigurationError, DatasetError
from training.models.gpt import GPT
from training.models.initial_weights import TOKENIZER_FILE, ModelFolder, open_model_folder, tokenizer_hashes
from training.models.llama import Llama
from training.models.named import build_named_model


@dataclass(frozen=True)
class Trained:
    """A model with its weights, in evaluation mode, on the GPU if there is one.

    Attributes:
        title: the model's origin, for messages.
        vocabulary_size: number of token ids.
        tokenizer: contents of tokenizer.json; None if only the dataset has it.
        tokenizer_sha256: accepted SHA-256 values of a tokenizer.json; empty if they are unknown.
        samples: how the run made samples from its dataset.
    """

    title: str
    model: GPT | Llama
    config: ModelConfig
    vocabulary_size: int
    tokenizer: bytes | None
    tokenizer_sha256: frozenset[str]
    samples: Literal["joined", "apart", "streamed"] = "joined"

    @property
    def device(self) -> torch.device:
        """The device that holds the weights."""
        return self.model.token_embedding.weight.device


def open_trained(address: str) -> Trained:
    """Open a checkpoint of a GPT or Llama, or a model folder in Hugging Face's layout.

    Raises:
        ConfigurationError: The address is invalid, or names another kind of model.
        NotFoundError: The checkpoint does not exist.
        CorruptCheckpointError: The checkpoint is damaged.
    """
    folder = open_model_folder(address)
    return _of_checkpoint(address) if folder is None else _of_folder(folder)


def settings_of(selected: Selected) -> ModelConfig | None:
    """Return the settings of a checkpoint's model; None if another trainer saved it.

    Raises:
        ConfigurationError: Another release of this package wrote the settings.
    """
    if selected.manifest.subject is None or "model" not in selected.manifest.config:
        return None
    try:
        return ModelConfig.model_validate(selected.manifest.config["model"])
    except ValidationError as error:
        raise ConfigurationError(
            [
                f"{selected.title}: config.model.{'.'.join(map(str, each['loc']))}: {each['msg']}; "
                "use the release that wrote it"
                for each in error.errors()
            ]
        ) from error


def _of_checkpoint(address: str) -> Trained:
    selected = select(address)
    config, subject = settings_of(selected), selected.manifest.subject
    if config is None or subject is None or config.function is not None:
        owner = "another trainer" if config is None else f"the custom model {config.function}"
        raise ConfigurationError(
            [f"{selected.title}: belongs to {owner}; use a checkpoint of a GPT or Llama from the built-in trainer"]
        )
    model = build_named_model(config, subject.vocabulary_size)
    load_selected_weights(selected, model)
    samples = subject.samples or "joined"
    hashes = frozenset({subject.tokenizer_sha256})
    return Trained(selected.title, _ready(model), config, subject.vocabulary_size, None, hashes, samples)


def _of_folder(folder: ModelFolder) -> Trained:
    config, vocabulary_size = folder.config(), folder.document.get("vocab_size")
    if not isinstance(vocabulary_size, int) or vocabulary_size < 2:
        raise ConfigurationError([f"{folder.title}: vocab_size: {vocabulary_size!r}: must be at least 2; correct it"])
    model = build_named_model(config, vocabulary_size)
    folder.load_into(model, config)
    tokenizer = folder.tokenizer()
    hashes = frozenset() if tokenizer is None else tokenizer_hashes(tokenizer, f"{folder.title}/{TOKENIZER_FILE}")
    return Trained(folder.title, _ready(model), config, vocabulary_size, tokenizer, frozenset(hashes))


def _ready(model: GPT | Llama) -> GPT | Llama:
    return model.eval().to(torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def tokenizer_of(url: str, hashes: frozenset[str]) -> bytes:
    """Return the tokenizer.json of a dataset.

    Args:
        url: directory or S3 prefix of the dataset.
        hashes: accepted SHA-256 values; if empty, every tokenizer is accepted.

    Raises:
        ConfigurationError: The dataset has another tokenizer, or is damaged.
        NotFoundError: The dataset does not exist.
    """
    backend = open_backend(url)
    record = parse_record(backend.get(RECORD_FILE), f"{url}/{RECORD_FILE}")
    content = backend.get(record.tokenizer.file)
    found = hashlib.sha256(content).hexdigest()
    if found != record.tokenizer.sha256:
        raise DatasetError([f"{url}/{record.tokenizer.file}: hash differs from {RECORD_FILE}; tokenize the text again"])
    if hashes and found not in hashes:
        raise ConfigurationError(
            [
                f"{url}: has a different tokenizer from the model's, so its token ids have different meanings; use the "
                "run's dataset, or one with its tokenizer"
            ]
        )
    return content


def open_tokenizer(trained: Trained, dataset: str | None) -> Tokenizer:
    """Return the tokenizer of a dataset or, without one, of the model folder.

    Raises:
        ConfigurationError: There is no tokenizer, or it does not belong to the model.
    """
    if dataset is not None:
        content = tokenizer_of(dataset, trained.tokenizer_sha256)
    elif trained.tokenizer is not None:
        content = trained.tokenizer
    else:
        raise ConfigurationError([f"{trained.title}: has no {TOKENIZER_FILE}; name the run's dataset with --dataset"])
    tokenizer = Tokenizer.from_str(content.decode())
    if max(tokenizer.get_vocab(with_added_tokens=True).values()) >= trained.vocabulary_size:
        raise ConfigurationError(
            [f"{trained.title}: has {trained.vocabulary_size} token ids, fewer than its tokenizer; use the model's own"]
        )
    return tokenizer


def open_validation(url: str, work: Path) -> Dataset:
    """Return a dataset with only its verified validation split. Files on S3 are copied to ``work``.

    Raises:
        DatasetError: The dataset is damaged, or has no validation split.
        NotFoundError: The dataset does not exist.
    """
    backend = open_backend(url)
    record = parse_record(backend.get(RECORD_FILE), f"{url}/{RECORD_FILE}")
    if "validation" not in record.splits or not record.splits["validation"].tokens:
        raise DatasetError([f"{url}/{RECORD_FILE}: no validation split; tokenize the text with a validation share"])
    record = record.model_copy(update={"splits": {"validation": record.splits["validation"]}})
    if "://" not in url:
        dataset = Dataset(Path(url), record)
        _require_files(dataset)
        dataset.verify_hashes()
        return dataset
    for shard in record.splits["validation"].shards:
        content = backend.get(shard.file + (".zst" if shard.encoding == "zstd" else ""))
        if shard.encoding == "zstd":
            content = zstandard.ZstdDecompressor().decompress(content, max_output_size=shard.bytes)
        if blake3(content).hexdigest() != shard.blake3:
            raise DatasetError([f"{url}/{shard.file}: hash differs from {RECORD_FILE}; tokenize the text again"])
        (work / shard.file).write_bytes(content)
    return Dataset(work, record)


def _require_files(dataset: Dataset) -> None:
    record: DatasetRecord = dataset.record
    names = [record.tokenizer.file, *(shard.file for shard in record.splits["validation"].shards)]
    missing = [name for name in names if not (dataset.directory / name).is_file()]
    if missing:
        raise DatasetError([f"{dataset.directory / name}: missing; stage the dataset again" for name in missing])


def perplexity(loss: float) -> float:
    """Return the perplexity for a loss in nats per token; infinite if it does not fit a float."""
    return math.exp(loss) if loss < 700 else math.inf
