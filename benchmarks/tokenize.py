"""Speed of ``python -m training tokenize`` relative to a plain pool of two processes that call tiktoken.

The text is the source code of Python's standard library, in several copies with different first lines. A vocabulary is
trained first. The command and the pool then encode the text alternately, with two processes each. The command writes
hashed, resumable shards for each split, and the pool writes one file. The ids must be equal.
``build/bench/tokenize.json`` holds the results of each round.

Exit code: 0 if the ids are equal and the command reaches at least 0.95 of the pool's speed, otherwise 1. The report is
written in both cases.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tiktoken

from training.data.text import bpe
from training.data.text.documents import MAX_DOCUMENT_BYTES, Document, ReadOptions, pieces
from training.data.text.files import Selection, Survey, survey
from training.data.text.parts import SPLITS, Encoding, encode_parts, group_pieces
from training.data.text.shards import ShardWriter

PROCESSES = 2
MIN_RATIO = 0.95
VALIDATION_SHARE = 0.05
BATCH_BYTES = 1 << 20
SAMPLE_BYTES = 8 << 20
Ids = npt.NDArray[np.uint16]

_bare: list[tiktoken.Encoding] = []


def write_corpus(folder: Path, copies: int) -> None:
    """Write the source files of the standard library that are small enough to be one document."""
    sources = sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))
    for source in sources:
        content = source.read_bytes()
        if "site-packages" in source.parts or len(content) > MAX_DOCUMENT_BYTES // 2:
            continue
        for copy in range(copies):
            target = folder / f"{copy}-{'-'.join(source.parts[-3:])}.txt"
            target.write_bytes(f"# copy {copy}\n".encode() + content)


def encode_ours(found: Survey, tokenizer_file: Path, vocabulary_size: int, directory: Path) -> float:
    """Encode into shards; return the time in seconds."""
    parts = directory / "parts"
    parts.mkdir()
    encoding = Encoding(tokenizer_file, ReadOptions(MAX_DOCUMENT_BYTES, "text"), VALIDATION_SHARE, "uint16", parts)
    started = time.perf_counter()
    writers = {split: ShardWriter(directory, split, "uint16", vocabulary_size, 1 << 25) for split in SPLITS}
    groups = group_pieces((piece for file in found.files for piece in pieces(file)), found.total_bytes)
    for part in encode_parts(groups, encoding, PROCESSES):
        for split in SPLITS:
            writers[split].append(part.splits[split], parts)
    for writer in writers.values():
        writer.finish()
    return time.perf_counter() - started


def encode_bare(found: Survey, ranks: dict[bytes, int], file: Path) -> float:
    """Encode into one file with a plain pool; return the time in seconds."""
    started = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(PROCESSES, _start_bare, (ranks,)) as pool, file.open("wb") as output:
        for ids in pool.imap(_encode_bare, _batches(found)):
            output.write(ids.tobytes())
    return time.perf_counter() - started


def _start_bare(ranks: dict[bytes, int]) -> None:
    _bare.append(tiktoken.Encoding("bare", pat_str=bpe.GPT2_PATTERN, mergeable_ranks=ranks, special_tokens={}))


def _encode_bare(paths: list[Path]) -> Ids:
    texts = [path.read_bytes().decode("utf-8-sig") for path in paths]
    return np.concatenate([_bare[0].encode_to_numpy(text, disallowed_special=()).astype(np.uint16) for text in texts])


def _batches(found: Survey) -> Iterator[list[Path]]:
    batch: list[Path] = []
    size = 0
    for file in found.files:
        batch.append(file.path)
        size += file.used_bytes
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def same_ids(found: Survey, directory: Path, bare_file: Path, id_of_rank: npt.NDArray[np.uint32], end_id: int) -> bool:
    """Return True if the shards have the same ids as the bare file, with an end-of-text id after each document."""
    expected = id_of_rank[np.fromfile(bare_file, np.uint16)].astype(np.uint16)
    splits = {
        split: np.concatenate([np.fromfile(path, "<u2") for path in sorted(directory.glob(f"{split}-*.bin"))])
        for split in SPLITS
    }
    lengths = {split: np.diff(np.flatnonzero(ids == end_id), prepend=-1) - 1 for split, ids in splits.items()}
    place = dict.fromkeys(SPLITS, 0)
    number = dict.fromkeys(SPLITS, 0)
    done = 0
    for file in found.files:
        split = SPLITS[Document(file.name, "").place() < VALIDATION_SHARE]
        length = int(lengths[split][number[split]])
        ours = splits[split][place[split] : place[split] + length]
        if not np.array_equal(ours, expected[done : done + length]):
            return False
        done, place[split], number[split] = done + length, place[split] + length + 1, number[split] + 1
    return done == len(expected)


def measure(vocabulary_size: int, copies: int, rounds: int) -> dict[str, Any]:
    """Encode with both alternately; return each round's seconds, the fastest rounds' ratio, and the comparison."""
    with tempfile.TemporaryDirectory(prefix="tokenize-") as name:
        root = Path(name)
        (root / "text").mkdir()
        write_corpus(root / "text", copies)
        found = survey(root / "text", Selection(skip_files=True), lambda _: None)
        texts = [file.path.read_text(encoding="utf-8") for file in found.files[: SAMPLE_BYTES // 8192]]
        tokenizer = bpe.train_tokenizer(texts, vocabulary_size)
        tokenizer_file = root / "tokenizer.json"
        tokenizer.save(str(tokenizer_file))
        fast = bpe.tiktoken_vocabulary(tokenizer)
        assert fast is not None, "tiktoken supports the tokenizers that we train"
        seconds: dict[str, list[float]] = {"ours": [], "bare": []}
        cpu_seconds: dict[str, list[float]] = {"ours": [], "bare": []}
        same = True
        for number in range(rounds):
            directory = root / str(number)
            directory.mkdir()
            before = _cpu_seconds()
            seconds["bare"].append(encode_bare(found, fast.ranks, directory / "bare"))
            between = _cpu_seconds()
            seconds["ours"].append(encode_ours(found, tokenizer_file, vocabulary_size, directory))
            cpu_seconds["bare"].append(between - before)
            cpu_seconds["ours"].append(_cpu_seconds() - between)
            same &= same_ids(found, directory, directory / "bare", fast.ids, bpe.end_of_text_id(tokenizer))
        return {
            "text_bytes": found.total_bytes,
            "vocabulary_size": vocabulary_size,
            "processes": PROCESSES,
            "seconds": seconds,
            "cpu_seconds": cpu_seconds,
            "bytes_per_second": {each: found.total_bytes / min(times) for each, times in seconds.items()},
            "speed_ratio": min(seconds["bare"]) / min(seconds["ours"]),
            "min_ratio": MIN_RATIO,
            "same_ids": same,
        }


def _cpu_seconds() -> float:
    """Return the CPU time of this process and its terminated children."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark and write the report; return 1 if the ids differ or the ratio is below the minimum."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tokenize", description=__doc__)
    parser.add_argument("--vocabulary-size", type=int, default=8192, help="number of token ids, at most 65536")
    parser.add_argument("--copies", type=int, default=4, help="copies of the source code")
    parser.add_argument("--rounds", type=int, default=5, help="rounds for each")
    parser.add_argument("--output", type=Path, default=Path("build/bench/tokenize.json"), help="path of the report")
    options = parser.parse_args(arguments)
    results = measure(options.vocabulary_size, options.copies, options.rounds)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    met = results["same_ids"] and results["speed_ratio"] >= MIN_RATIO
    sys.stdout.write(
        f"{results['speed_ratio']:.3f} of the speed of the bare pool (minimum {MIN_RATIO}), "
        f"{results['bytes_per_second']['ours'] / 1e6:.1f} MB/s; ids {'equal' if results['same_ids'] else 'DIFFER'}; "
        f"{'met' if met else 'NOT MET'}: {options.output}\n"
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
