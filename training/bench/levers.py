"""Each lever on against off: speed, memory, and the loss after the same steps, by runs of the real command line.

``python -m training bench`` measures a config as it is, and then with one setting changed at a time.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import torch

from training.bench.synthetic import write_dataset
from training.config import TrainingConfig, read_config
from training.errors import ConfigurationError, TrainingError

WARM_SHARE = 3
"""The first third of the steps is not counted: it compiles, fills caches, and raises clocks."""
MOST_SEQUENCES = 1 << 16


@dataclass(frozen=True)
class Figures:
    """What one run showed.

    Attributes:
        tokens_per_second: median over the steps that count.
        mfu: likewise; None where the hardware's peak is not known.
        gpu_peak_bytes: most that torch allocated; None without a GPU.
        host_peak_bytes: most that the process had resident.
        last_loss: of the last step, nats per token.
        first_step_seconds: of the first step, which compiles.
        micro_batch_sequences: given, or found.
        attention: kernel that ran.
        checkpoint_blocked_seconds: that training waited for a checkpoint, the median; None if none was due.
        phase_shares: of the steps' time.
    """

    tokens_per_second: float
    mfu: float | None
    gpu_peak_bytes: int | None
    host_peak_bytes: int
    last_loss: float | None
    first_step_seconds: float
    micro_batch_sequences: int
    attention: str
    checkpoint_blocked_seconds: float | None
    phase_shares: dict[str, float]


@dataclass(frozen=True)
class Bench:
    """What every run of a bench shares.

    Attributes:
        dataset: directory of its tokens.
        folder: for run directories.
        processes: on this machine, for each run.
        steps: of each run.
    """

    dataset: Path
    folder: Path
    processes: int
    steps: int

    def measure(self, name: str, config: Mapping[str, Any]) -> Figures:
        """Train with a config, and read what the run says of itself.

        Raises:
            TrainingError: it failed, with the trainer's own words.
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
            raise TrainingError(f"{name}: {_words_of(directory / 'run') or done.stderr[-2000:]}")
        # The save at the end of each run would fill the disk; it is not what is measured.
        shutil.rmtree(directory / "checkpoints")
        lines = (directory / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return _figures([json.loads(line) for line in lines])


def _words_of(run_directory: Path) -> str:
    outcomes = sorted((run_directory / "outcomes").glob("rank-*.json"))
    return "\n".join(json.loads(path.read_text(encoding="utf-8"))["message"] for path in outcomes[:1])


def _figures(records: list[dict[str, Any]]) -> Figures:
    start = next(record for record in records if record["record"] == "start")
    steps = [record for record in records if record["record"] == "step"]
    counted = steps[len(steps) // WARM_SHARE :]
    utilisations = [step["mfu"] for step in counted if step["mfu"] is not None]
    saves = [
        record["blocked_seconds"]
        for record in records
        if record["record"] == "checkpoint" and record["reason"] == "interval"
    ]
    whole = sum(step["step_seconds"] for step in counted)
    phases = ("data", "forward", "backward", "communication", "optimizer", "checkpoint")
    return Figures(
        tokens_per_second=statistics.median(step["tokens_per_second"] for step in counted),
        mfu=statistics.median(utilisations) if utilisations else None,
        gpu_peak_bytes=steps[-1].get("gpu_peak_bytes"),
        host_peak_bytes=steps[-1]["host_peak_bytes"],
        last_loss=steps[-1]["loss"],
        first_step_seconds=steps[0]["step_seconds"],
        micro_batch_sequences=start["micro_batch_sequences"],
        attention=start["attention"],
        checkpoint_blocked_seconds=statistics.median(saves) if saves else None,
        phase_shares={phase: sum(step[f"{phase}_seconds"] for step in counted) / whole for phase in phases},
    )


def levers(config: TrainingConfig, processes: int, on_gpu: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name of each change that can be made here, and the whole config with it made."""
    document = config.model_dump(mode="json", exclude_defaults=True)
    yield "compile off" if config.compile else "compile on", {**document, "compile": not config.compile}
    for precision in ("fp32", "tf32", "bf16", "fp16") if on_gpu else ("fp32", "bf16"):
        if precision != config.precision:
            yield f"precision {precision}", {**document, "precision": precision}
    for kernel in ("flash", "memory_efficient", "cudnn", "math") if on_gpu else ("flash", "math"):
        if kernel != config.execution.attention:
            yield f"attention {kernel}", _with(document, "execution", "attention", kernel)
    recomputes = config.execution.activation_checkpointing
    word = "off" if recomputes else "on"
    yield f"activation_checkpointing {word}", _with(document, "execution", "activation_checkpointing", not recomputes)
    if processes > 1:
        for name, value in (("static_graph", True), ("gradient_compression", "bf16"), ("bucket_mib", 100.0)):
            yield f"{name} {value}", _with(document, "parallel", name, value)


def _with(document: Mapping[str, Any], section: str, name: str, value: Any) -> dict[str, Any]:
    return {**document, section: {**document.get(section, {}), name: value}}


def run_bench(options: argparse.Namespace, output: TextIO = sys.stdout) -> int:
    """Run ``python -m training bench``; what one change does not allow is said in its place.

    Raises:
        ConfigurationError: the config is of a model or dataset of one's own, or cannot be read.
        TrainingError: it does not train as it is.
    """
    config = TrainingConfig() if options.config is None else read_config(options.config)
    if config.model.function is not None or config.data.function is not None or config.entrypoint is not None:
        raise ConfigurationError([f"{options.config}: bench makes up tokens, which your own code may not take"])
    never = {"interval_steps": 1_000_000_000}
    document = config.model_dump(mode="json", exclude_defaults=True)
    document |= {"checkpoint": never, "validation": {**never, "batches": 1}}
    quiet = TrainingConfig.model_validate(document)
    sequences = min(options.steps * config.global_batch_sequences, MOST_SEQUENCES)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dataset = write_dataset(folder / "dataset", sequences * config.model.shape.context + 1, options.vocabulary_size)
        bench = Bench(dataset, folder, options.processes, options.steps)
        results: dict[str, Any] = {"config": document, "processes": options.processes, "torch": str(torch.__version__)}
        results["as it is"] = asdict(bench.measure("as it is", document))
        _say("as it is", results["as it is"])
        for change, changed in levers(quiet, options.processes, torch.cuda.is_available()):
            if options.only is not None and options.only not in change:
                continue
            try:
                results[change] = asdict(bench.measure(change, changed))
            except TrainingError as error:
                results[change] = {"refused": str(error)}
            _say(change, results[change])
    output.write(json.dumps(results, indent=2) + "\n")
    return 0


def _say(name: str, result: Mapping[str, Any]) -> None:
    if "refused" in result:
        sys.stderr.write(f"{name:<32} refused: {result['refused']}\n")
        return
    memory = result["gpu_peak_bytes"] or result["host_peak_bytes"]
    mfu = "" if result["mfu"] is None else f"  MFU {result['mfu']:.1%}"
    loss = "none" if result["last_loss"] is None else f"{result['last_loss']:.4f}"
    sys.stderr.write(
        f"{name:<32} {result['tokens_per_second']:12.0f} tokens/s{mfu}  {memory / 2**30:6.2f} GiB  loss {loss}\n"
    )
