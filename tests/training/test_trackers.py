"""Experiment trackers in their real libraries, in an environment: `make build/trackers-venv/.installed`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from training.config.observation import ObservationConfig
from training.errors import ConfigurationError
from training.observe import sinks
from training.observe.sinks import open_sinks

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("TRACKERS_PYTHON", str(ROOT / "build" / "trackers-venv" / "bin" / "python"))
PEER = Path(__file__).with_name("tracker_peer.py")


@pytest.mark.slow
@pytest.mark.parametrize("tracker", ["wandb", "mlflow"])
def test_the_library_reads_what_the_run_wrote(tracker: str, tmp_path: Path) -> None:
    assert Path(PYTHON).exists(), f"{PYTHON} does not exist; run `make build/trackers-venv/.installed`"
    folder = tmp_path / "gen-3"
    folder.mkdir()
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "WANDB_API_KEY": "0" * 40,
        "HTTPS_PROXY": "http://127.0.0.1:9",
    }
    done = subprocess.run(
        [PYTHON, str(PEER), tracker, str(folder)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    assert result["name"] == "gen-3"
    # Step 2 is trained again after a rollback. A value that is None is left out.
    assert result["step/loss"] == [[1, 3.0], [2, 2.5], [3, 2.25], [2, 2.375], [3, 2.0]]
    assert result["validation/loss"] == [[3, 2.5]]
    assert "step/mfu" not in result and "start/world_size" not in result
    # The files have the values before the run ends, so that they can be uploaded while it trains.
    assert result["bytes_while_training"] >= 1000
    assert result["bytes_outside"] == 0


@pytest.mark.parametrize("rank", [0, 1])
def test_a_missing_package_is_an_error_on_all_ranks(rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError) as caught:
        open_sinks(ObservationConfig(wandb=True, mlflow=True), tmp_path, rank)
    text = str(caught.value)
    assert "observation.wandb: true: the package wandb is not installed" in text
    assert "observation.mlflow: true: the package mlflow is not installed" in text


def test_trackers_are_off_by_default(tmp_path: Path) -> None:
    assert open_sinks(ObservationConfig(), tmp_path, 0) == []
    assert list(tmp_path.iterdir()) == []
