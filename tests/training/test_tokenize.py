"""The command `tokenize`: text files, splits, resumption and errors."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.training.conftest import write_text
from training.__main__ import main
from training.data.dataset import open_dataset


def tokenize(folder: Path, output: Path | str, *more: str, size: int = 300, name: str = "d") -> int:
    base = ["--input", str(folder), "--output", str(output), "--name", name, "--vocabulary-size", str(size)]
    return main(["tokenize", *base, "--workers", "1", *more])


def files_of(output: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((output / "d").iterdir())}


def test_round_trip_and_figures(tmp_path: Path) -> None:
    folder = tmp_path / "text"
    write_text(folder, files=20)
    (folder / "unicode.txt").write_text("grüße <|endoftext|> 日本\r\n" * 20, encoding="utf-8")
    (folder / "binary.txt").write_bytes(b"\0\1\2")
    (folder / "latin.txt").write_bytes("grüße".encode("latin-1"))
    (folder / "empty.txt").write_bytes(b"")
    assert tokenize(folder, tmp_path, "--validation-share", "0.3", "--shard-tokens", "1000", "--skip-files") == 0
    dataset = open_dataset(tmp_path / "d")
    dataset.verify_hashes()
    record = dataset.record
    assert len(record.splits["train"].shards) > 1
    tokenizer = Tokenizer.from_file(str(tmp_path / "d" / "tokenizer.json"))
    texts, streams = [], {}
    for name in ("train", "validation"):
        split = dataset.split(name)
        ids = split.rows(np.array([0]), split.tokens)[0]
        streams[name] = ids
        ends = np.flatnonzero(ids == record.end_of_text_id)
        assert len(ends) == record.splits[name].documents
        pieces = [piece[:-1] if piece.size else piece for piece in np.split(ids, ends + 1)[:-1]]
        texts += [(name, tokenizer.decode(piece.tolist(), skip_special_tokens=False)) for piece in pieces]
    expected = Counter(path.read_bytes().decode() for path in folder.glob("file-*.txt"))
    expected[(folder / "unicode.txt").read_bytes().decode()] += 1
    assert Counter(text for _, text in texts) == expected
    validation = [text for name, text in texts if name == "validation"]
    assert validation and len(validation) < len(texts)
    assert record.bytes_per_token == pytest.approx(
        sum(len(t.encode()) for t in validation) / len(streams["validation"])
    )
    counts = Counter(streams["train"].tolist())
    total = len(streams["train"]) + 300
    entropy = -sum(math.log((counts[i] + 1) / total) for i in streams["validation"].tolist()) / len(
        streams["validation"]
    )
    assert record.unigram_entropy_nats == pytest.approx(entropy, rel=1e-9)


def test_second_run_does_nothing_unless_text_or_settings_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_text(tmp_path / "text")
    assert tokenize(tmp_path / "text", tmp_path) == 0
    before = files_of(tmp_path)
    capsys.readouterr()
    assert tokenize(tmp_path / "text", tmp_path) == 0
    assert "unchanged" in capsys.readouterr().out
    assert files_of(tmp_path) == before
    (tmp_path / "text" / "file-3.txt").write_text("something else\n" * 100)
    assert tokenize(tmp_path / "text", tmp_path) == 0
    changed = files_of(tmp_path)
    assert changed != before
    assert tokenize(tmp_path / "text", tmp_path, size=290) == 0
    assert files_of(tmp_path) != changed
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_result_does_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    write_text(tmp_path / "text", files=900)
    assert tokenize(tmp_path / "text", tmp_path / "one") == 0
    arguments = ["--input", str(tmp_path / "text"), "--output", str(tmp_path / "two"), "--name", "d"]
    assert main(["tokenize", *arguments, "--vocabulary-size", "300", "--workers", "2"]) == 0
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")


def test_single_file_is_split_into_documents(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "book.txt").write_text("".join(f"line {n} of a book\n" for n in range(5000)))
    assert tokenize(tmp_path / "text", tmp_path) == 0
    assert open_dataset(tmp_path / "d").record.splits["validation"].documents >= 1


def test_selects_files_by_extension_and_limit(tmp_path: Path) -> None:
    write_text(tmp_path / "text")
    (tmp_path / "text" / "code.py").write_text("import os\n" * 500)
    assert tokenize(tmp_path / "text", tmp_path, "--extensions", ".txt", "--max-bytes", "20000") == 0
    record = open_dataset(tmp_path / "d").record
    assert 15000 < record.source.bytes <= 20000


@pytest.mark.parametrize(
    ("more", "size", "message"),
    [
        ((), 100, "100: must be at least 257"),
        (("--dtype", "uint16"), 70000, "70000: does not fit --dtype uint16"),
        ((), 5000, "5000: this text supports at most"),
        (("--extensions", ".rs"), 300, "no text files with extension .rs (skipped: other extension: 30)"),
        (("--validation-share", "1.5"), 300, "--validation-share: 1.5: must be between 0 and 1"),
        (("--max-bytes", "0"), 300, "--max-bytes: 0: must be at least 1"),
    ],
)
def test_invalid_input_is_reported_and_leaves_no_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], size: int, message: str
) -> None:
    write_text(tmp_path / "text")
    assert tokenize(tmp_path / "text", tmp_path / "out", *more, size=size) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists() or list((tmp_path / "out").iterdir()) == []


def test_rejects_folders_without_enough_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert tokenize(tmp_path / "absent", tmp_path / "out") == 2
    assert tokenize(tmp_path / "empty", tmp_path / "out") == 2
    (tmp_path / "empty" / "one.txt").write_text("only one document")
    assert tokenize(tmp_path / "empty", tmp_path / "out") == 2
    errors = capsys.readouterr().err
    assert "not a folder" in errors and "no text files" in errors and "only one document" in errors


def test_reports_a_full_disk_and_keeps_finished_work(tmp_path: Path) -> None:
    write_text(tmp_path / "text", files=60)
    # A limit on the file size replaces the full disk.
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000)); "
        "from training.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    arguments = ["--input", str(tmp_path / "text"), "--output", str(tmp_path / "out"), "--name", "d"]
    done = subprocess.run(
        [sys.executable, "-c", program, "tokenize", *arguments, "--vocabulary-size", "280", "--workers", "1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "File too large; unfinished work is kept in" in done.stderr and "Traceback" not in done.stderr
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".d.unfinished"]


def test_does_not_replace_a_directory_without_a_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_text(tmp_path / "text")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "precious.txt").write_text("keep me")
    assert tokenize(tmp_path / "text", tmp_path) == 2
    assert "not empty, and not a dataset" in capsys.readouterr().err
    assert (tmp_path / "d" / "precious.txt").read_text() == "keep me"


def test_writes_the_same_files_to_s3(
    tmp_path: Path, bucket: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import boto3

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    write_text(tmp_path / "text")
    url = f"s3://{bucket}/datasets"
    assert tokenize(tmp_path / "text", url, "--shard-tokens", "2000") == 0
    assert tokenize(tmp_path / "text", tmp_path, "--shard-tokens", "2000") == 0
    client = boto3.client("s3")

    def stored() -> dict[str, bytes]:
        listing = client.list_objects_v2(Bucket=bucket, Prefix="datasets/d/")["Contents"]
        return {
            item["Key"].rpartition("/")[2]: client.get_object(Bucket=bucket, Key=item["Key"])["Body"].read()
            for item in listing
        }

    assert stored() == files_of(tmp_path)
    capsys.readouterr()
    assert tokenize(tmp_path / "text", url, "--shard-tokens", "2000") == 0
    assert "unchanged" in capsys.readouterr().out
    client.put_object(Bucket=bucket, Key="datasets/d/notes/readme.txt", Body=b"of the user")
    assert tokenize(tmp_path / "text", url, "--shard-tokens", "4000") == 0
    assert stored().pop("readme.txt") == b"of the user"
    assert json.loads(stored()["dataset.json"])["source"]["digest"]
    assert len(stored()) - 1 < len(files_of(tmp_path))
