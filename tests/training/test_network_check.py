"""The measured all-reduce: its formula, what is judged of it, and a gang that makes one before it trains."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tests.training.conftest import TINY, Gangs
from training import network_check
from training.distributed import Gang
from training.errors import TrainingError
from training.metrics import MetricsFile
from training.network_check import NetworkMeasurement, bus_bandwidth, require_sound_network
from training.parallel_settings import ParallelConfig

# 16 processes, 1 GiB in 10 ms: 107 GB/s of the buffer, 201 on the bus.
MEASURED = NetworkMeasurement(bytes=1 << 30, processes=16, seconds=0.01, expected_gb_per_second=400.0)


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    assert bus_bandwidth(1_000_000_000, 2, 1.0) == pytest.approx(1e9)
    assert bus_bandwidth(1_000_000_000, 16, 0.5) == pytest.approx(2e9 * 2 * 15 / 16)
    assert MEASURED.gb_per_second == pytest.approx(201.3, abs=0.1)


def test_half_of_the_network_is_where_it_ceases_to_be_sound() -> None:
    assert MEASURED.is_sound
    assert not replace(MEASURED, seconds=0.0101).is_sound
    assert replace(MEASURED, seconds=60.0, expected_gb_per_second=None).is_sound


class Pair:
    """What is asked of a gang of two nodes when the measuring itself is not."""

    rank, world_size, local_world_size = 0, 2, 1


@pytest.mark.parametrize(("wanted", "fails"), [("report", False), ("require", True)])
def test_a_network_that_is_too_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, wanted: Any, fails: bool
) -> None:
    monkeypatch.setattr(network_check, "measure_network", lambda gang: replace(MEASURED, seconds=0.1))
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    settings = ParallelConfig(network_test=wanted)
    if fails:
        with pytest.raises(TrainingError, match=r"20\.1 GB/s, the network of these nodes gives 400\.0"):
            require_sound_network(settings, cast("Gang", Pair()), metrics)
    else:
        require_sound_network(settings, cast("Gang", Pair()), metrics)
        assert "20.1 GB/s" in caplog.text
    metrics.close()
    assert '"sound": false' in (tmp_path / "metrics.jsonl").read_text()


def test_a_gang_measures_before_it_trains(gangs: Gangs) -> None:
    config = {**TINY, "steps": 1, "parallel": {"network_test": "require"}}
    run = gangs.finish("measured", config, 2, environment={"TRAINSTACK_NETWORK_GBPS": "3200"})
    (record,) = run.records("network")
    assert record["processes"] == 2 and record["gb_per_second"] > 0
    # Both processes are on one node, where no network is between them to be judged.
    assert record["expected_gb_per_second"] is None and record["sound"]


def test_nothing_is_measured_unasked(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    require_sound_network(ParallelConfig(), cast("Gang", Pair()), metrics)
    metrics.close()
    assert (tmp_path / "metrics.jsonl").read_text() == ""
