"""Extraction of metrics from logs, reading of metric records, and the diagnosis of a run."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from training.errors import ConfigurationError
from training.observe.diagnosis import diagnose, run_diagnose
from training.observe.log_metrics import metrics_of, run_metrics
from training.observe.metrics import SCHEMA_VERSION, read_records


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "iter 100: loss 2.3451, time 12.50ms, mfu 3.10%",
            {"step": 100, "loss": 2.3451, "time": 0.0125, "mfu": 0.031},
        ),
        ("step 20/1000 | loss 3.21 | lr 3e-4 | norm: 1.5", {"step": 20, "loss": 3.21, "lr": 3e-4, "norm": 1.5}),
        (
            "{'loss': 1.5, 'grad_norm': 0.25, 'learning_rate': 5e-05, 'epoch': 0.1}",
            {"loss": 1.5, "grad_norm": 0.25, "learning_rate": 5e-5, "epoch": 0.1},
        ),
        ('2026-01-01 INFO {"step": 3, "train": {"loss": "0.5"}}', {"step": 3, "train/loss": 0.5}),
        ("step 250: train loss 1.9, val loss 2.1", {"step": 250, "train_loss": 1.9, "val_loss": 2.1}),
        ("Epoch=3 accuracy=0.91 tokens/s: 12,345", {"epoch": 3, "accuracy": 0.91, "tokens/s": 12345}),
        ("loading 3 files from /data/loss", None),
        ("listening on port 8080", None),
    ],
)
def test_metrics_in_log_lines_of_other_trainers(line: str, expected: dict[str, float] | None) -> None:
    assert metrics_of(line) == (expected if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"loss": 1' + "0" * 400 + "}", {"loss": float("inf")}),
        ('{"loss": -1' + "0" * 400 + "}", {"loss": float("-inf")}),
        ('{"loss": 1e999}', {"loss": float("inf")}),
        ("{'loss': 1" + "0" * 400 + "}", {"loss": float("inf")}),
        ('{"a":' * 50_000 + "1" + "}" * 50_000, None),
        ("{" + "[" * 50_000 + "}", None),
        ("{" + "-" * 50_000 + "1}", None),
        ('{"loss": ' + "9" * 5000 + "}", None),
        ("a" * 300_000, None),
    ],
    ids=lambda value: str(value)[:12],
)
def test_any_line_has_metrics_or_none(line: str, expected: dict[str, float] | None) -> None:
    """RFC 8259, sections 6 and 9: JSON limits neither numbers nor nesting."""
    assert metrics_of(line) == expected


def test_extract_prints_json_lines_and_fails_without_metrics(tmp_path: Path) -> None:
    log, output = tmp_path / "log", io.StringIO()
    log.write_text("hello\nstep 1 loss nan\nstep 2 loss 1.5\n")
    assert run_metrics(SimpleNamespace(log=log), output) == 0
    assert [json.loads(line) for line in output.getvalue().splitlines()] == [
        {"line": 2, "step": 1, "loss": None},
        {"line": 3, "step": 2, "loss": 1.5},
    ]
    log.write_text("hello\n")
    assert run_metrics(SimpleNamespace(log=log), output) == 1
    with pytest.raises(ConfigurationError, match="cannot be read"):
        run_metrics(SimpleNamespace(log=tmp_path / "none"), output)


def steps(count: int = 60, **values: Any) -> list[dict[str, Any]]:
    usual = {
        "record": "step",
        "schema_version": SCHEMA_VERSION,
        "step_seconds": 1.0,
        "data_seconds": 0.0,
        "forward_seconds": 0.3,
        "backward_seconds": 0.6,
        "communication_seconds": 0.0,
        "optimizer_seconds": 0.1,
        "checkpoint_seconds": 0.0,
        "tokens_per_second": 100.0,
        "loss": 2.0,
        "gradient_norm": 1.0,
        "mfu": None,
        "skipped": False,
    }
    return [{**usual, **values, "step": number} for number in range(1, count + 1)]


START = {
    "record": "start",
    "schema_version": SCHEMA_VERSION,
    "world_size": 4,
    "precision": "fp32",
    "attention": "math",
    "gpu_total_bytes": 100,
}


@pytest.mark.parametrize(
    ("records", "summary", "change"),
    [
        (steps(data_seconds=0.3), "waits for data", "local disk"),
        (steps(communication_seconds=0.4), "wait for each other", "gradient_compression"),
        (steps(checkpoint_seconds=0.2), "Checkpoints delay", "checkpoint.interval_steps"),
        (steps(optimizer_seconds=0.5), "optimizer takes a large part", "global_batch_size"),
        (steps(mfu=0.1, gpu_peak_bytes=10), "GPU utilization is low", "compile: true; set precision: bf16"),
        (steps(gradient_norm=50.0), "Gradients are large", "learning_rate"),
        (steps(skipped=True), "Steps were skipped", "bf16"),
        (
            [
                *steps(),
                {"record": "ranks", "slowest_rank": 2, "slowest_over_median": 1.5, "ranks": [{}, {}, {}, {}]},
            ],
            "Rank 2 is slow",
            "replace its node",
        ),
        (
            [*steps(), *({"record": "validation", "step": n, "loss": 6.0, "unigram_loss": 5.0} for n in (1, 2))],
            "worse than the token frequencies",
            "find-learning-rate",
        ),
        (
            [*steps(loss=0.5), *({"record": "validation", "step": n, "loss": 2.0 + n / 10} for n in (1, 2, 3))],
            "overfits",
            "dropout",
        ),
    ],
)
def test_limits_are_reported_with_the_setting_to_change(
    records: list[dict[str, Any]], summary: str, change: str
) -> None:
    findings = diagnose([START, *records])
    (found,) = [finding for finding in findings if summary in finding.summary]
    assert change in found.change and found.evidence
    assert summary not in " ".join(finding.summary for finding in diagnose([START, *steps()]))


def test_no_findings_for_a_healthy_run_or_after_few_steps(tmp_path: Path) -> None:
    output = io.StringIO()
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in [START, *steps()]) + '{"record": "st')
    assert run_diagnose(SimpleNamespace(run=tmp_path), output) == 0
    assert "No bottleneck found" in output.getvalue() and "forward 30.0%" in output.getvalue()
    assert "between steps 0.0%" in output.getvalue()
    path.write_text(json.dumps(START) + "\n")
    assert run_diagnose(SimpleNamespace(run=tmp_path), output) == 0
    assert "fewer than 6 steps since the last start; run it again later" in output.getvalue()
    path.write_text("{\n{}\n")
    with pytest.raises(ConfigurationError, match="line 1 is not JSON"):
        read_records(path)


@pytest.mark.parametrize(("record", "version"), [({"record": "step"}, 1), ({"record": "step", "schema_version": 3}, 3)])
def test_other_schema_versions_are_rejected(tmp_path: Path, record: dict[str, Any], version: int) -> None:
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in (START, record)))
    with pytest.raises(ConfigurationError, match=f"line 2 has schema_version {version}, expected 2"):
        run_diagnose(SimpleNamespace(run=tmp_path))
