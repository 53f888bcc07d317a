"""The network check: its formula, its verdict, and a gang that runs it before training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tests.training.conftest import TINY, Gangs
from training.config.parallel import ParallelConfig
from training.errors import TrainingError
from training.observe.metrics import MetricsFile
from training.process import network_check
from training.process.distributed import Gang
from training.process.network_check import NetworkMeasurement, bus_bandwidth, check_network

# 16 processes, 1 GiB in 10 ms: 107 GB/s of the buffer, 201 GB/s bus bandwidth.
MEASURED = NetworkMeasurement(bytes=1 << 30, processes=16, seconds=0.01, expected_gb_per_second=400.0)


def test_bus_bandwidth_matches_nccl_tests() -> None:
    assert bus_bandwidth(1_000_000_000, 2, 1.0) == pytest.approx(1e9)
    assert bus_bandwidth(1_000_000_000, 16, 0.5) == pytest.approx(2e9 * 2 * 15 / 16)
    assert MEASURED.gb_per_second == pytest.approx(201.3, abs=0.1)


def test_half_of_the_expected_bandwidth_is_healthy() -> None:
    assert MEASURED.is_healthy
    assert not replace(MEASURED, seconds=0.0101).is_healthy
    assert replace(MEASURED, seconds=60.0, expected_gb_per_second=None).is_healthy


class Pair:
    """A gang of two nodes, without collectives."""

    rank, world_size, local_world_size = 0, 2, 1


@pytest.mark.parametrize(("wanted", "fails"), [("report", False), ("require", True)])
def test_slow_network_is_reported_or_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, wanted: Any, fails: bool
) -> None:
    monkeypatch.setattr(network_check, "measure_network", lambda gang: replace(MEASURED, seconds=0.1))
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    settings = ParallelConfig(network_test=wanted)
    if fails:
        with pytest.raises(TrainingError, match=r"20\.1 GB/s, expected up to 400\.0 GB/s"):
            check_network(settings, cast("Gang", Pair()), metrics.write)
    else:
        check_network(settings, cast("Gang", Pair()), metrics.write)
        assert "20.1 GB/s" in caplog.text
    metrics.close()
    assert '"healthy": false' in (tmp_path / "metrics.jsonl").read_text()


def test_gang_checks_the_network_before_training(gangs: Gangs) -> None:
    config = {**TINY, "steps": 1, "parallel": {"network_test": "require"}}
    run = gangs.finish("measured", config, 2, environment={"TRAINSTACK_NETWORK_GBPS": "3200"})
    (record,) = run.records("network")
    assert record["processes"] == 2 and record["gb_per_second"] > 0
    # Both processes are on one node, so there is no network bandwidth to expect.
    assert record["expected_gb_per_second"] is None and record["healthy"]


def test_network_check_is_off_by_default(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    check_network(ParallelConfig(), cast("Gang", Pair()), metrics.write)
    metrics.close()
    assert (tmp_path / "metrics.jsonl").read_text() == ""
