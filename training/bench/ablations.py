"""Ablations: measure a config's throughput, memory and loss, first unchanged and then with one setting changed per run.

``python -m training bench`` starts each run through the real command line, with the same number of steps.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import torch

from training.bench.synthetic import write_dataset
from training.config import TrainingConfig, read_config
from training.errors import ConfigurationError, TrainingError
from training.observe.metrics import read_records

WARM_UP_DIVISOR = 3
"""The first third of the steps is excluded, because kernels compile, caches fill and GPU clocks ramp up."""
MAX_SEQUENCES = 1 << 16


@dataclass(frozen=True)
class Figures:
    """Measurements from one run.

    Attributes:
        tokens_per_second: median over the counted steps.
        mfu: median model FLOPs utilization; None if the hardware's peak performance is unknown.
        gpu_peak_bytes: peak memory allocated by torch; None without a GPU.
        host_peak_bytes: peak resident memory of the process.
        last_loss: loss at the last step, in nats per token.
        first_step_seconds: duration of the first step, which includes compilation.
        micro_batch_size: configured or automatically chosen micro-batch size.
        attention: attention kernel that was used.
        checkpoint_blocked_seconds: median time that a checkpoint blocked training; None if no checkpoint was due.
        phase_shares: each phase's share of the step time.
    """

    tokens_per_second: float
    mfu: float | None
    gpu_peak_bytes: int | None
    host_peak_bytes: int
    last_loss: float | None
    first_step_seconds: float
    micro_batch_size: int
    attention: str
    checkpoint_blocked_seconds: float | None
    phase_shares: dict[str, float]


@dataclass(frozen=True)
class Bench:
    """Settings shared by all runs in a benchmark.

    Attributes:
        dataset: dataset directory.
        folder: parent folder of the run directories.
        processes: processes per run, on this machine.
        steps: steps per run.
    """

    dataset: Path
    folder: Path
    processes: int
    steps: int

    def measure(self, name: str, config: Mapping[str, Any]) -> Figures:
        """Train with a config, and compute the measurements from the run's metrics.

        Raises:
            TrainingError: The run failed; the message comes from its outcome file.
        """
        directory = self.folder / name.replace(" ", "-").replace("/", "-")
        directory.mkdir(parents=True)
        (directory / "config.json").write_text(json.dumps({**config, "steps": self.steps}), encoding="utf-8")
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(self.processes)]
        command = [
            *(sys.executable, *launcher, "-m", "training", "train"),
            *("--config", str(directory / "config.json"), "--dataset", str(self.dataset)),
            *("--checkpoints", str(directory / "checkpoints"), "--run-directory", str(directory / "run")),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise TrainingError(f"{name}: {_outcome_message(directory / 'run') or done.stderr[-2000:]}")
        # Keeping the final checkpoint of every run would fill the disk.
        shutil.rmtree(directory / "checkpoints")
        return _figures(read_records(directory / "run"))


def _outcome_message(run_directory: Path) -> str:
    outcomes = sorted((run_directory / "outcomes").glob("rank-*.json"))
    return "\n".join(json.loads(path.read_text(encoding="utf-8"))["message"] for path in outcomes[:1])


def _figures(records: Sequence[Mapping[str, Any]]) -> Figures:
    start = next(record for record in records if record["record"] == "start")
    steps = [record for record in records if record["record"] == "step"]
    counted = steps[len(steps) // WARM_UP_DIVISOR :]
    utilizations = [step["mfu"] for step in counted if step["mfu"] is not None]
    saves = [
        record["blocked_seconds"]
        for record in records
        if record["record"] == "checkpoint" and record["reason"] == "interval"
    ]
    total_seconds = sum(step["step_seconds"] for step in counted)
    phases = ("data", "forward", "backward", "communication", "optimizer", "checkpoint")
    return Figures(
        tokens_per_second=statistics.median(step["tokens_per_second"] for step in counted),
        mfu=statistics.median(utilizations) if utilizations else None,
        gpu_peak_bytes=steps[-1].get("gpu_peak_bytes"),
        host_peak_bytes=steps[-1]["host_peak_bytes"],
        last_loss=steps[-1]["loss"],
        first_step_seconds=steps[0]["step_seconds"],
        micro_batch_size=start["micro_batch_size"],
        attention=start["attention"],
        checkpoint_blocked_seconds=statistics.median(saves) if saves else None,
        phase_shares={phase: sum(step[f"{phase}_seconds"] for step in counted) / total_seconds for phase in phases},
    )


def ablations(config: TrainingConfig, processes: int, on_gpu: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the complete config of each ablation that applies to this machine."""
    document = config.model_dump(mode="json", exclude_defaults=True)
    yield "compile off" if config.compile else "compile on", {**document, "compile": not config.compile}
    for precision in ("fp32", "tf32", "bf16", "fp16") if on_gpu else ("fp32", "bf16"):
        if precision != config.precision:
            yield f"precision {precision}", {**document, "precision": precision}
    for kernel in ("flash", "memory_efficient", "cudnn", "math") if on_gpu else ("flash", "math"):
        if kernel != config.execution.attention:
            yield f"attention {kernel}", _with(document, "execution", "attention", kernel)
    recomputes = config.execution.activation_checkpointing
    switch = "off" if recomputes else "on"
    yield f"activation_checkpointing {switch}", _with(document, "execution", "activation_checkpointing", not recomputes)
    if processes > 1:
        for name, value in (("static_graph", True), ("gradient_compression", "bf16"), ("bucket_mib", 100.0)):
            yield f"{name} {value}", _with(document, "parallel", name, value)


def _with(document: Mapping[str, Any], section: str, name: str, value: Any) -> dict[str, Any]:
    return {**document, section: {**document.get(section, {}), name: value}}


def run_bench(options: argparse.Namespace, output: TextIO = sys.stdout) -> int:
    """Run ``python -m training bench``. Failed ablations are reported with their errors.

    Raises:
        ConfigurationError: The config cannot be read, or uses a user-supplied model, dataset or script.
        TrainingError: The run with the unchanged config failed.
    """
    config = TrainingConfig() if options.config is None else read_config(options.config)
    if config.model.function is not None or config.data.function is not None or config.entrypoint is not None:
        raise ConfigurationError(
            [f"{options.config}: bench uses synthetic tokens; user-supplied code may not accept them"]
        )
    never = {"interval_steps": 1_000_000_000}
    document = config.model_dump(mode="json", exclude_defaults=True)
    document |= {"checkpoint": never, "validation": {**never, "batches": 1}}
    quiet = TrainingConfig.model_validate(document)
    sequences = min(options.steps * config.global_batch_size, MAX_SEQUENCES)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        tokens = sequences * config.model.shape.sequence_length + 1
        dataset = write_dataset(folder / "dataset", tokens, options.vocabulary_size)
        bench = Bench(dataset, folder, options.processes, options.steps)
        results: dict[str, Any] = {"config": document, "processes": options.processes, "torch": str(torch.__version__)}
        results["baseline"] = asdict(bench.measure("baseline", document))
        _print("baseline", results["baseline"])
        for name, changed in ablations(quiet, options.processes, torch.cuda.is_available()):
            if options.only is not None and options.only not in name:
                continue
            try:
                results[name] = asdict(bench.measure(name, changed))
            except TrainingError as error:
                results[name] = {"error": str(error)}
            _print(name, results[name])
    output.write(json.dumps(results, indent=2) + "\n")
    return 0


def _print(name: str, result: Mapping[str, Any]) -> None:
    if "error" in result:
        sys.stderr.write(f"{name:<32} failed: {result['error']}\n")
        return
    memory = result["gpu_peak_bytes"] or result["host_peak_bytes"]
    mfu = "" if result["mfu"] is None else f"  MFU {result['mfu']:.1%}"
    loss = "none" if result["last_loss"] is None else f"{result['last_loss']:.4f}"
    sys.stderr.write(
        f"{name:<32} {result['tokens_per_second']:12.0f} tokens/s{mfu}  {memory / 2**30:6.2f} GiB  loss {loss}\n"
    )
