from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from training.__main__ import main

DAY_SECONDS = 86400


def prepared(datasets: Path, digest: str, days: float) -> None:
    folder = datasets / "prepared" / digest
    (folder / "0001").mkdir(parents=True)
    (folder / "0001" / "dataset.json").write_text("{}")
    facts = {"claim": 1, "function": "a:b", "source": "raw", "options": {"x": 1}, "bytes": 12}
    (folder / "prepared.json").write_text(json.dumps({**facts, "unix_seconds": time.time() - days * DAY_SECONDS}))


def test_lists_and_removes_prepared_datasets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepared", str(tmp_path)]) == 0
    assert "no prepared datasets" in capsys.readouterr().out
    for digest, days in (("aa" * 32, 2), ("ab" * 32, 40), ("cc" * 32, 90)):
        prepared(tmp_path, digest, days)
    (tmp_path / "prepared" / "dd" / "claims").mkdir(parents=True)
    (tmp_path / "prepared" / "dd" / "claims" / "0001.json").write_text("{}")
    assert main(["prepared", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:2] for line in lines] == ["cc", "ab", "aa", "dd"]
    assert '12 bytes, 90.0 days old: a:b of raw with {"x": 1}' in lines[0]
    assert "unfinished" in lines[3]
    assert main(["prepared", str(tmp_path), "--remove", "a", "ee"]) == 2
    errors = capsys.readouterr().err
    assert "a: matches 2 datasets" in errors and "ee: matches 0 datasets" in errors
    assert main(["prepared", str(tmp_path), "--remove", "aa", "dd", "--older-than-days", "60"]) == 0
    assert "3 of 4 removed" in capsys.readouterr().out
    assert list((tmp_path / "prepared").rglob("prepared.json")) == [
        tmp_path / "prepared" / ("ab" * 32) / "prepared.json"
    ]
    assert (tmp_path / "prepared" / ("ab" * 32) / "0001" / "dataset.json").exists()
