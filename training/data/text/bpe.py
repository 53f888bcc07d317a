"""Trains and loads byte-level BPE tokenizers, and encodes text.

tiktoken encodes three to five times as fast as `tokenizers`. It is used if it provably returns the same ids.
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
"""Names of the token between documents in common tokenizers, in order of preference."""
MIN_VOCABULARY_SIZE = 257
"""Minimum number of ids: one for each byte, and one for the end of a document."""
MAX_TRAINING_WORD = 256
"""Maximum length of a word for training, in bytes; longer words, as in base64 or a genome, are cut. Training time is
quadratic in a word's length (https://github.com/huggingface/tokenizers/issues/497). Encoding does not cut words."""
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""The pattern that ByteLevel in `tokenizers` uses to split text into words.
Source: https://github.com/huggingface/tokenizers/blob/main/tokenizers/src/pre_tokenizers/byte_level.rs (2026-11)."""

Ids = npt.NDArray[np.uint32]


class Encoder(Protocol):
    """Encodes texts as token ids."""

    def encode(self, texts: list[str]) -> list[Ids]:
        """Return the ids for each text. A special token's text is encoded as ordinary text."""


def train_tokenizer(texts: Iterable[str], vocabulary_size: int) -> Tokenizer:
    """Train a byte-level BPE tokenizer. It encodes any text without loss.

    Raises:
        TokenizeError: The text has too few different pairs for this vocabulary size.
    """
    tokenizer = Tokenizer(models.BPE())
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.FixedLength(MAX_TRAINING_WORD)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.pre_tokenizer = words
    reached = tokenizer.get_vocab_size()
    if reached < vocabulary_size:
        raise TokenizeError(
            [f"--vocabulary-size: {vocabulary_size}: this text supports at most {reached} ids; lower it, or add text"]
        )
    return tokenizer


def load_tokenizer(path: Path) -> Tokenizer:
    """Load a tokenizer.json.

    Raises:
        TokenizeError: The file cannot be read, or is not in the `tokenizers` format.
    """
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizeError([f"--tokenizer: {path}: cannot read ({error}); specify a tokenizer.json"]) from error
    try:
        return Tokenizer.from_str(content)
    # The library raises plain exceptions.
    except Exception as error:  # noqa: BLE001
        raise TokenizeError(
            [f"--tokenizer: {path}: not a tokenizer ({error}); specify a tokenizer.json written by `tokenizers`"]
        ) from error


def end_of_text_id(tokenizer: Tokenizer) -> int:
    """Return the id of the token that ends each document.

    Raises:
        TokenizeError: The tokenizer does not have a token with a known name.
    """
    for name in ENDS_OF_TEXT:
        token_id = tokenizer.token_to_id(name)
        if token_id is not None:
            return int(token_id)
    raise TokenizeError([f"--tokenizer: no end-of-text token; add one of {', '.join(ENDS_OF_TEXT)} to it"])


def vocabulary_size(tokenizer: Tokenizer) -> int:
    """Return the largest id plus one: the number of rows in a model's embedding."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1


@dataclass(frozen=True)
class TiktokenVocabulary:
    """A tokenizer in tiktoken's format.

    Attributes:
        ranks: each token's rank; the lowest rank is merged first.
        pattern: regular expression that splits text into words.
        ids: token id for each rank. Shapes: [ranks] uint32.
    """

    ranks: dict[bytes, int]
    pattern: str
    ids: Ids


def tiktoken_vocabulary(tokenizer: Tokenizer) -> TiktokenVocabulary | None:
    """Convert a tokenizer for tiktoken. Return None unless tiktoken provably returns the same ids for every text."""
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
        # tiktoken stores tokens instead of merges. Both are equivalent if each token results only from its own merge.
        if token in ranks or left + right not in vocabulary or _split(token, ranks) != parts:
            return None
        ranks[token] = number
        ids[number] = vocabulary[left + right]
    return TiktokenVocabulary(ranks, pattern, ids)


def open_encoder(tokenizer: Tokenizer, vocabulary: TiktokenVocabulary | None) -> Encoder:
    """Return the fastest encoder for a tokenizer; ``vocabulary`` comes from :func:`tiktoken_vocabulary`."""
    encoder = _TokenizersEncoder(tokenizer)
    return encoder if vocabulary is None else _TiktokenEncoder(vocabulary, encoder)


def _pattern(document: dict[str, Any]) -> str | None:
    """Return the regular expression that splits text into words; None if tiktoken cannot replace the tokenizer."""
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
    """Merge a token's bytes, lowest rank first, using the tokens known so far."""
    parts = [bytes([byte]) for byte in token]
    while True:
        pairs = [(ranks.get(left + right), place) for place, (left, right) in enumerate(zip(parts, parts[1:]))]  # noqa: B905
        known = [(rank, place) for rank, place in pairs if rank is not None]
        if not known:
            return parts
        _, place = min(known)
        parts[place : place + 2] = [parts[place] + parts[place + 1]]


def _byte_of_character() -> dict[str, int]:
    """Return GPT-2's printable characters for bytes: printable Latin-1 unchanged, other bytes in order from U+0100.

    Source: https://github.com/openai/gpt-2/blob/master/src/encoder.py (2026-11), ``bytes_to_unicode``.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


class _TiktokenEncoder:
    def __init__(self, vocabulary: TiktokenVocabulary, other: _TokenizersEncoder) -> None:
        self._other = other
        self._encoding = tiktoken.Encoding(
            "dataset", pat_str=vocabulary.pattern, mergeable_ranks=vocabulary.ranks, special_tokens={}
        )
        self._ids = vocabulary.ids

    def encode(self, texts: list[str]) -> list[Ids]:
        return [self._encode(text) for text in texts]

    def _encode(self, text: str) -> Ids:
        try:
            return self._ids[self._encoding.encode_to_numpy(text, disallowed_special=())]
        except ValueError:
            # The regular expression needs too much memory for more than a million spaces.
            return self._other.encode([text])[0]


class _TokenizersEncoder:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokenizer.encode_special_tokens = True

    def encode(self, texts: list[str]) -> list[Ids]:
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]
