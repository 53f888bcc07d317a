"""JSON Lines and Parquet, custom tokenizers, the tiktoken encoder, and resumption after an interruption."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.training.conftest import write_text
from tests.training.test_tokenize import files_of, tokenize
from training.data.dataset import open_dataset
from training.data.text import bpe
from training.data.text.documents import PIECE_BYTES, Piece, ReadOptions, documents, pieces
from training.data.text.files import Selection, TextFile, survey
from training.data.text.formats import Format

TEXTS = [f"document {number} says: gr\u00fc\u00dfe \u65e5\u672c\n" * (number % 7 + 1) for number in range(200)]


def ignore(_: int) -> None:
    """Ignore the progress."""


def decoded(output: Path) -> list[str]:
    dataset = open_dataset(output / "d")
    dataset.verify_hashes()
    tokenizer = Tokenizer.from_file(str(output / "d" / "tokenizer.json"))
    texts = []
    for name in ("train", "validation"):
        split = dataset.split(name)
        ids = split.rows(np.array([0]), split.tokens)[0]
        ends = np.flatnonzero(ids == dataset.record.end_of_text_id)
        texts += [
            tokenizer.decode(piece[piece != dataset.record.end_of_text_id].tolist(), skip_special_tokens=False)
            for piece in np.split(ids, ends + 1)[:-1]
        ]
    return texts


def write_parquet(path: Path, **columns: list[object]) -> None:
    pyarrow.parquet.write_table(pa.table(columns), path, row_group_size=70)


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "jsonl.bz2", "ndjson.xz", "json.zst", "parquet"])
def test_each_record_becomes_a_document(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "text"
    folder.mkdir()
    lines = "\n".join(json.dumps({"id": n, "content": text}) for n, text in enumerate(TEXTS)).encode() + b"\n\n"
    path = folder / f"data.{kind}"
    if kind == "parquet":
        write_parquet(path, content=[*TEXTS, None], id=list(range(201)))
    else:
        path.write_bytes(
            {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstandard.compress}.get(
                kind.rpartition(".")[2], bytes
            )(lines)
        )
    assert tokenize(folder, tmp_path, "--text-key", "content") == 0
    assert sorted(decoded(tmp_path)) == sorted(TEXTS)


def test_reports_records_without_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "text"
    folder.mkdir()

    def errors(*more: str) -> str:
        assert tokenize(folder, tmp_path / "out", *more) == 2
        assert not (tmp_path / "out").exists() or list((tmp_path / "out").iterdir()) == []
        return capsys.readouterr().err

    (folder / "a.jsonl").write_text('{"text": "fine"}\n{"body": "not here"}\n')
    assert "a.jsonl: byte 17: no text under the key 'text' (found: body); choose another key with" in errors()
    (folder / "a.jsonl").write_text('{"text": "fine"}\n{"text": "half\n')
    assert "a.jsonl: byte 17: invalid JSON" in errors()
    (folder / "a.jsonl").unlink()
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "fine"}\n' * 1000)[:-20])
    assert "a.jsonl.gz: cannot decompress" in errors()
    (folder / "a.jsonl.gz").unlink()
    write_parquet(folder / "b.parquet", body=TEXTS, id=list(range(200)))
    assert "b.parquet: no column 'text'; choose one of body, id with --text-key" in errors()
    assert "b.parquet: column 'id' has type int64, not text" in errors("--text-key", "id")
    (folder / "b.parquet").write_bytes((folder / "b.parquet").read_bytes()[:-9])
    assert "b.parquet: not a valid Parquet file" in errors()


def test_limit_cuts_between_lines_and_row_groups(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n' * 100)
    write_parquet(tmp_path / "b.parquet", text=["x" * 1000 + str(n) for n in range(200)])
    for max_bytes in (500, 1700, 50_000):
        found = survey(tmp_path, Selection(max_bytes=max_bytes), ignore)
        assert found.total_bytes >= min(500, max_bytes) - 16
        for file in found.files:
            assert file.form.layout == "parquet" and 1 <= file.row_groups <= 2 or file.used_bytes % 16 == 0


@settings(max_examples=60, deadline=None)
@given(lines=st.lists(st.text(st.sampled_from("ab\u00fc\r\u2028"), max_size=9), max_size=30), cut=st.integers(1, 40))
def test_pieces_cover_each_line_once(tmp_path_factory: pytest.TempPathFactory, lines: list[str], cut: int) -> None:
    path = tmp_path_factory.mktemp("lines") / "a.txt"
    content = "\n".join(lines).encode()
    path.write_bytes(content)
    file = TextFile(path, "a.txt", Format("text"), len(content), 0, "", path.stat().st_mtime_ns)
    parts = [Piece(file, first, min(first + cut, len(content))) for first in range(0, len(content), cut)]
    found = [
        document
        for piece in parts
        for document in documents(piece, ReadOptions(min(8, max(1, len(content) - 1)), "text"))
    ]
    assert "".join(document.text for document in found).encode() == content
    assert len({document.name for document in found}) == len(found)


def test_large_file_is_divided_into_pieces(tmp_path: Path) -> None:
    file = TextFile(tmp_path / "a.txt", "a.txt", Format("text"), 2 * PIECE_BYTES + 1, 0, "", 0)
    assert [(piece.first, piece.end) for piece in pieces(file)] == [
        (0, PIECE_BYTES),
        (PIECE_BYTES, 2 * PIECE_BYTES),
        (2 * PIECE_BYTES, 2 * PIECE_BYTES + 1),
    ]


@pytest.fixture(scope="module")
def trained() -> Tokenizer:
    source = "".join(path.read_text() for path in sorted(Path(bpe.__file__).parent.glob("*.py")))
    return bpe.train_tokenizer([source[start : start + 2000] for start in range(0, len(source), 2000)], 1500)


@pytest.fixture(scope="module")
def encoders(trained: Tokenizer) -> tuple[bpe.Encoder, bpe.Encoder]:
    fast = bpe.open_encoder(trained, bpe.tiktoken_vocabulary(trained))
    assert isinstance(fast, bpe._TiktokenEncoder)
    return fast, bpe._TokenizersEncoder(trained)


@settings(max_examples=200, deadline=None)
@given(
    text=st.text(max_size=200)
    | st.lists(st.sampled_from(["def", " self", "\n    ", "  ", "'s", "12", "\u00e9"])).map("".join)
)
def test_tiktoken_encoder_matches_tokenizers(encoders: tuple[bpe.Encoder, bpe.Encoder], text: str) -> None:
    fast, slow = encoders
    texts = [text, text + "<|endoftext|>" + text]
    for one, other in zip(fast.encode(texts), slow.encode(texts), strict=True):
        assert np.array_equal(one, other)


def test_libraries_split_words_identically_at_all_kinds_of_characters() -> None:
    """With a merge across each word boundary, ids differ if the boundaries do."""
    characters = {byte: character for character, byte in bpe._byte_of_character().items()}
    vocabulary = {characters[byte]: byte for byte in range(256)}
    merges = []
    for first in b"a1! ":
        for second in (*range(128), *range(0xC2, 0xF5)):
            merges.append((characters[first], characters[second]))
            vocabulary[characters[first] + characters[second]] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast, slow = bpe.open_encoder(tokenizer, bpe.tiktoken_vocabulary(tokenizer)), bpe._TokenizersEncoder(tokenizer)
    assert isinstance(fast, bpe._TiktokenEncoder)
    points = [*range(0x3000), *range(0x3000, 0xD800, 97), *range(0xE000, 0x110000, 997)]
    text = "".join(f"\n{before}{chr(point)}a" for point in points for before in "a1! ")
    assert np.array_equal(fast.encode([text])[0], slow.encode([text])[0])


def test_uses_tokenizers_if_tiktoken_is_not_equivalent(trained: Tokenizer) -> None:
    document = json.loads(trained.to_str())
    assert document["model"]["merges"][0] != ["a", "b"]
    normalizing = {**document, "normalizer": {"type": "NFC"}}
    assert bpe.tiktoken_vocabulary(Tokenizer.from_str(json.dumps(normalizing))) is None
    # A token from a different merge than the one that its bytes produce.
    vocabulary = {character: number for number, character in enumerate(sorted(bpe._byte_of_character()))}
    vocabulary |= {"bc": 256, "ab": 257, "abc": 258}
    reordered = Tokenizer(models.BPE(vocabulary, [("b", "c"), ("a", "b"), ("ab", "c")]))
    reordered.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    encoder = bpe.open_encoder(reordered, bpe.tiktoken_vocabulary(reordered))
    assert isinstance(encoder, bpe._TokenizersEncoder)
    assert encoder.encode(["abc"])[0].tolist() == [vocabulary["a"], 256]


def test_custom_tokenizer(tmp_path: Path, trained: Tokenizer, capsys: pytest.CaptureFixture[str]) -> None:
    write_text(tmp_path / "text")
    trained.save(str(tmp_path / "custom.json"))
    base = ["tokenize", "--input", str(tmp_path / "text"), "--output", str(tmp_path), "--name", "d", "--workers", "1"]
    from training.__main__ import main

    assert main([*base, "--tokenizer", str(tmp_path / "custom.json")]) == 0
    record = open_dataset(tmp_path / "d").record
    assert record.vocabulary_size == 1500 and record.end_of_text_id == 0
    capsys.readouterr()
    (tmp_path / "no.json").write_text("{}")
    bare = Tokenizer(models.BPE({"a": 0}, []))
    bare.save(str(tmp_path / "bare.json"))
    for name, message in (
        ("absent", "cannot read"),
        ("no", "not a tokenizer"),
        ("bare", "no end-of-text token"),
    ):
        assert main([*base, "--tokenizer", str(tmp_path / f"{name}.json")]) == 2
        assert message in capsys.readouterr().err


def test_killed_command_resumes(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    rng = np.random.default_rng(0)
    for number in range(8):
        words = rng.integers(0, 5000, 40_000)
        (tmp_path / "text" / f"{number}.txt").write_text(
            "\n".join(" ".join(f"w{word}" for word in words[i : i + 12]) for i in range(0, len(words), 12))
        )
    arguments = ["--input", str(tmp_path / "text"), "--output", str(tmp_path / "out"), "--name", "d"]
    command = [sys.executable, "-m", "training", "tokenize", *arguments, "--vocabulary-size", "400"]
    parts = tmp_path / "out" / ".d.unfinished"
    process = subprocess.Popen([*command, "--workers", "2"], start_new_session=True, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 100
    while len(list(parts.glob("*/parts/*.json"))) < 2:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    finished = [*parts.glob("*/parts/*.json"), next(parts.glob("*/dataset/tokenizer.json"))]
    kept = {path: path.stat().st_mtime_ns for path in finished}
    again = subprocess.Popen([*command, "--workers", "1"], stdout=subprocess.DEVNULL)
    while again.poll() is None:
        assert time.monotonic() < deadline
        for path, changed in kept.items():
            try:
                assert path.stat().st_mtime_ns == changed
            except FileNotFoundError:
                continue  # published
        time.sleep(0.01)
    assert again.returncode == 0
    assert not parts.exists()
    assert tokenize(tmp_path / "text", tmp_path / "uninterrupted", size=400) == 0
    assert files_of(tmp_path / "out") == files_of(tmp_path / "uninterrupted")
