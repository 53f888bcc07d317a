from __future__ import annotations

import json
from pathlib import Path

import pytest

from training.__main__ import main


def publish(folder: Path, output: Path, name: str = "images") -> int:
    return main(["publish", "--input", str(folder), "--output", str(output), "--name", name])


def test_only_what_changed_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, output = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    for name in ("a.npz", "b.npz"):
        (folder / name).write_bytes(name.encode() * 100)
    assert publish(folder, output) == 0
    assert "2 files of 1000 bytes, 2 of them new or changed" in capsys.readouterr().out
    written = (output / "images" / "a.npz").stat().st_mtime_ns
    (folder / "b.npz").write_bytes(b"other")
    assert publish(folder, output) == 0
    assert "1 of them new or changed" in capsys.readouterr().out
    assert (output / "images" / "a.npz").stat().st_mtime_ns == written
    index = json.loads((output / "images" / "dataset.json").read_text())
    assert [entry["bytes"] for entry in index["splits"]["files"]["shards"]] == [500, 5]


def test_what_a_dataset_cannot_hold_is_said_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "in"
    (folder / "cats").mkdir(parents=True)
    (folder / "a b.npz").write_bytes(b"1")
    (folder / "dataset.json").write_bytes(b"1")
    (folder / "empty.npz").touch()
    assert publish(folder, tmp_path / "out", name="no/name") == 2
    told = capsys.readouterr().err
    for words in (
        "--name",
        "cats: is a folder; pack",
        "a b.npz: names have",
        "dataset.json: names",
        "empty.npz: is empty",
    ):
        assert words in told
    assert not (tmp_path / "out").exists()
    assert publish(tmp_path / "absent", tmp_path / "out") == 2
