"""A disk that fills up during staging, after the check of its free space."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bootstrap.boot_steps.staging import stage_dataset
from bootstrap.errors import StepError
from bootstrap.fetch import large, transfer
from tests.bootstrap.account import Account
from tests.bootstrap.test_steps import SHARDS, real

DISK_BYTES = 64 * 1024


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mount = tmp_path / "disk"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(mount)], check=True)
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


@pytest.mark.root
@pytest.mark.parametrize("large_bytes", [None, 1024])
def test_a_disk_that_fills_up_during_staging_is_reported(
    account: Account, small_disk: Path, monkeypatch: pytest.MonkeyPatch, large_bytes: int | None
) -> None:
    if large_bytes is not None:
        monkeypatch.setattr(transfer, "LARGE_BYTES", large_bytes)
        monkeypatch.setattr(large, "PART_BYTES", 16 * 1024)
    account.put_dataset(SHARDS)
    context = real(account, small_disk)
    monkeypatch.setattr(context.system, "free_bytes", lambda path: 1 << 40)
    assert context.run is not None

    with pytest.raises(StepError) as caught:
        stage_dataset(context, context.run)

    assert "no space left" in str(caught.value).lower() + caught.value.output_tail.lower()
    assert caught.value.remedy
    assert not (context.layout.dataset("words") / "dataset.json").exists()
