"""What limits a run, and which setting to change: ``python -m training diagnose RUN``, from its metrics alone."""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from training.errors import ConfigurationError

Record = Mapping[str, Any]

WARM_STEPS = 5
"""First steps of each start, which compile and fill caches."""
DATA_SHARE, COMMUNICATION_SHARE, CHECKPOINT_SHARE, OPTIMIZER_SHARE = 0.05, 0.2, 0.03, 0.25
UNEVEN_RATIO = 1.5
LOW_MFU = 0.3
FREE_MEMORY_SHARE = 0.4
SLOW_RANK_RATIO = 1.2
CLIPPED_NORM_FACTOR = 10.0


@dataclass(frozen=True)
class Finding:
    """One thing that limits the run.

    Attributes:
        what: in words.
        evidence: the numbers that say so.
        change: the setting to change, and to what.
        lost_share: of the run's time that it costs, by which findings are sorted; 0 if it is not about time.
    """

    what: str
    evidence: str
    change: str
    lost_share: float = 0.0


def read_records(path: Path) -> list[Record]:
    """Read the metrics of a run: its directory, or the file itself. A last line that is not whole is left out.

    Raises:
        ConfigurationError: there are none.
    """
    file = path / "metrics.jsonl" if path.is_dir() else path
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigurationError(
            [f"{file}: cannot be read ({error.strerror}); give a run directory, or its metrics.jsonl"]
        ) from error
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(json.loads(line))
        except ValueError as error:
            if number < len(lines):
                raise ConfigurationError([f"{file}: line {number} is not JSON ({error}); remove it"]) from error
    return records


def diagnose(records: Sequence[Record]) -> list[Finding]:
    """Find what limits the run; what costs most first."""
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
    whole = sum(step["step_seconds"] for step in steps)
    return sum(step.get(name) or 0.0 for step in steps) / whole if whole else 0.0


def _time(steps: Sequence[Record], start: Record) -> Iterator[Finding]:
    data, communication = _share(steps, "data_seconds"), _share(steps, "communication_seconds")
    checkpoint, optimizer = _share(steps, "checkpoint_seconds"), _share(steps, "optimizer_seconds")
    if data > DATA_SHARE:
        yield Finding(
            "The run waits for data.",
            f"{data:.0%} of {len(steps)} steps' time is data_seconds",
            "put the dataset on a local disk (or node memory), or raise data.workers for a dataset of your own",
            data,
        )
    if communication > COMMUNICATION_SHARE:
        yield Finding(
            "The ranks wait for each other's gradients.",
            f"{communication:.0%} of the time is communication_seconds, on {start.get('world_size', '?')} processes",
            "raise global_batch_sequences (more work for each exchange), set parallel.gradient_compression: bf16, or "
            "use nodes with EFA close together (capacity.placement: cluster)",
            communication,
        )
    if checkpoint > CHECKPOINT_SHARE:
        yield Finding(
            "Saving holds up the steps.",
            f"{checkpoint:.1%} of the time is checkpoint_seconds",
            "raise checkpoint.interval_steps, or say auto",
            checkpoint,
        )
    if optimizer > OPTIMIZER_SHARE:
        yield Finding(
            "Much of a step is the optimizer's, whose work does not depend on the batch.",
            f"{optimizer:.0%} of the time is optimizer_seconds",
            "raise global_batch_sequences, and the learning rate with it",
            optimizer,
        )
    seconds = sorted(step["step_seconds"] for step in steps)
    median, slow = seconds[len(seconds) // 2], seconds[int(len(seconds) * 0.95)]
    if len(seconds) >= 40 and slow > UNEVEN_RATIO * median:
        yield Finding(
            "Some steps take far longer than others.",
            f"the median is {median:.3f} s, one in twenty takes {slow:.3f} s or more",
            "look for other work on the machine, and set execution.garbage_collection_interval_steps if it is null",
            1.0 - median * len(seconds) / sum(seconds),
        )


def _hardware(steps: Sequence[Record], records: Sequence[Record], start: Record) -> Iterator[Finding]:
    utilisations = [step["mfu"] for step in steps if step.get("mfu") is not None]
    mfu = statistics.median(utilisations) if utilisations else None
    if mfu is not None and mfu < LOW_MFU:
        last = steps[-1]
        total = start.get("gpu_total_bytes")
        free = None if not total else 1.0 - last.get("gpu_peak_bytes", 0) / total
        changes = [] if start.get("compile") else ["set compile: true"]
        if start.get("precision") in ("fp32", "tf32"):
            changes.append("set precision: bf16 (or auto)")
        if free is not None and free > FREE_MEMORY_SHARE:
            changes.append("set micro_batch_sequences: auto, since memory is free")
        if start.get("attention") == "math":
            changes.append("set execution.attention: flash")
        memory = "" if free is None else f"; {free:.0%} of the GPU's memory is never used"
        yield Finding(
            "The GPU does little of what it can.",
            f"median MFU {mfu:.1%} in {start.get('precision')}{memory}",
            "; ".join(changes) or "trace some steps (observation.profile.steps: 3) and look for gaps between kernels",
            1.0 - mfu / LOW_MFU,
        )
    slow = [record for record in records if record["record"] == "ranks" and len(record["ranks"]) > 1]
    held_up = [record for record in slow if record["slowest_over_median"] > SLOW_RANK_RATIO]
    if len(held_up) > len(slow) / 2:
        rank = statistics.mode(record["slowest_rank"] for record in held_up)
        worst = statistics.median(record["slowest_over_median"] for record in held_up)
        heat = [record["ranks"][rank].get("temperature_celsius") for record in held_up]
        degrees = "" if heat[-1] is None else f", at {heat[-1]:.0f} degrees Celsius"
        yield Finding(
            f"Rank {rank} is slower than the others, and all wait for it.",
            f"it takes {worst:.2f} times the median in {len(held_up)} of {len(slow)} reports{degrees}",
            "replace its node; if it is another rank each time, look for other work on the machines",
            1.0 - 1.0 / worst,
        )


def _learning(steps: Sequence[Record], records: Sequence[Record]) -> Iterator[Finding]:
    skipped = [step["step"] for step in steps if step.get("skipped")]
    if skipped:
        yield Finding(
            "Steps were skipped, since their loss or gradient was not finite.",
            f"{len(skipped)} of {len(steps)}, the first at step {skipped[0]}",
            "lower optimizer.learning_rate, lengthen schedule.warmup_steps, or use bf16 instead of fp16",
            len(skipped) / len(steps),
        )
    back = [record for record in records if record["record"] == "roll_back"]
    if back:
        yield Finding(
            "The run went back from losses that had gone wrong.",
            f"{len(back)} times, first from step {back[0]['step']} to {back[0]['to_step']}",
            "lower optimizer.learning_rate, and look at the data that was left out",
        )
    validations = [record for record in records if record["record"] == "validation" and record["loss"] is not None]
    if validations:
        last = validations[-1]
        unigram = last.get("unigram_loss")
        if len(validations) > 1 and unigram is not None and last["loss"] > unigram:
            yield Finding(
                "The model knows less than the frequencies of the tokens.",
                f"validation loss {last['loss']:.3f} at step {last['step']}, frequencies alone give {unigram:.3f}",
                "look for a good rate with `python -m training find-learning-rate`",
            )
        best = min(validations, key=lambda record: float(record["loss"]))
        losses = [step["loss"] for step in steps if step["loss"] is not None]
        if len(validations) > 2 and last["loss"] > best["loss"] + 0.02 and losses and losses[-1] < last["loss"]:
            yield Finding(
                "The model learns the train split by heart.",
                f"validation loss was {best['loss']:.3f} at step {best['step']} and is {last['loss']:.3f} now",
                "use more data, model.dropout, or early_stopping.patience_validations",
            )
    norms = [step["gradient_norm"] for step in steps if step.get("gradient_norm") is not None]
    if norms and statistics.median(norms) > CLIPPED_NORM_FACTOR and math.isfinite(statistics.median(norms)):
        yield Finding(
            "Gradients are large, so that nearly every step is clipped.",
            f"their median norm is {statistics.median(norms):.1f}",
            "lower optimizer.learning_rate, or lengthen schedule.warmup_steps",
        )


def run_diagnose(options: argparse.Namespace, output: TextIO = sys.stdout) -> int:
    """Run ``python -m training diagnose``.

    Raises:
        ConfigurationError: the run has no metrics that can be read.
    """
    records = read_records(options.run)
    steps = _warm_steps(records)
    if not steps:
        output.write(f"{options.run}: fewer than {WARM_STEPS + 1} steps since a start; train on, then ask again\n")
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
        output.write(f"\n{finding.what}\n  evidence: {finding.evidence}\n  change:   {finding.change}\n")
    if not findings:
        output.write("\nNothing stands out: the time goes into the model's own arithmetic.\n")
    return 0
