"""Downloads of large objects: ranges, hashing on arrival, resume, and rejection of wrong contents."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from bootstrap.boot_steps.staging import Staging
from bootstrap.context import Context
from bootstrap.fetch import large, transfer
from bootstrap.fetch.partial import Partial
from bootstrap.system import System
from tests.bootstrap.account import Account
from tests.bootstrap.fetch.counting_proxy import CountingProxy
from tests.bootstrap.fetch.staging_process import CONNECTIONS
from tests.bootstrap.test_steps import failure, real

PART = 64 * 1024
PARTS = 40
SHARD = random.Random(1).randbytes(PART * (PARTS - 1) + 12345)  # noqa: S311
NAME = "train-00000.bin"


@pytest.fixture
def proxy(account: Account, monkeypatch: pytest.MonkeyPatch) -> Iterator[CountingProxy]:
    monkeypatch.setattr(transfer, "LARGE_BYTES", PART)
    monkeypatch.setattr(large, "PART_BYTES", PART)
    monkeypatch.setattr(large, "MIN_CONNECTIONS", CONNECTIONS)
    monkeypatch.setattr(large, "MAX_WAIT_SECONDS", 0.05)
    account.put_dataset({NAME: SHARD, "train-00001.bin": b"\1\0" * 100})
    proxy = CountingProxy(account.endpoint, NAME)
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    yield proxy
    proxy.close()


def stage(account: Account, root: Path) -> Context:
    context, step = real(account, root), Staging()
    step.act(context)
    step.verify(context)
    directory = context.layout.dataset("words")
    assert (directory / NAME).read_bytes() == SHARD
    assert {path.name for path in directory.iterdir() if path.name.startswith(".")} == {".staging.json"}
    return context


def left(context: Context) -> dict[str, int]:
    directory = context.layout.dataset("words")
    assert not (directory / NAME).exists() and not (directory / "dataset.json").exists()
    return {path.name: path.stat().st_size for path in directory.iterdir() if NAME in path.name}


def recorded(root: Path) -> set[int]:
    lines = (root / "datasets" / "words" / f".{NAME}.journal").read_text().splitlines()
    return {int(line) for line in lines[1:]}


def bytes_of(parts: set[int]) -> int:
    return sum(min(PART, len(SHARD) - PART * part) for part in parts)


def test_each_range_of_a_large_object_is_requested_once(account: Account, proxy: CountingProxy, tmp_path: Path) -> None:
    stage(account, tmp_path)
    assert sorted(first for first, _ in proxy.ranges) == [PART * part for part in range(PARTS)]
    assert proxy.fetched_bytes == len(SHARD)
    stage(account, tmp_path)
    assert proxy.fetched_bytes == len(SHARD)  # unchanged: no download


def test_failed_ranges_are_retried(account: Account, proxy: CountingProxy, tmp_path: Path) -> None:
    fates = {2: "slow down", 3: "cut off", 5: "close", 7: "other bytes", 9: "slow down", 11: "cut off"}
    proxy.fate = lambda number, first: fates.get(number, "pass")  # type: ignore[assignment,return-value]
    stage(account, tmp_path)
    # The range with a wrong header was forwarded completely, but rejected.
    assert proxy.fetched_bytes == len(SHARD) + sum(1 for fate in fates.values() if fate == "other bytes") * PART


@pytest.mark.parametrize(
    ("fate", "expected"),
    [
        ("slow down", "HTTP 503 Service Unavailable SlowDown"),
        ("cut off", f"the response ended after {PART // 2} of {PART} bytes"),
        ("close", "RemoteDisconnected"),
    ],
)
def test_a_permanent_failure_is_reported_and_resumed_later(
    account: Account, proxy: CountingProxy, tmp_path: Path, fate: Any, expected: str
) -> None:
    proxy.fate = lambda number, first: fate if first == 3 * PART else "pass"
    error = failure(Staging(), context := real(account, tmp_path))
    assert expected in error.message and f"at byte {3 * PART}, after {large.ATTEMPTS} attempts" in error.message
    assert set(left(context)) == {f".{NAME}.ranges", f".{NAME}.journal"}
    parts = recorded(tmp_path)
    assert 3 not in parts and len(parts) > 10
    proxy.reset()
    stage(account, tmp_path)
    assert {first // PART for first, _ in proxy.ranges} == set(range(PARTS)) - parts


def test_after_a_sigkill_only_missing_ranges_are_downloaded(
    account: Account, proxy: CountingProxy, tmp_path: Path
) -> None:
    node = account.node(python={"interpreter": sys.executable, "packages": []})
    run = account.run(code={"bucket": "assets", "key": "none", "sha256": "0" * 64})
    (tmp_path / "node.json").write_text(json.dumps(node))
    (tmp_path / "run.json").write_text(json.dumps(run))
    proxy.fate = lambda number, first: "pass" if number <= 8 else "hold"
    command = [sys.executable, "-m", "tests.bootstrap.fetch.staging_process", str(tmp_path), str(PART)]
    process = psutil.Process(subprocess.Popen(command).pid)
    # More requests than at the start: the process has handled some responses, and all its connections are waiting.
    requested_at_first = int(CONNECTIONS * large._QUEUED)
    proxy.wait_for_requests(requested_at_first + 2)
    family = process.children(recursive=True)
    process.kill()
    process.wait()
    assert len(family) >= 2
    _, alive = psutil.wait_procs(family, timeout=30)
    assert alive == []  # no process is still writing
    parts = recorded(tmp_path)
    assert 2 <= len(parts) <= 8

    proxy.reset()
    stage(account, tmp_path)
    assert {first // PART for first, _ in proxy.ranges} == set(range(PARTS)) - parts
    assert proxy.fetched_bytes == len(SHARD) - bytes_of(parts)


def interrupted(account: Account, proxy: CountingProxy, root: Path) -> set[int]:
    """Interrupt a download; return its parts on disk."""
    proxy.fate = lambda number, first: "close" if first == 5 * PART else "pass"
    failure(Staging(), real(account, root))
    proxy.reset()
    return recorded(root)


def test_parts_of_another_version_of_the_object_are_discarded(
    account: Account, proxy: CountingProxy, tmp_path: Path
) -> None:
    assert interrupted(account, proxy, tmp_path)
    key = f"datasets/words/{NAME}"
    account.s3.put_object(Bucket=account.datasets, Key=key, Body=SHARD[::-1])
    message = failure(Staging(), context := real(account, tmp_path)).message
    assert f"{NAME}: found BLAKE3" in message
    assert left(context) == {}
    account.s3.put_object(Bucket=account.datasets, Key=key, Body=SHARD)
    stage(account, tmp_path)


def test_parts_from_before_a_reboot_are_discarded(
    account: Account, proxy: CountingProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert interrupted(account, proxy, tmp_path)
    monkeypatch.setattr(System, "boot_id", lambda system: "another")
    stage(account, tmp_path)
    assert proxy.fetched_bytes == len(SHARD)


def test_a_damaged_part_is_detected_by_the_hash_and_the_file_is_downloaded_again(
    account: Account, proxy: CountingProxy, tmp_path: Path
) -> None:
    parts = interrupted(account, proxy, tmp_path)
    with (tmp_path / "datasets" / "words" / f".{NAME}.ranges").open("r+b") as stream:
        stream.seek(min(parts) * PART)
        stream.write(bytes(100))
    stage(account, tmp_path)
    assert proxy.fetched_bytes == 2 * len(SHARD) - bytes_of(parts)


def test_an_object_that_changes_during_the_download_is_refused(
    account: Account, proxy: CountingProxy, tmp_path: Path
) -> None:
    def change(number: int, first: int) -> Any:
        if number == 10:
            account.s3.put_object(Bucket=account.datasets, Key=f"datasets/words/{NAME}", Body=SHARD[::-1])
        return "pass"

    proxy.fate = change
    error = failure(Staging(), context := real(account, tmp_path))
    assert "its ETag differs" in error.message and "overwritten during the download" in error.remedy
    assert left(context) == {}


def test_a_full_disk_is_reported(
    account: Account, proxy: CountingProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_over = Partial._start_over

    def start_on_a_full_disk(partial: Partial) -> None:
        start_over(partial)
        partial.path.unlink()
        partial.path.symlink_to("/dev/full")

    monkeypatch.setattr(Partial, "_start_over", start_on_a_full_disk)
    error = failure(Staging(), context := real(account, tmp_path))
    assert "the disk is full: No space left on device" in error.message and "node.root_volume.gib" in error.remedy
    assert recorded(tmp_path) == set()
    assert NAME not in left(context)


def test_a_wrong_size_and_a_missing_object_are_reported(account: Account, proxy: CountingProxy, tmp_path: Path) -> None:
    key = f"datasets/words/{NAME}"
    account.s3.put_object(Bucket=account.datasets, Key=key, Body=SHARD + b"1")
    message = failure(Staging(), real(account, tmp_path)).message
    assert f"found {len(SHARD) + 1} bytes, expected {len(SHARD)}" in message
    account.s3.delete_object(Bucket=account.datasets, Key=key)
    assert f"{key}: cannot download" in failure(Staging(), real(account, tmp_path)).message
    assert proxy.ranges == []


def test_a_large_zstd_object_is_downloaded_in_ranges_and_decoded(
    account: Account, proxy: CountingProxy, tmp_path: Path
) -> None:
    account.put_packed({NAME: SHARD})
    stage(account, tmp_path)
    assert len(proxy.ranges) > PARTS // 2 and not (tmp_path / "datasets" / "words" / f"{NAME}.zst").exists()


def test_without_blake3_for_the_training_interpreter_the_remedy_names_it(
    account: Account, proxy: CountingProxy, tmp_path: Path
) -> None:
    bare = tmp_path / "bare-python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    context = real(account, tmp_path)
    python = {"interpreter": str(bare), "packages": []}
    context.node = type(context.node).from_json({**context.node.to_json(), "python": python})
    error = failure(Staging(), context)
    assert "No module named 'blake3'" in error.message and "node.python.packages" in error.remedy
