"""A synthetic token dataset in the real dataset format, with a pattern that a model can learn."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
from blake3 import blake3

END_OF_TEXT = 0
TOKENIZER = b'{"synthetic": true}\n'


def write_dataset(directory: Path, tokens: int, vocabulary_size: int, seed: int = 0) -> Path:
    """Write a dataset directory and return its path. Every other token is a function of the preceding token.

    Args:
        directory: dataset directory; created if missing.
        tokens: number of tokens in the train split; the validation split has one sixteenth as many.
        vocabulary_size: number of token ids.
        seed: random seed for generating the tokens.
    """
    directory.mkdir(parents=True, exist_ok=True)
    dtype = "uint16" if vocabulary_size <= 1 << 16 else "uint32"
    generator = np.random.default_rng(seed)
    follower = generator.permutation(vocabulary_size)
    splits = {}
    for name, count in (("train", tokens), ("validation", max(tokens // 16, 2))):
        content = _chain(generator, follower, count).astype(np.dtype(dtype).newbyteorder("<")).tobytes()
        file = f"{name}-00000.bin"
        (directory / file).write_bytes(content)
        shard = {"file": file, "tokens": count, "bytes": len(content), "blake3": blake3(content).hexdigest()}
        splits[name] = {"tokens": count, "documents": 1, "shards": [shard]}
    (directory / "tokenizer.json").write_bytes(TOKENIZER)
    record = {
        "schema_version": 1,
        "name": "synthetic",
        "dtype": dtype,
        "vocabulary_size": vocabulary_size,
        "tokenizer": {"file": "tokenizer.json", "sha256": hashlib.sha256(TOKENIZER).hexdigest()},
        "end_of_text_id": END_OF_TEXT,
        "bytes_per_token": 4.0,
        "unigram_entropy_nats": float(np.log(vocabulary_size)),
        "splits": splits,
        "source": {"digest": f"synthetic/{seed}", "files": 0, "bytes": 0},
    }
    (directory / "dataset.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return directory


def _chain(generator: np.random.Generator, follower: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    """Return random tokens in which every other token depends on the preceding token."""
    tokens = generator.integers(len(follower), size=count)
    tokens[1::2] = follower[tokens[0 : count - 1 : 2]]
    return tokens
