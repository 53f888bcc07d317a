"""Datasets with zstd objects: decoded during staging, verified in their decoded form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import zstandard

from bootstrap.boot_steps.staging import Staging, stage_dataset
from bootstrap.errors import StepError
from tests.bootstrap.account import Account
from tests.bootstrap.test_steps import SHARDS, failure, on_a_volume, real


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("*.bin")}


def test_encoded_objects_are_decoded_verified_and_not_downloaded_again(account: Account, tmp_path: Path) -> None:
    account.put_packed(SHARDS)
    context, step = real(account, tmp_path), Staging()
    step.act(context)
    step.verify(context)
    directory = context.layout.dataset("words")
    assert contents(directory) == SHARDS
    assert [path.name for path in directory.iterdir() if path.name.startswith(".")] == [".staging.json"]
    times = [path.stat().st_mtime_ns for path in directory.glob("*.bin")]
    account.put_dataset(SHARDS)  # the same contents, not encoded: nothing to do
    step.act(context)
    assert [path.stat().st_mtime_ns for path in directory.glob("*.bin")] == times


def test_encoded_files_of_an_interrupted_staging_are_kept(account: Account, tmp_path: Path) -> None:
    account.put_packed(SHARDS)
    first, second = SHARDS
    account.s3.delete_object(Bucket=account.datasets, Key=f"datasets/words/{first}.zst")
    context = real(account, tmp_path)
    directory = context.layout.dataset("words")
    directory.mkdir(parents=True)
    (directory / f".{first}.zst.part").write_bytes(zstandard.compress(SHARDS[first]))
    (directory / f".{second}.plain").write_bytes(b"half")
    Staging().act(context)
    assert contents(directory) == SHARDS


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (b"no zstd at all", "cannot be decoded: not a complete zstd file"),
        (zstandard.compress(b"\1\0" * 5000)[:-3], "found 0 bytes, expected 10000"),
        (zstandard.compress(b"\1\0" * 4000), "found 8000 bytes, expected 10000"),
        (zstandard.compress(b"\2\0" * 5000), "found BLAKE3 "),
    ],
    ids=["other", "cut", "shorter", "changed"],
)
def test_other_contents_are_rejected_after_decoding(
    account: Account, tmp_path: Path, stored: bytes, expected: str
) -> None:
    index = account.put_packed(SHARDS)
    name = next(iter(SHARDS))
    account.s3.put_object(Bucket=account.datasets, Key=f"datasets/words/{name}.zst", Body=stored)
    index["splits"]["train"]["shards"][0]["stored_bytes"] = len(stored)
    put_index(account, index)
    context = real(account, tmp_path)
    assert f"{name}: {expected}" in failure(Staging(), context).message
    assert not (context.layout.dataset("words") / name).exists()


def put_index(account: Account, index: dict[str, Any]) -> None:
    account.s3.put_object(Bucket=account.datasets, Key="datasets/words/dataset.json", Body=json.dumps(index).encode())


def test_an_unknown_encoding_is_refused(account: Account, tmp_path: Path) -> None:
    index = account.put_packed(SHARDS)
    index["splits"]["train"]["shards"][0]["encoding"] = "brotli"
    put_index(account, index)
    assert "encoding 'brotli': must be one of zstd" in failure(Staging(), real(account, tmp_path)).message


def test_the_disk_must_have_space_for_the_decoded_files(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account.put_packed(SHARDS)
    context = real(account, tmp_path)
    plain_bytes = sum(len(body) for body in SHARDS.values())
    monkeypatch.setattr(context.system, "free_bytes", lambda path: 256 * 1024**2 + plain_bytes - 1)
    assert context.run is not None
    with pytest.raises(StepError, match="not enough disk space"):
        stage_dataset(context, context.run)


def test_a_mounted_encoded_dataset_is_staged_from_s3(account: Account, tmp_path: Path) -> None:
    index = account.put_packed(SHARDS)
    mounted = tmp_path / "mnt" / "datasets" / "words"
    mounted.mkdir(parents=True)
    (mounted / "dataset.json").write_text(json.dumps(index))
    context = on_a_volume(real(account, tmp_path / "root"), tmp_path / "mnt", warm=False)
    Staging().act(context)
    assert not context.layout.dataset("words").is_symlink()
    assert contents(context.layout.dataset("words")) == SHARDS
