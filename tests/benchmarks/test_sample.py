"""The benchmark of the key/value cache ends, and reports medians of equal texts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.sample import ARCHITECTURES, main


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Restore the number of threads of the process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_benchmark_writes_medians(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "sample.json"
    assert main(["--tokens", "3", "--repeats", "3", "--output", str(output)]) == 0
    written = json.loads(output.read_text())
    assert (written["size"], written["tokens"], written["repeats"]) == ("small", 3, 3)
    assert set(written["models"]) == set(ARCHITECTURES)
    for found in written["models"].values():
        assert found["is_equal"]
        assert found["min_speedup"] <= found["speedup"] <= found["max_speedup"]
        assert found["cached_tokens_per_second"] > 0
    assert capsys.readouterr().out.count("equal texts of 3 tokens") == len(ARCHITECTURES)


@pytest.mark.parametrize(
    "arguments", [["--tokens", "241"], ["--tokens", "0"], ["--repeats", "0"], ["--threads", "0"], ["--size", "huge"]]
)
def test_invalid_options_are_rejected(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(arguments)
    assert error.value.code == 2
    assert "error:" in capsys.readouterr().err
