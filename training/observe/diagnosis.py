"""The `diagnose` command: finds a run's bottlenecks in its metrics, and lists the settings to change."""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TextIO

from training.observe.metrics import Record, read_records

WARM_STEPS = 5
"""Number of steps to ignore after each start, while kernels compile and caches fill."""
DATA_SHARE, COMMUNICATION_SHARE, CHECKPOINT_SHARE, OPTIMIZER_SHARE = 0.05, 0.2, 0.03, 0.25
UNEVEN_RATIO = 1.5
LOW_MFU = 0.3
FREE_MEMORY_SHARE = 0.4
SLOW_RANK_RATIO = 1.2
CLIPPED_NORM_FACTOR = 10.0


@dataclass(frozen=True)
class Finding:
    """A bottleneck or a problem of the run.

    Attributes:
        summary: description in one sentence.
        evidence: measured numbers.
        change: setting to change, and its new value.
        lost_share: share of the run's time that is lost, or 0. Findings are sorted by this value.
    """

    summary: str
    evidence: str
    change: str
    lost_share: float = 0.0


def diagnose(records: Sequence[Record]) -> list[Finding]:
    """Return a run's bottlenecks, most expensive first."""
    steps = _warm_steps(records)
    if not steps:
        return []
    start = next((record for record in records if record["record"] == "start"), {})
    findings = [
        *_time(steps, start),
        *_hardware(steps, records, start),
        *_learning(steps, records),
    ]
    return sorted(findings, key=lambda finding: -finding.lost_share)


def _warm_steps(records: Sequence[Record]) -> list[Record]:
    warm, since_start = [], 0
    for record in records:
        if record["record"] == "start":
            since_start = 0
        elif record["record"] == "step":
            since_start += 1
            if since_start > WARM_STEPS:
                warm.append(record)
    return warm


def _share(steps: Sequence[Record], name: str) -> float:
    total_seconds = sum(step["step_seconds"] for step in steps)
    return sum(step.get(name) or 0.0 for step in steps) / total_seconds if total_seconds else 0.0


def _time(steps: Sequence[Record], start: Record) -> Iterator[Finding]:
    data, communication = _share(steps, "data_seconds"), _share(steps, "communication_seconds")
    checkpoint, optimizer = _share(steps, "checkpoint_seconds"), _share(steps, "optimizer_seconds")
    if data > DATA_SHARE:
        yield Finding(
            "The run waits for data.",
            f"data_seconds is {data:.0%} of the time of {len(steps)} steps",
            "put the dataset on a local disk or in memory, or raise data.workers for a user-supplied dataset",
            data,
        )
    if communication > COMMUNICATION_SHARE:
        yield Finding(
            "The ranks wait for each other's gradients.",
            f"communication_seconds is {communication:.0%} of the time, on {start.get('world_size', '?')} processes",
            "raise global_batch_size (more work per exchange), set parallel.gradient_compression: bf16, or "
            "use nodes with EFA in a cluster placement group (capacity.placement: cluster)",
            communication,
        )
    if checkpoint > CHECKPOINT_SHARE:
        yield Finding(
            "Checkpoints delay the steps.",
            f"checkpoint_seconds is {checkpoint:.1%} of the time",
            "raise checkpoint.interval_steps, or set it to auto",
            checkpoint,
        )
    if optimizer > OPTIMIZER_SHARE:
        yield Finding(
            "The optimizer takes a large part of each step; its work does not depend on the batch size.",
            f"optimizer_seconds is {optimizer:.0%} of the time",
            "raise global_batch_size and the learning rate",
            optimizer,
        )
    seconds = sorted(step["step_seconds"] for step in steps)
    median, slow = seconds[len(seconds) // 2], seconds[int(len(seconds) * 0.95)]
    if len(seconds) >= 40 and slow > UNEVEN_RATIO * median:
        yield Finding(
            "Step times vary widely.",
            f"the median is {median:.3f} s, the 95th percentile is {slow:.3f} s",
            "check for other processes on the machine; set execution.garbage_collection_interval_steps if it is null",
            1.0 - median * len(seconds) / sum(seconds),
        )


def _hardware(steps: Sequence[Record], records: Sequence[Record], start: Record) -> Iterator[Finding]:
    utilizations = [step["mfu"] for step in steps if step.get("mfu") is not None]
    mfu = statistics.median(utilizations) if utilizations else None
    if mfu is not None and mfu < LOW_MFU:
        last = steps[-1]
        total = start.get("gpu_total_bytes")
        free = None if not total else 1.0 - last.get("gpu_peak_bytes", 0) / total
        changes = [] if start.get("compile") else ["set compile: true"]
        if start.get("precision") in ("fp32", "tf32"):
            changes.append("set precision: bf16 (or auto)")
        if free is not None and free > FREE_MEMORY_SHARE:
            changes.append("set micro_batch_size: auto, to use the free memory")
        if start.get("attention") == "math":
            changes.append("set execution.attention: flash")
        memory = "" if free is None else f"; {free:.0%} of the GPU memory is never used"
        yield Finding(
            "GPU utilization is low.",
            f"median MFU {mfu:.1%} in {start.get('precision')}{memory}",
            "; ".join(changes) or "profile some steps (observation.profile.steps: 3) and look for gaps between kernels",
            1.0 - mfu / LOW_MFU,
        )
    reports = [record for record in records if record["record"] == "ranks" and len(record["ranks"]) > 1]
    slow_reports = [record for record in reports if record["slowest_over_median"] > SLOW_RANK_RATIO]
    if len(slow_reports) > len(reports) / 2:
        rank = statistics.mode(record["slowest_rank"] for record in slow_reports)
        worst = statistics.median(record["slowest_over_median"] for record in slow_reports)
        temperatures = [record["ranks"][rank].get("temperature_celsius") for record in slow_reports]
        degrees = "" if temperatures[-1] is None else f", at {temperatures[-1]:.0f} degrees Celsius"
        yield Finding(
            f"Rank {rank} is slow, and the other ranks wait for it.",
            f"it takes {worst:.2f} times the median in {len(slow_reports)} of {len(reports)} reports{degrees}",
            "replace its node; if the slow rank changes, check for other processes on the machines",
            1.0 - 1.0 / worst,
        )


def _learning(steps: Sequence[Record], records: Sequence[Record]) -> Iterator[Finding]:
    skipped = [step["step"] for step in steps if step.get("skipped")]
    if skipped:
        yield Finding(
            "Steps were skipped because their loss or gradient was not finite.",
            f"{len(skipped)} of {len(steps)}, the first at step {skipped[0]}",
            "lower optimizer.learning_rate, lengthen schedule.warmup_steps, or use bf16 instead of fp16",
            len(skipped) / len(steps),
        )
    rollbacks = [record for record in records if record["record"] == "rollback"]
    if rollbacks:
        yield Finding(
            "The run rolled back after bad losses.",
            f"{len(rollbacks)} rollbacks, the first from step {rollbacks[0]['step']} to {rollbacks[0]['to_step']}",
            "lower optimizer.learning_rate, and check the data that was skipped",
        )
    validations = [record for record in records if record["record"] == "validation" and record["loss"] is not None]
    if validations:
        last = validations[-1]
        unigram = last.get("unigram_loss")
        if len(validations) > 1 and unigram is not None and last["loss"] > unigram:
            yield Finding(
                "The model predicts worse than the token frequencies alone.",
                f"validation loss {last['loss']:.3f} at step {last['step']}, unigram loss {unigram:.3f}",
                "use `python -m training find-learning-rate` to find a learning rate",
            )
        best = min(validations, key=lambda record: float(record["loss"]))
        losses = [step["loss"] for step in steps if step["loss"] is not None]
        if len(validations) > 2 and last["loss"] > best["loss"] + 0.02 and losses and losses[-1] < last["loss"]:
            yield Finding(
                "The model overfits the train split.",
                f"validation loss was {best['loss']:.3f} at step {best['step']} and is {last['loss']:.3f} now",
                "use more data, model.dropout, or early_stopping.patience_validations",
            )
    norms = [step["gradient_norm"] for step in steps if step.get("gradient_norm") is not None]
    if norms and statistics.median(norms) > CLIPPED_NORM_FACTOR and math.isfinite(statistics.median(norms)):
        yield Finding(
            "Gradients are large; nearly every step is clipped.",
            f"the median norm is {statistics.median(norms):.1f}",
            "lower optimizer.learning_rate, or lengthen schedule.warmup_steps",
        )


def run_diagnose(options: argparse.Namespace, output: TextIO = sys.stdout) -> int:
    """Run ``python -m training diagnose``.

    Raises:
        ConfigurationError: The run's metrics cannot be read.
    """
    records = read_records(options.run)
    steps = _warm_steps(records)
    if not steps:
        output.write(f"{options.run}: fewer than {WARM_STEPS + 1} steps since the last start; run it again later\n")
        return 0
    rate = statistics.median(step["tokens_per_second"] for step in steps)
    shares = {
        name: _share(steps, f"{name}_seconds")
        for name in ("data", "forward", "backward", "communication", "optimizer", "checkpoint")
    }
    shares["between steps"] = max(0.0, 1.0 - sum(shares.values()))
    output.write(f"{len(steps)} steps, median {rate:.0f} tokens per second. ")
    output.write("Time: " + ", ".join(f"{name} {share:.1%}" for name, share in shares.items()) + ".\n")
    findings = diagnose(records)
    for finding in findings:
        output.write(f"\n{finding.summary}\n  evidence: {finding.evidence}\n  change:   {finding.change}\n")
    if not findings:
        output.write("\nNo bottleneck found: the time is spent on computing the model.\n")
    return 0
