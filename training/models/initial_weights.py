"""Loads a run's initial weights, from a checkpoint or from a model folder in Hugging Face's layout.

A model folder contains config.json and either model.safetensors, or model.safetensors.index.json and the files that it
lists. Source: https://huggingface.co/docs/transformers/main_classes/model, ``save_pretrained`` (2026-11).
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from training.checkpoint.address import Address
from training.checkpoint.log import PREFIX as LOG_FOLDER
from training.checkpoint.manifest import Subject
from training.checkpoint.storage.backend import Backend
from training.checkpoint.storage.urls import open_backend
from training.checkpoint.weights import load_weights, load_weights_together
from training.config import ModelConfig
from training.errors import ConfigurationError
from training.models.hugging_face import from_hugging_face, model_config
from training.process.distributed import Gang

CONFIG_FILE, WEIGHTS_FILE, INDEX_FILE = "config.json", "model.safetensors", "model.safetensors.index.json"
TOKENIZER_FILE = "tokenizer.json"
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.safetensors")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelFolder:
    """A model folder in Hugging Face's layout.

    Attributes:
        backend: the folder.
        document: contents of config.json.
    """

    backend: Backend
    document: dict[str, Any]

    @property
    def title(self) -> str:
        """The folder's name in messages."""
        return self.backend.url

    def config(self) -> ModelConfig:
        """Return the model's settings. Raises ConfigurationError if this project does not have the model."""
        return model_config(self.document, f"{self.title}/{CONFIG_FILE}")

    def tokenizer(self) -> bytes | None:
        """Return tokenizer.json; None if the folder does not have it."""
        return self.backend.get(TOKENIZER_FILE) if _has(self.backend, TOKENIZER_FILE) else None

    def load_into(self, model: nn.Module, config: ModelConfig) -> None:
        """Load the weights into a GPT or Llama. All tensors are in memory at the same time.

        Raises:
            ConfigurationError: The tensors do not match the model's, or a file is damaged; nothing was changed.
        """
        from safetensors import SafetensorError  # nodes have it only if initial_weights is set
        from safetensors.torch import load

        given: dict[str, Tensor] = {}
        for name in self._files():
            try:
                given |= load(self.backend.get(name))
            except SafetensorError as error:
                raise ConfigurationError([f"{self.title}/{name}: not a safetensors file ({error})"]) from error
        model.load_state_dict(from_hugging_face(config, given, model.state_dict(), self.title), strict=True)

    def _files(self) -> Iterator[str]:
        if _has(self.backend, WEIGHTS_FILE):
            yield WEIGHTS_FILE
            return
        if not _has(self.backend, INDEX_FILE):
            raise ConfigurationError([f"{self.title}: has neither {WEIGHTS_FILE} nor {INDEX_FILE}; add the weights"])
        place = f"{self.title}/{INDEX_FILE}"
        index = _json_object(self.backend.get(INDEX_FILE), place).get("weight_map")
        names = set(index.values()) if isinstance(index, dict) else set()
        if not names or not all(isinstance(name, str) and FILE_NAME.fullmatch(name) for name in names):
            raise ConfigurationError([f"{place}: weight_map: must name safetensors files; download it again"])
        yield from sorted(names)


def open_model_folder(address: str) -> ModelFolder | None:
    """Open a model folder; return None if the address is not one.

    Raises:
        ConfigurationError: config.json is damaged, or the address is invalid.
    """
    parsed = Address.parse(address)
    if parsed.url != address:
        return None
    backend = open_backend(address)
    if not _has(backend, CONFIG_FILE) or backend.keys(LOG_FOLDER, 1):
        return None
    return ModelFolder(backend, _json_object(backend.get(CONFIG_FILE), f"{backend.url}/{CONFIG_FILE}"))


def load_initial_weights(address: str, config: ModelConfig, model: nn.Module, subject: Subject) -> str:
    """Load the weights of a checkpoint or of a model folder; return its title.

    Raises:
        ConfigurationError: The weights belong to another model or tokenizer; nothing was changed.
        NotFoundError: The checkpoint does not exist.
        CorruptCheckpointError: The checkpoint is damaged.
    """
    folder = None if config.function is not None else open_model_folder(address)
    if folder is None:
        return load_weights(address, model, subject).title
    if (folder.config().is_llama, folder.config().num_attention_heads) != (
        config.is_llama,
        config.shape.num_attention_heads,
    ):
        raise ConfigurationError(
            [
                f"{folder.title}: {folder.document['model_type']} with {folder.config().num_attention_heads} attention "
                f"heads, but the run's model is a {'llama' if config.is_llama else 'gpt'} with "
                f"{config.shape.num_attention_heads}; use weights of this model"
            ]
        )
    _refuse_other_tokenizer(folder, subject)
    folder.load_into(model, config)
    return folder.title


def load_initial_weights_together(
    gang: Gang, address: str, config: ModelConfig, model: nn.Module, subject: Subject
) -> str:
    """Call :func:`load_initial_weights` on rank 0 and broadcast the result; return the title."""
    return load_weights_together(gang, model, lambda: load_initial_weights(address, config, model, subject))


def tokenizer_hashes(content: bytes, place: str) -> set[str]:
    """Return the SHA-256 of a tokenizer.json, and of the form in which `tokenize` writes the same tokenizer.

    Raises:
        ConfigurationError: The content is not a tokenizer.
    """
    from tokenizers import Tokenizer  # nodes have it only if initial_weights is set

    try:
        written = Tokenizer.from_str(content.decode()).to_str(pretty=True).encode()
    # The library raises plain exceptions.
    except Exception as error:  # noqa: BLE001
        raise ConfigurationError([f"{place}: not a tokenizer ({error}); download it again"]) from error
    return {hashlib.sha256(each).hexdigest() for each in (content, written)}


def _refuse_other_tokenizer(folder: ModelFolder, subject: Subject) -> None:
    content = folder.tokenizer()
    if content is None:
        logger.warning("%s has no %s, so the tokenizers are not compared", folder.title, TOKENIZER_FILE)
    elif subject.tokenizer_sha256 not in tokenizer_hashes(content, f"{folder.title}/{TOKENIZER_FILE}"):
        raise ConfigurationError(
            [
                f"{folder.title}/{TOKENIZER_FILE}: differs from the tokenizer of dataset {subject.dataset_name!r}, so "
                "its token ids may have different meanings; tokenize the text with `tokenize --tokenizer "
                f"{TOKENIZER_FILE}`"
            ]
        )


def _has(backend: Backend, key: str) -> bool:
    """Return True if an object exists. Listing needs fewer permissions on S3 than reading a missing object."""
    return key in backend.keys(key, 1)  # noqa: SIM118  (not a mapping)


def _json_object(content: bytes, place: str) -> dict[str, Any]:
    try:
        document = json.loads(content)
    except ValueError as error:
        raise ConfigurationError([f"{place}: not JSON ({error}); download it again"]) from error
    if not isinstance(document, dict):
        raise ConfigurationError([f"{place}: must be a JSON object; download it again"])
    return document
