"""Metric records and log lines of the training loop."""

from __future__ import annotations

import logging
import resource
from collections.abc import Sequence

import torch

from training.loop.run import Run
from training.loop.saves import CheckpointAge
from training.loop.step_result import StepReport
from training.models.flops import peak_flops_per_second

logger = logging.getLogger(__name__)


def report_start(run: Run) -> None:
    """Record and log the start of the run: its model, its hardware, and the step from which it continues."""
    parameters = sum(parameter.numel() for parameter in run.model.parameters())
    run.metrics.write(
        "start",
        step=run.state.step,
        resumed_from_step=run.resumed_from_step,
        world_size=run.gang.world_size,
        parameters=parameters,
        precision=run.precision.format,
        attention=run.attention,
        compile=run.config.compile,
        micro_batch_size=run.micro_batch_size,
        gpu_total_bytes=_gpu_total_bytes(run),
        device=str(run.gang.device),
        steps_total=run.config.steps,
        config_digest=run.config.digest(),
        bytes_per_token=None if run.dataset is None else run.dataset.bytes_per_token,
    )
    if run.is_main:
        origin = "step 0" if run.resumed_from_step is None else f"checkpoint {run.resumed_from_step}"
        logger.info(
            "training %d parameters on %d processes in %s, from %s to step %d",
            parameters,
            run.gang.world_size,
            run.precision.format,
            origin,
            run.config.steps,
        )


def write_records(run: Run, reports: Sequence[StepReport], age: CheckpointAge | None = None) -> None:
    """Write records for the given steps and for the saves committed since the last call.

    Args:
        run: the run.
        reports: results of steps.
        age: age of the newest durable checkpoint; required with reports.
    """
    if not run.is_main:
        return
    terms = run.config.global_batch_size * run.loss_terms_per_sequence
    speed = "tokens_per_second" if run.dataset is not None else "samples_per_second"
    for report in reports:
        if report.step % run.config.log_interval_steps == 0 or report.step == run.config.steps:
            tokens_per_second = terms / report.step_seconds
            mfu = _utilization(run, tokens_per_second)
            run.metrics.write(
                "step",
                step=report.step,
                loss=report.loss,
                learning_rate=report.learning_rate,
                gradient_norm=report.gradient_norm,
                step_seconds=report.step_seconds,
                **{f"{phase}_seconds": seconds for phase, seconds in report.phase_seconds.items()},
                checkpoint_seconds=report.checkpoint_seconds,
                checkpoint_age_seconds=None if age is None else age.seconds,
                checkpoint_age_intervals=None if age is None else age.intervals,
                **_memory(run),
                **{speed: tokens_per_second},
                mfu=mfu,
                skipped=report.skipped,
            )
            logger.info("%s", console_line(report, run.config.steps, speed, tokens_per_second, mfu))
    progress = run.writer.take_progress()
    if progress is not None:
        run.metrics.write(
            "checkpoint_progress",
            step=progress.step,
            store=progress.store,
            seconds=progress.seconds,
            bytes=progress.bytes,
            bytes_total=progress.total_bytes,
            bytes_written=progress.written_bytes,
            bytes_per_second=progress.written_bytes_per_second,
        )
    for found in run.writer.take_set_aside():
        run.metrics.write("part_set_aside", step=found.step, url=found.url, message=found.message)
    for result in run.writer.take_results():
        run.metrics.write(
            "checkpoint",
            step=result.step,
            seconds=result.seconds,
            blocked_seconds=result.blocked_seconds,
            bytes=result.bytes,
            bytes_written=result.written_bytes,
            bytes_per_second=result.bytes_per_second,
            reason=result.reason,
        )
        logger.info("step %d: checkpoint committed in %.2f s (%s)", result.step, result.seconds, result.reason)


def console_line(report: StepReport, steps_total: int, speed: str, per_second: float, mfu: float | None) -> str:
    """Return a step's line for the log, with the figures that nanoGPT and torchtitan print.

    Args:
        report: the step's results.
        steps_total: number of steps in the run.
        speed: `tokens_per_second` or `samples_per_second`.
        per_second: all ranks' tokens or samples per second.
        mfu: model FLOPs utilization, 0 to 1; None: unknown, and omitted.
    """
    parts = [
        f"step {report.step}/{steps_total}: loss {report.loss:.4f}",
        f"norm {report.gradient_norm:.3f}",
        f"lr {report.learning_rate:.3g}",
        f"{report.step_seconds * 1000:,.1f} ms",
        f"{per_second:,.0f} {speed.removesuffix('_per_second')}/s",
    ]
    if mfu is not None:
        parts.append(f"MFU {mfu:.1%}")
    return ", ".join(parts) + (" (skipped: not finite)" if report.skipped else "")


def _gpu_total_bytes(run: Run) -> int | None:
    if run.gang.device.type != "cuda":
        return None
    return int(torch.cuda.get_device_properties(run.gang.device).total_memory)


def _memory(run: Run) -> dict[str, int]:
    """Return this process's peak memory so far, in bytes."""
    peaks = {"host_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    if run.gang.device.type == "cuda":
        peaks["gpu_peak_bytes"] = torch.cuda.max_memory_allocated(run.gang.device)
        peaks["gpu_reserved_bytes"] = torch.cuda.memory_reserved(run.gang.device)
    return peaks


def _utilization(run: Run, tokens_per_second: float) -> float | None:
    """Return the model FLOPs utilization over all processes; None if the hardware's peak performance is unknown."""
    if run.gang.device.type != "cuda" or run.flops_per_token is None:
        return None
    peak = peak_flops_per_second(torch.cuda.get_device_name(run.gang.device), run.precision.format)
    if peak is None:
        return None
    return tokens_per_second * run.flops_per_token / (peak * run.gang.world_size)
