"""Byte-level BPE tokenizers: training one, loading one, and the fastest way to encode with it.

Encoding is tiktoken's where it can be shown to give the ids of `tokenizers`, three to five times as fast; else it is
that of `tokenizers`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import tiktoken
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from training.errors import TokenizeError

END_OF_TEXT = "<|endoftext|>"
ENDS_OF_TEXT = (END_OF_TEXT, "<|end_of_text|>", "<|end|>", "</s>", "<eos>")
"""What known tokenizers call the token between documents, in the order of preference."""
SMALLEST_VOCABULARY = 257
"""One id for each byte, and the end of a document."""
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""How `tokenizers`' ByteLevel cuts text into words.
Source: https://github.com/huggingface/tokenizers/blob/main/tokenizers/src/pre_tokenizers/byte_level.rs (2026-11)."""

Ids = npt.NDArray[np.uint32]


class Encoder(Protocol):
    """Turns texts into ids."""

    def encode(self, texts: list[str]) -> list[Ids]:
        """Ids of each text; text that happens to spell a special token is text."""


def train_tokenizer(texts: Iterable[str], vocabulary_size: int) -> Tokenizer:
    """Train byte-level BPE: any text can be encoded, and decoding gives it back byte for byte.

    Raises:
        TokenizeError: the text has too few different pairs for so many ids.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    reached = tokenizer.get_vocab_size()
    if reached < vocabulary_size:
        raise TokenizeError(
            [
                f"--vocabulary-size: {vocabulary_size} is more than this text supports ({reached}); lower it, or give "
                "more text"
            ]
        )
    return tokenizer


def load_tokenizer(path: Path) -> Tokenizer:
    """Load a tokenizer.json.

    Raises:
        TokenizeError: the file cannot be read, or `tokenizers` does not know what it says.
    """
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizeError([f"--tokenizer: {path}: cannot be read ({error}); give a tokenizer.json"]) from error
    try:
        return Tokenizer.from_str(content)
    # The library raises bare Exceptions.
    except Exception as error:  # noqa: BLE001
        raise TokenizeError(
            [f"--tokenizer: {path}: is no tokenizer ({error}); give a tokenizer.json, as `tokenizers` writes it"]
        ) from error


def end_of_text_id(tokenizer: Tokenizer) -> int:
    """Id of the token that ends each document.

    Raises:
        TokenizeError: the tokenizer has none that is known.
    """
    for name in ENDS_OF_TEXT:
        token_id = tokenizer.token_to_id(name)
        if token_id is not None:
            return int(token_id)
    raise TokenizeError(
        [f"--tokenizer: has no token to end a document with; add one of {', '.join(ENDS_OF_TEXT)} to it"]
    )


def vocabulary_size(tokenizer: Tokenizer) -> int:
    """One more than the largest id: what a model's embedding must have room for."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1


@dataclass(frozen=True)
class TiktokenForm:
    """A tokenizer as tiktoken takes it.

    Attributes:
        ranks: of each token; merges are made lowest rank first.
        pattern: that cuts text into words.
        ids: of each rank. Shapes: [ranks] uint32.
    """

    ranks: dict[bytes, int]
    pattern: str
    ids: Ids


def tiktoken_form(tokenizer: Tokenizer) -> TiktokenForm | None:
    """The same tokenizer for tiktoken; None if it cannot be shown to give the same ids for every text."""
    document = json.loads(tokenizer.to_str())
    pattern = _pattern(document)
    vocabulary, alphabet = document["model"].get("vocab", {}), _byte_of_character()
    if pattern is None or not alphabet.keys() <= vocabulary.keys():
        return None
    merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in document["model"]["merges"]]
    ranks = {bytes([byte]): byte for byte in range(256)}
    ids = np.zeros(256 + len(merges), dtype=np.uint32)
    for character, byte in alphabet.items():
        ids[byte] = vocabulary[character]
    for number, (left, right) in enumerate(merges, start=256):
        parts = [bytes(alphabet[character] for character in part) for part in (left, right)]
        token = parts[0] + parts[1]
        # tiktoken knows tokens and not merges; the two are the same if each token comes about by its merge alone.
        if token in ranks or left + right not in vocabulary or _split(token, ranks) != parts:
            return None
        ranks[token] = number
        ids[number] = vocabulary[left + right]
    return TiktokenForm(ranks, pattern, ids)


def open_encoder(tokenizer: Tokenizer, form: TiktokenForm | None) -> Encoder:
    """The fastest way to encode that gives exactly the tokenizer's ids; ``form`` is of :func:`tiktoken_form`."""
    return _TokenizersEncoder(tokenizer) if form is None else _TiktokenEncoder(form)


def _pattern(document: dict[str, Any]) -> str | None:
    """Regular expression that cuts text into words; None for a tokenizer that tiktoken cannot stand in for."""
    model, words = document["model"], document["pre_tokenizer"]
    plain = (
        model["type"] == "BPE"
        and document["normalizer"] is None
        and not any(token["content"] for token in document["added_tokens"] if not token["special"])
        and not any(model.get(key) for key in ("dropout", "unk_token", "byte_fallback", "continuing_subword_prefix"))
        and not any(model.get(key) for key in ("end_of_word_suffix", "ignore_merges"))
    )
    if not plain or words is None:
        return None
    return GPT2_PATTERN if _is_byte_level(words, use_regex=True) else None


def _is_byte_level(words: dict[str, Any], use_regex: bool) -> bool:
    return bool(
        words["type"] == "ByteLevel" and not words["add_prefix_space"] and words.get("use_regex", True) == use_regex
    )


def _split(token: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    """Merge the bytes of a token, lowest rank first, as far as the tokens so far allow."""
    parts = [bytes([byte]) for byte in token]
    while True:
        pairs = [(ranks.get(left + right), place) for place, (left, right) in enumerate(zip(parts, parts[1:]))]  # noqa: B905
        known = [(rank, place) for rank, place in pairs if rank is not None]
        if not known:
            return parts
        _, place = min(known)
        parts[place : place + 2] = [parts[place] + parts[place + 1]]


def _byte_of_character() -> dict[str, int]:
    """GPT-2's printable stand-ins for bytes: printable Latin-1 for itself, the other bytes from U+0100 on, in order.

    Source: https://github.com/openai/gpt-2/blob/master/src/encoder.py (2026-11), ``bytes_to_unicode``.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


class _TiktokenEncoder:
    def __init__(self, form: TiktokenForm) -> None:
        self._encoding = tiktoken.Encoding(
            "dataset", pat_str=form.pattern, mergeable_ranks=form.ranks, special_tokens={}
        )
        self._ids = form.ids

    def encode(self, texts: list[str]) -> list[Ids]:
        return [self._ids[self._encoding.encode_to_numpy(text, disallowed_special=())] for text in texts]


class _TokenizersEncoder:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokenizer.encode_special_tokens = True

    def encode(self, texts: list[str]) -> list[Ids]:
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]
