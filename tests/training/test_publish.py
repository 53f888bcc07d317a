"""The commands `publish` and `prepare`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import zstandard

from training.__main__ import main
from training.data.dataset import open_dataset


def publish(folder: Path, output: Path, name: str = "images") -> int:
    return main(["publish", "--input", str(folder), "--output", str(output), "--name", name])


def test_writes_only_new_and_changed_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_reports_all_invalid_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "in"
    (folder / "cats").mkdir(parents=True)
    (folder / "a b.npz").write_bytes(b"1")
    (folder / "dataset.json").write_bytes(b"1")
    (folder / "empty.npz").touch()
    assert publish(folder, tmp_path / "out", name="no/name") == 2
    errors = capsys.readouterr().err
    for message in (
        "--name",
        "cats: subfolders are not allowed; pack",
        "a b.npz: only letters, digits,",
        "dataset.json: not a dataset index",
        "empty.npz: empty file",
    ):
        assert message in errors
    assert not (tmp_path / "out").exists()
    assert publish(tmp_path / "absent", tmp_path / "out") == 2


def test_publishes_a_folder_with_its_index_if_the_files_match(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, made, output = tmp_path / "in", tmp_path / "made", tmp_path / "out"
    folder.mkdir()
    (folder / "a.npz").write_bytes(b"1234")
    assert publish(folder, made) == 0
    index = json.loads((made / "images" / "dataset.json").read_text())
    index["vocabulary_size"] = 300  # other keys of an index are kept
    (made / "images" / "dataset.json").write_text(json.dumps(index))
    (made / "images" / "tokenizer.json").write_text("{}")
    assert publish(made / "images", output, name="again") == 0
    assert json.loads((output / "again" / "dataset.json").read_text()) == index
    assert sorted(path.name for path in (output / "again").iterdir()) == ["a.npz", "dataset.json", "tokenizer.json"]
    (made / "images" / "a.npz").write_bytes(b"4321")
    assert publish(made / "images", output, name="third") == 2
    assert "a.npz: differs from its hash in dataset.json" in capsys.readouterr().err
    assert not (output / "third").exists()


def test_prepare_runs_a_function(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ours_to_prepare.py").write_text(
        "def upper(source, target, suffix):\n"
        "    for path in source.iterdir():\n"
        "        (target / f'{path.stem}{suffix}').write_text(path.read_text().upper())\n"
        "def nothing(source, target):\n"
        "    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    source, target, options = tmp_path / "source", tmp_path / "target", tmp_path / "options.json"
    source.mkdir()
    (source / "a.txt").write_text("words")
    options.write_text('{"suffix": ".bin"}')
    command = ["prepare", "--source", str(source), "--target", str(target), "--function"]
    assert main([*command, "ours_to_prepare:upper", "--options", str(options)]) == 0
    assert (target / "a.bin").read_text() == "WORDS"
    assert main([*command, "ours_to_prepare:upper"]) == 2
    assert "requires 'suffix'; set it in options" in capsys.readouterr().err
    (target / "a.bin").unlink()
    assert main([*command, "ours_to_prepare:nothing"]) == 2
    assert "ours_to_prepare:nothing" in capsys.readouterr().err


def test_prepare_tokenizes_text(tmp_path: Path) -> None:
    source, target, options = tmp_path / "source", tmp_path / "target", tmp_path / "options.json"
    source.mkdir()
    for number in range(4):
        (source / f"{number}.txt").write_text(f"some text of file {number}, and more of it. " * 50)
    options.write_text('{"vocabulary_size": 270}')
    function = "training.data.prepare:tokenize"
    command = ["prepare", "--function", function, "--options", str(options), "--source", str(source)]
    assert main([*command, "--target", str(target)]) == 0
    assert publish(target, tmp_path / "out", name="text") == 0
    assert open_dataset(tmp_path / "out" / "text").record.vocabulary_size == 270


def test_compressed_files_are_recorded_with_both_sizes_and_written_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, output = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    (folder / "a.csv").write_bytes(b"1,2,3\n" * 10000)
    command = ["publish", "--input", str(folder), "--output", str(output), "--name", "rows"]
    assert main([*command, "--compress"]) == 0
    assert "1 of them new or changed" in capsys.readouterr().out
    (entry,) = json.loads((output / "rows" / "dataset.json").read_text())["splits"]["files"]["shards"]
    stored = (output / "rows" / "a.csv.zst").read_bytes()
    assert (entry["bytes"], entry["encoding"], entry["stored_bytes"]) == (60000, "zstd", len(stored))
    assert zstandard.decompress(stored) == (folder / "a.csv").read_bytes()
    assert main([*command, "--compress"]) == 0
    assert "0 of them new or changed" in capsys.readouterr().out
    (again,) = json.loads((output / "rows" / "dataset.json").read_text())["splits"]["files"]["shards"]
    assert again == entry
    assert main(command) == 0  # without compression
    (plain,) = json.loads((output / "rows" / "dataset.json").read_text())["splits"]["files"]["shards"]
    assert "encoding" not in plain and (output / "rows" / "a.csv").exists()


def test_create_never_replaces_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nodes publish prepared data in this way: their role allows no other writes."""
    folder, output = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    (folder / "a.bin").write_bytes(b"first")
    command = ["publish", "--input", str(folder), "--output", str(output), "--name", "rows", "--create"]
    assert main(command) == 0
    assert main(command) == 0, "the same files, as after a lost response"
    (folder / "a.bin").write_bytes(b"other")
    capsys.readouterr()
    assert main(command) == 2
    assert "a.bin" in capsys.readouterr().err
    assert (output / "rows" / "a.bin").read_bytes() == b"first"
