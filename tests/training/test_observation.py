"""Outputs of a run in addition to its metrics file."""

from __future__ import annotations

import gzip
import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from training.config import ObservationConfig
from training.config.observation import ProfileConfig
from training.errors import ConfigurationError
from training.loop.reporting import console_line
from training.loop.step_result import StepReport
from training.observe.metrics import MetricsFile
from training.observe.profiling import Profiler
from training.observe.rank_report import RankReport
from training.observe.sinks import EmbeddedMetrics, open_sinks


def test_records_go_to_tensorboard_and_to_cloudwatch(tmp_path: Path) -> None:
    metrics, printed = MetricsFile(tmp_path / "metrics.jsonl"), io.StringIO()
    metrics.add_sinks(open_sinks(ObservationConfig(tensorboard=True), tmp_path, 0))
    metrics.add_sinks([EmbeddedMetrics(printed, "run-1")])
    metrics.write("start", step=0, parameters=5)
    metrics.write("step", step=1, loss=2.5, step_seconds=0.5, gradient_norm=float("nan"), skipped=False)
    metrics.close()

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {"step/loss", "step/step_seconds"}
    assert [(event.step, event.value) for event in events.Scalars("step/loss")] == [(1, 2.5)]
    (document,) = (json.loads(line) for line in printed.getvalue().splitlines())
    (directive,) = document["_aws"]["CloudWatchMetrics"]
    assert directive["Metrics"] == [{"Name": "loss", "Unit": "None"}, {"Name": "step_seconds", "Unit": "Seconds"}]
    for name in [metric["Name"] for metric in directive["Metrics"]] + directive["Dimensions"][0]:
        assert name in document, "the format requires every name as a member of the document"
    assert document["_aws"]["Timestamp"] > 1.6e12, "milliseconds"


def test_only_rank_zero_opens_sinks_and_a_missing_package_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = ObservationConfig(tensorboard=True, embedded_metrics=True)
    assert open_sinks(wanted, tmp_path, 1) == []
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="tensorboard is not installed"):
        open_sinks(wanted, tmp_path, 1)


def test_traces_are_bounded(tmp_path: Path) -> None:
    """https://github.com/Lightning-AI/pytorch-lightning/issues/10717, https://github.com/pytorch/kineto/issues/308."""
    settings = ProfileConfig(steps=2, first_step=3, interval_steps=4, keep=2)
    profiler = Profiler(settings, tmp_path, first_step=10)
    for step in range(11, 28):
        profiler.before_step(step)
        torch.ones(4).sum()
        profiler.after_step(step)
    profiler.before_step(29)
    profiler.close()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["steps-00000021-00000022.json.gz", "steps-00000025-00000026.json.gz"]
    events = json.loads(gzip.decompress((tmp_path / names[0]).read_bytes()))["traceEvents"]
    assert any(event.get("name") == "aten::sum" for event in events)


def test_large_trace_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.observe.profiling.MIB", 1)
    profiler = Profiler(ProfileConfig(steps=1, first_step=1, max_mib=1), tmp_path, first_step=0)
    profiler.before_step(1)
    profiler.after_step(1)
    assert list(tmp_path.iterdir()) == []


def test_slow_rank_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def gather(own: dict[str, float]) -> list[dict[str, float]]:
        return [own, {**own, "own_seconds": 4.0}, own]

    gang: Any = SimpleNamespace(rank=0, device=torch.device("cpu"), gather=gather)
    ranks = RankReport(gang, MetricsFile(tmp_path / "metrics.jsonl"))
    for _ in range(2):
        ranks.note({"forward": 1.0, "backward": 1.0, "communication": 2.0})
    ranks.report(100)
    record = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert (record["record"], record["step"]) == ("ranks", 100)
    assert (record["slowest_rank"], record["slowest_over_median"]) == (1, 2.0)
    assert record["ranks"][0] == {"own_seconds": 2.0, "communication_seconds": 2.0}
    assert "rank 1 is slow: 4.000 s per step, 2.00 times the median" in caplog.text


def test_console_line_has_the_figures_of_other_trainers() -> None:
    report = StepReport(step=20, loss=3.14159, learning_rate=3e-4, gradient_norm=0.5, step_seconds=0.1234)
    line = console_line(report, 2000, "tokens_per_second", 12_345.6, 0.345)
    assert line == "step 20/2000: loss 3.1416, norm 0.500, lr 0.0003, 123.4 ms, 12,346 tokens/s, MFU 34.5%"
    skipped = replace(report, loss=float("nan"), skipped=True)
    line = console_line(skipped, 2000, "samples_per_second", 8.0, None)
    assert line == "step 20/2000: loss nan, norm 0.500, lr 0.0003, 123.4 ms, 8 samples/s (skipped: not finite)"
