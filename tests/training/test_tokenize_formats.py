"""Formats, encodings and invalid bytes of text files that `tokenize` reads, skips, changes or reports."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.training.conftest import write_text
from tests.training.test_tokenize import tokenize
from tests.training.test_tokenize_sources import TEXTS, decoded
from training.data.dataset import open_dataset
from training.data.text import bpe, formats
from training.data.text.decoding import POLICIES, Decoding
from training.data.text.documents import ReadOptions, documents, pieces
from training.data.text.files import Selection, survey
from training.errors import TokenizeError

LINES = [f"line {number} of a text: gr\u00fc\u00dfe\n" for number in range(3000)]
TEXT = "".join(LINES)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "text"
    folder.mkdir()
    return folder


def sources(output: Path) -> dict[str, dict[str, object]]:
    lines = (output / "d" / "sources.jsonl").read_text().splitlines()
    return {record.pop("file"): record for record in map(json.loads, lines)}


def read(folder: Path, selection: Selection | None = None) -> tuple[list[str], Counter[str]]:
    """Return the documents that the folder's files contain, and the losses."""
    selection = selection or Selection()
    losses: Counter[str] = Counter()
    found = survey(folder, selection, lambda _: None)
    options = ReadOptions(4096, selection.text_key, selection.decoding)
    texts = [
        document.text
        for file in found.files
        for piece in pieces(file)
        for document in documents(piece, options, losses)
    ]
    return texts, +losses


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", TEXT.encode()),
        ("bom.txt", TEXT.encode("utf-8-sig")),
        ("utf16.txt", TEXT.encode("utf-16")),
        ("utf16be.txt", b"\xfe\xff" + TEXT.encode("utf-16-be")),
        ("utf32.txt", TEXT.encode("utf-32")),
        ("a.txt.gz", gzip.compress(TEXT.encode())),
        ("two-members.gz", gzip.compress(TEXT[:5000].encode()) + gzip.compress(TEXT[5000:].encode())),
        ("a.txt.bz2", bz2.compress(TEXT.encode())),
        ("a.xz", lzma.compress(TEXT.encode())),
        ("a.txt.zst", zstandard.compress(TEXT.encode())),
        # zstd's parallel tool writes several frames, and skippable frames between them (RFC 8878, section 3.1.2).
        (
            "frames.zst",
            b"\x50\x2a\x4d\x18\x03\0\0\0abc"
            + zstandard.compress(TEXT[:5000].encode())
            + zstandard.compress(TEXT[5000:].encode()),
        ),
        ("without-extension", gzip.compress(TEXT.encode("utf-16"))),
    ],
)
def test_content_determines_compression_and_encoding(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    texts, losses = read(folder)
    assert "".join(texts) == TEXT and not losses
    assert len(texts) > 10 and all(text.endswith("\n") for text in texts)


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".zst", zstandard.compress)])
def test_short_compressed_file_is_one_document(folder: Path, suffix: str, compress: Callable[[bytes], bytes]) -> None:
    (folder / f"a{suffix}").write_bytes(compress(b"one\ntwo\n"))
    assert read(folder)[0] == ["one\ntwo\n"]


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress), (".zst", zstandard.compress)],
)
def test_reports_truncated_and_mislabelled_archives(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    suffix: str,
    compress: Callable[[bytes], bytes],
) -> None:
    write_text(folder)
    whole = compress(random.Random(1).randbytes(50_000).hex().encode())
    (folder / f"a{suffix}").write_bytes(whole[: len(whole) // 2])
    assert tokenize(folder, tmp_path) == 2
    assert f"a{suffix}: cannot decompress" in capsys.readouterr().err
    (folder / f"a{suffix}").write_bytes(TEXT.encode())
    assert tokenize(folder, tmp_path) == 2
    assert f"although its name ends in {suffix}; rename it" in capsys.readouterr().err


RECORDS = [{"id": number, "text": text, "tags": ["a", {"b": None}]} for number, text in enumerate(TEXTS)]
JSON_FILES = {
    "lines.json": "\n".join(map(json.dumps, RECORDS)),
    "lines-without-claim.txt": "\n".join(map(json.dumps, RECORDS)),
    "array.json": json.dumps(RECORDS),
    "indented.json": "\ufeff \n" + json.dumps(RECORDS, indent=2),
    "array.jsonl": json.dumps(RECORDS),
    "concatenated.json": "\n".join(json.dumps(record, indent=1) for record in RECORDS),
    "array-without-claim": json.dumps(RECORDS, ensure_ascii=False),
}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("name", JSON_FILES)
def test_content_determines_json_records(folder: Path, name: str, encoding: str) -> None:
    (folder / name).write_bytes(JSON_FILES[name].removeprefix("\ufeff").encode(encoding))
    assert read(folder)[0] == TEXTS
    if name == "array.json":
        (folder / f"{name}.bz2").write_bytes(bz2.compress((folder / name).read_bytes()))
        assert sorted(read(folder)[0]) == sorted(TEXTS * 2)


def test_json_with_a_byte_order_mark(folder: Path) -> None:
    for name in ("lines.json", "indented.json", "lines-without-claim.txt"):
        (folder / name).write_text(JSON_FILES[name].removeprefix("\ufeff"), encoding="utf-8-sig")
        assert read(folder)[0] == TEXTS
        (folder / name).unlink()


def test_json_as_plain_text(folder: Path) -> None:
    for name, content in JSON_FILES.items():
        (folder / name).write_bytes(content.encode())
    texts, _ = read(folder, Selection(json_files="text"))
    assert sum(map(len, texts)) == sum(len(content.lstrip("\ufeff")) for content in JSON_FILES.values())


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", '[{"body": "x"}]', "JSON without text under the key 'text' (found: keys body)"),
        ("a.json", '{"data": [{"text": "x"}]}', "(found: keys data)"),
        ("a.json", "[1, 2]", "(found: int)"),
        ("a.json", "[]", "(found: no records)"),
        ("a.json", "[" * 100_000, "nested too deeply"),
        ("a.json", "[{}, " + "[" * 100_000, "JSON without text"),
        ("a.json", '{"text": "half', "invalid JSON"),
        ("a.json", "// comment\n{}", "not JSON records"),
        ("a.json", '[{"text": "x"}, {"text": 5}]', "record 1: no text under the key 'text'"),
        ("a.json", '[{"text": "x"} {"text": "y"}]', "expected ',' or ']'"),
        ("a.json", '[{"text": "x"}, {"text": "y"}', "expected ',' or ']'"),
        ("a.json", '[{"text": "x"}, ' + "1" * 5000 + "]", "invalid JSON"),
        ("a.jsonl", '{"text": "x"}\n' + "[" * 100_000, "byte 14: invalid JSON"),
        ("a.jsonl.gz", '{"text": "x"}\n{"text": 1', "line 1: invalid JSON"),
    ],
)
def test_reports_json_that_is_not_records(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: str, message: str
) -> None:
    write_text(folder)
    encoded = content.encode()
    (folder / name).write_bytes(gzip.compress(encoded) if name.endswith(".gz") else encoded)
    assert tokenize(folder, tmp_path) == 2
    error = capsys.readouterr().err
    assert name in error and message in error and "Traceback" not in error
    assert not (tmp_path / "d").exists()


def test_one_invalid_byte_does_not_drop_a_file(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_text(folder)
    lines = [b"line %d of a long text\n" % number for number in range(50_000)]
    lines[40_000] = b"caf\xe9 and \xff\n"
    content = b"".join(lines)
    (folder / "long.txt").write_bytes(content)
    assert tokenize(folder, tmp_path) == 2
    error = capsys.readouterr().err
    assert f"long.txt: not UTF-8: byte {content.index(0xE9)}; correct it, or choose --decoding" in error
    assert tokenize(folder, tmp_path, "--decoding", "skip-line") == 0
    assert "losses (skipped lines: 1)" in capsys.readouterr().out
    assert sources(tmp_path)["long.txt"]["skipped lines"] == 1
    assert open_dataset(tmp_path / "d").record.source.losses == {"skipped lines": 1}
    del lines[40_000]
    found = "".join(text for text in decoded(tmp_path) if "long" in text).encode()
    assert sorted(found.splitlines(keepends=True)) == sorted(lines)
    assert tokenize(folder, tmp_path, "--decoding", "replace") == 0
    assert "losses (replaced characters: 2)" in capsys.readouterr().out
    assert sources(tmp_path)["long.txt"]["replaced characters"] == 2
    assert sum(text.count("caf\ufffd and \ufffd\n") for text in decoded(tmp_path)) == 1
    assert tokenize(folder, tmp_path, "--skip-files") == 0
    assert sources(tmp_path)["long.txt"] == {"skipped": f"not UTF-8: byte {content.index(0xE9)}"}


def test_late_nul_is_text(folder: Path) -> None:
    (folder / "a.txt").write_bytes(TEXT.encode() + b"\0 and more\n")
    assert "".join(read(folder)[0]) == TEXT + "\0 and more\n"


@pytest.mark.parametrize("policy", POLICIES)
def test_policies_apply_to_every_format(folder: Path, policy: Decoding) -> None:
    good, bad = b"first line\nlast line\n", b"first line\nbad \xff\xc3 line\nlast line\n"
    utf16 = good.decode().encode("utf-16") + b"\x00\xd8" + "x\nafter\n".encode("utf-16-le")
    surrogate = json.dumps({"text": "first line\n\ud800x\nlast line\n"}).encode()
    parquet = folder / "a.parquet"
    offsets, data = pa.array([0, len(bad)], pa.int32()).buffers()[1], pa.py_buffer(bad)
    column = pa.Array.from_buffers(pa.string(), 1, [None, offsets, data])
    pyarrow.parquet.write_table(pa.table({"text": column}), parquet)
    contents = {
        "a.txt": bad,
        "a.txt.gz": gzip.compress(bad),
        "a.jsonl": b'{"text": "good"}\n{"text": "bad \xff"}\n',
        "a.jsonl.zst": zstandard.compress(b'{"text": "good"}\n{"text": "bad \xff"}\n'),
        "a.json": b'[{"text": "good"}, {"text": "bad \xff"}]',
        "utf16.txt": utf16,
        "surrogate.jsonl": surrogate,
        "a.parquet": parquet.read_bytes(),
    }
    parquet.unlink()
    for name, content in contents.items():
        (folder / name).write_bytes(content)
        if policy == "strict":
            with pytest.raises(TokenizeError, match=r"not UTF-8|invalid characters"):
                read(folder)
        else:
            texts, losses = read(folder, Selection(decoding=policy))
            text = "".join(texts)
            assert ("\ufffd" in text) == (policy == "replace"), name
            assert "good" in text or text.startswith("first line\n"), name
            assert "last line" in text or "a.js" in name, name
            assert set(losses) == {"replaced characters" if policy == "replace" else "skipped lines"}, name
            text.encode()
        (folder / name).unlink()


def test_every_file_is_counted_with_its_reason(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_text(folder)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "more.txt").write_text(TEXT)
    (folder / "link").symlink_to(elsewhere)
    (folder / "broken.txt").symlink_to("absent")
    os.mkfifo(folder / "pipe")
    (folder / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    (folder / "empty.txt").write_bytes(b"")
    (folder / ".git").mkdir()
    (folder / "node_modules").mkdir()
    assert tokenize(folder, tmp_path) == 2
    error = capsys.readouterr().err
    for message in (
        f"{folder}/link: symbolic link to a folder; specify the folder as --input",
        f"{folder}/broken.txt: not a regular file",
        f"{folder}/pipe: not a regular file",
        f"{folder}/image.png: binary: NUL byte at byte 8",
    ):
        assert message in error
    assert tokenize(folder, tmp_path, "--skip-files", "--extensions", ".txt,.png,pipe") == 0
    expected = {
        "link": "symbolic link to a folder",
        "broken.txt": "not a regular file",
        "pipe": "other extension",
        "image.png": "binary: NUL byte at byte 8",
        "empty.txt": "empty",
        ".git": "hidden or package folder",
        "node_modules": "hidden or package folder",
    }
    listed = sources(tmp_path)
    assert {name: record["skipped"] for name, record in listed.items() if "skipped" in record} == expected
    used = len(listed) - len(expected)
    assert f"{used} files used (text: {used}), 7 skipped (binary: 1, empty: 1, hidden or package folder: 2" in (
        capsys.readouterr().out
    )
    record = open_dataset(tmp_path / "d").record.source
    assert record.skipped["hidden or package folder"] == 2 and record.formats == {"text": used} and record.files == used
    assert tokenize(folder, tmp_path, "--skip-files", "--max-bytes", "5000") == 0
    assert "beyond --max-bytes" in open_dataset(tmp_path / "d").record.source.skipped


def test_file_names_may_have_any_bytes(folder: Path, tmp_path: Path) -> None:
    write_text(folder)
    name = os.fsdecode(b"caf\xe9.txt")
    (folder / name).write_text(TEXT)
    assert tokenize(folder, tmp_path) == 0
    assert name in sources(tmp_path)
    (folder / name).write_bytes(b"\0")
    with pytest.raises(TokenizeError, match=r"\.txt: binary"):
        read(folder)


def test_records_without_text_are_counted(folder: Path) -> None:
    (folder / "a.jsonl").write_text('{"text": "x"}\n\n{"text": ""}\n{"text": null}\n')
    assert read(folder) == (["x"], Counter({"records without text": 2}))


def test_reports_lines_that_do_not_fit_in_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("training.data.text.formats", "training.data.text.documents"):
        monkeypatch.setattr(f"{module}.MAX_RECORD_CHARACTERS", 100_000)
    monkeypatch.setattr("training.data.text.documents.PIECE_BYTES", 1000)
    record = json.dumps({"text": "x" * 200_000})
    for name, content in {
        "a.txt": b"y" * 200_000,
        "a.txt.gz": gzip.compress(b"y" * 200_000),
        "a.jsonl": record.encode(),
        "a.json": f"[{record}]".encode(),
    }.items():
        (folder / name).write_bytes(content)
        with pytest.raises(TokenizeError, match="more than 100000 characters"):
            read(folder)
        (folder / name).unlink()


def test_compressed_zeros_need_little_memory(folder: Path) -> None:
    line = b"0" * 99 + b"\n"
    (folder / "a.zst").write_bytes(zstandard.compress(line * 300_000))
    reader = formats._ZstdReader(folder / "a.zst")
    largest = total = 0
    buffer = bytearray(1 << 16)
    while size := reader.readinto(buffer):
        total += size
        largest = max(largest, len(reader._output))
    assert total == 30_000_000


@settings(max_examples=100, deadline=None)
@given(
    values=st.lists(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=30),
            lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
            max_leaves=15,
        ).map(lambda value: {"value": value}),
        max_size=20,
    ),
    indent=st.none() | st.integers(0, 3),
    chunk=st.integers(1, 50),
)
def test_json_values_match_the_standard_parser(
    tmp_path_factory: pytest.TempPathFactory, values: list[object], indent: int | None, chunk: int
) -> None:
    path = tmp_path_factory.mktemp("json") / "a.json"
    path.write_text(json.dumps(values, indent=indent))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formats, "HEAD_BYTES", chunk)
        assert list(formats.json_values(path, formats.Format("json"))) == values


UNBROKEN = {
    "bases": "ACGT",
    "base64": "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/",
    "digits": "0123456789",
    "spaces": " \t",
    "punctuation": "=-",
}


def require_unbroken_text_is_learned_and_encoded(text: str) -> None:
    tokenizer = bpe.train_tokenizer([text], 300)
    encoder = bpe.open_encoder(tokenizer, bpe.tiktoken_vocabulary(tokenizer))
    assert isinstance(encoder, bpe._TiktokenEncoder)
    assert tokenizer.decode(encoder.encode([text])[0].tolist()) == text


def test_unbroken_letters() -> None:
    """In quadratic time, this would take several minutes."""
    require_unbroken_text_is_learned_and_encoded("".join(random.Random(1).choices(UNBROKEN["bases"], k=600_000)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", UNBROKEN)
def test_unbroken_text_of_every_kind(kind: str) -> None:
    require_unbroken_text_is_learned_and_encoded("".join(random.Random(1).choices(UNBROKEN[kind], k=2_000_000)))


def test_cutting_long_words_does_not_change_the_training_of_ordinary_text() -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    source = "".join(path.read_text() for path in sorted(Path(bpe.__file__).parent.glob("*.py")))
    plain = Tokenizer(models.BPE())
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=[bpe.END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    plain.train_from_iterator([source], trainer)
    assert bpe.train_tokenizer([source], 900).to_str() == plain.to_str()
