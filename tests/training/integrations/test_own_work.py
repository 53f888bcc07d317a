"""Scripts with added checkpoints, in the real libraries: `make build/parity-venv/.installed`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from benchmarks.own_work.__main__ import PROCESSES, compare
from benchmarks.own_work.cases import CASES, NANOGPT, SCRIPTS

ROOT = Path(__file__).parents[3]
PYTHON = os.environ.get("PARITY_PYTHON", str(ROOT / "build" / "parity-venv" / "bin" / "python"))
SOURCE = os.environ.get("NANOGPT")


@pytest.mark.parametrize("name", sorted(CASES.keys() - {NANOGPT}))
def test_at_most_three_lines_are_added(tmp_path: Path, name: str) -> None:
    added, changed = CASES[name].write(tmp_path, None, 1)
    assert 1 <= added <= 3 and added + changed <= 4
    text = (tmp_path / CASES[name].script).read_text()
    assert "training.integrations" in text and "training" not in (SCRIPTS / CASES[name].script).read_text().split()


def test_unknown_version_of_a_script_is_rejected(tmp_path: Path) -> None:
    for name in ("train.py", "model.py", "configurator.py", "config/train_shakespeare_char.py"):
        path = tmp_path / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("import torch\n")
    with pytest.raises(SystemExit, match=r"must have the line 'running_mfu = -1\.0' exactly once"):
        CASES[NANOGPT].write(tmp_path, tmp_path / "source", 1)


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize(("name", "processes"), [(name, each) for name in CASES for each in PROCESSES[name]])
def test_killed_and_resumed_script_equals_an_uninterrupted_one(name: str, processes: int) -> None:
    if name == NANOGPT and SOURCE is None:
        pytest.skip("needs a clone of nanoGPT; set NANOGPT to its folder")
    assert Path(PYTHON).exists(), f"{PYTHON} does not exist; run `make build/parity-venv/.installed`"
    row = compare(CASES[name], PYTHON, None if SOURCE is None else Path(SOURCE), processes)
    assert row.is_equal, row


@pytest.mark.slow
def test_settings_that_cannot_be_resumed_are_rejected(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    peer = str(Path(__file__).with_name("peer.py"))
    done = subprocess.run([PYTHON, peer], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "save_strategy: no: the run would not save regularly; set steps or epoch",
        "ignore_data_skip: a resumed run would see the epoch's first samples again; set False",
        "configure_optimizers: must return one optimizer, not 2",
        "automatic_optimization: False: the callback cannot tell when a step is complete; set True",
        "AdamW AdamW",
    ]
