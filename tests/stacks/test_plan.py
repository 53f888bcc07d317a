"""The expected cost and duration of a run: the random markets, the traces, and what `candidates --plan` prints."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from stacks.__main__ import main
from stacks.capacity.catalogue import catalogue
from stacks.capacity.simulation import expected as module
from stacks.capacity.simulation.expected import Expected, NotEstimable, Pool, expected
from stacks.capacity.simulation.spread import Spread
from stacks.capacity.training_time import TrainingTime, training_time
from stacks.commands.plan import histogram
from stacks.config import DeploymentConfig
from stacks.loading import load

LIMITS = {"deadline_hours": 30.0, "training_hours": 20.0}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path)


def write(folder: Path, **sections: Any) -> Path:
    document = {
        "name": "x",
        "capacity": {"instance_types": ["g6.xlarge"], "nodes": 2},
        "limits": LIMITS,
        "training": {"dataset": "text", "config": {"model": {"preset": "gpt2"}, "global_batch_size": 256}},
        **sections,
    }
    path = folder / "x.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def plan(config: DeploymentConfig, **options: Any) -> Expected:
    time = training_time(config)
    assert time is not None
    return expected(config, time, **{"runs": 30, **options})


def test_spread_of_a_known_distribution() -> None:
    assert Spread.of([float(value) for value in range(1, 11)]) == Spread(5.5, 2.0, 6.0, 10.0, 10.0)


def test_random_market_has_the_availability_and_the_lifetimes_of_its_pool() -> None:
    pool = Pool("us-east-1a", 1.0, availability=0.6, life_hours=5.0)
    window = module._random_window([pool], 200_000.0, 0.1, random.Random(1))
    course = window.zones[0].is_available
    ends = sum(before and not after for before, after in zip(course, course[1:], strict=False))
    assert sum(course) / len(course) == pytest.approx(0.6, abs=0.01)
    assert sum(course) * 0.1 / ends == pytest.approx(5.0, rel=0.05)


def test_cost_is_between_spot_and_on_demand_and_no_deadline_is_missed(file: Path) -> None:
    found = plan(load(file))
    spot, on_demand = (catalogue().usd_per_hour("us-east-1", "g6.xlarge", way) for way in ("spot", "on_demand"))
    assert spot is not None and on_demand is not None
    assert found.missed == 0.0
    assert 2 * 20 * spot < found.usd.mean < 2 * 20.2 * on_demand
    assert found.on_demand_usd == pytest.approx(2 * 20.2 * on_demand)
    assert found.hours.worst <= 30.0
    assert plan(load(file)) == found  # reproducible


def test_uninterrupted_spot_capacity_costs_the_training_and_one_boot(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_pools", lambda config, usd: ([Pool("us-east-1a", usd, 1.0, 1e9)], []))
    spot = catalogue().usd_per_hour("us-east-1", "g6.xlarge", "spot")
    assert spot is not None
    found = plan(load(file))
    assert found.usd.worst == pytest.approx(2 * 20.2 * spot)
    assert (found.on_demand_share, found.starts) == (0.0, 1.0)


def test_run_without_purchases_can_miss_its_deadline_and_costs_less(tmp_path: Path) -> None:
    zone = {"network": {"zones": ["a"]}}
    buys = plan(load(write(tmp_path, **zone)))
    waits = plan(load(write(tmp_path, limits={**LIMITS, "on_deadline_miss": "continue"}, **zone)))
    stops = plan(load(write(tmp_path, limits={**LIMITS, "on_deadline_miss": "stop"}, **zone)))
    assert buys.missed == 0.0
    assert waits.on_demand_share == 0.0
    assert waits.usd.mean < buys.usd.mean
    assert stops.hours.worst <= 30.0 + 1e-9
    assert waits.missed > 0.0


def test_on_demand_has_no_spread(tmp_path: Path) -> None:
    capacity = {"instance_types": ["g6.xlarge"], "market": "on_demand"}
    found = plan(load(write(tmp_path, capacity=capacity, limits={**LIMITS, "on_deadline_miss": "continue"})))
    assert found.usd.mean == found.usd.worst == found.on_demand_usd


def test_unknown_price_is_reported_with_the_remedy(file: Path) -> None:
    config = load(file)
    unknown = config.model_copy(update={"region": "ap-south-2"})
    with pytest.raises(NotEstimable, match="catalogue refresh --regions ap-south-2"):
        expected(unknown, TrainingTime(1.0, None, "", is_stated=True))


def test_traces_are_scaled_to_the_catalogue_and_repeated(tmp_path: Path, file: Path) -> None:
    folder = tmp_path / "traces" / "us-east-1a_v100_1"
    folder.mkdir(parents=True)
    trace = {"metadata": {"gap_seconds": 3600}, "data": [0, 0, 0, 0], "prices": [1.0, 3.0, 1.0, 3.0]}
    (folder / "0.json").write_text(json.dumps(trace))
    spot = catalogue().usd_per_hour("us-east-1", "g6.xlarge", "spot")
    assert spot is not None
    found = plan(load(file), traces=tmp_path / "traces")
    # 20.2 h at alternately 0.5 and 1.5 times the price: 20 h at the mean, and 0.2 h at half of it.
    assert found.usd.mean == pytest.approx(2 * spot * (20.0 + 0.2 * 0.5))


def test_command_prints_table_plot_and_assumptions(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["candidates", str(file), "--plan", "--runs", "20"]) == 0
    text = capsys.readouterr().out
    assert "20 simulated runs" in text
    assert "deadline of 30 h missed: 0.0% of the runs" in text
    assert "####" in text
    assert "- 20.00 h of training: limits.training_hours" in text
    assert main(["candidates", str(file), "--plan", "--runs", "20", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["missed"] == 0.0


def test_histogram_counts_each_value_once() -> None:
    lines = histogram([1.0, 1.0, 2.0, 13.0])
    assert sum(int(line.rsplit(" ", 1)[1]) for line in lines) == 4
    assert histogram([2.0, 2.0])[0].endswith(" 2")


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        (["--traces", "x"], "--traces"),
        (["--plan", "--runs", "0"], "--runs"),
        (["--plan", "--traces", "no"], "--traces"),
    ],
)
def test_wrong_options_are_refused(
    file: Path, arguments: list[str], path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["candidates", str(file), *arguments]) == 2
    assert path in capsys.readouterr().err


def test_unknown_training_time_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, capacity={"instance_types": ["c7i.2xlarge"]}, limits={})
    assert main(["candidates", str(file), "--plan"]) == 2
    assert "limits.training_hours" in capsys.readouterr().err


def test_review_prints_the_expected_cost(file: Path) -> None:
    from stacks.changes.report import _expected

    assert _expected(replace(Spread.of([10.0, 20.0]), mean=15.0)) == "15.00 USD (10% to 90% of runs: 10.00 to 20.00)"
