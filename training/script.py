"""A training script of the user's own, run as the trainer is: by `training.entrypoint` of a config, or by hand.

from training.checkpoint import Checkpointer
from training.script import this_run

run = this_run()
checkpointer = Checkpointer(run.checkpoints, model, optimizer, generation=run.generation)
step = checkpointer.resume().step
while step < steps:
    ...                                    # forward, backward, optimizer.step()
    step += 1
    run.heed(checkpointer, step)           # saves and ends when the node has to go; saves when asked to
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.distributed import Votes
from training.errors import ConfigurationError, TrainingError
from training.interruption import Interruption
from training.metrics import MetricsFile
from training.outcome import EXIT_CODES, Ending
from training.stopping import last_save_seconds

if TYPE_CHECKING:
    from training.assembly import Job
    from training.checkpoint.checkpointer import Checkpointer
    from training.trainer import Progress


class Stopped(SystemExit):  # noqa: N818
    """The script was asked to stop, and its state is saved: ends the process with the code that says so."""

    def __init__(self, reason: str, step: int) -> None:
        super().__init__(EXIT_CODES["stopped"])
        self.message = f"{reason}; stopped after step {step}"


@dataclass
class ThisRun:
    """Where the script's data and checkpoints are, and what is asked of it.

    Attributes:
        dataset: directory of the staged dataset.
        checkpoints: for :class:`training.checkpoint.Checkpointer`.
        run_directory: for the script's own files; its files `stop` and `save` are requests.
        generation: number of this start of the run, for the Checkpointer.
        step: optimizer steps done, as far as the script has said.
    """

    dataset: Path
    checkpoints: str
    run_directory: Path
    generation: int
    interruption: Interruption
    step: int | None = None
    checkpoint_step: int | None = None
    _heeded_at: float | None = None
    _saving_since: float | None = None
    _metrics: MetricsFile | None = None

    def report(self, record: str, **values: Any) -> None:
        """Append a record to the run's metrics, as the trainer's own `step` and `validation` are; on rank 0 only."""
        if self._metrics is None:
            is_main = os.environ.get("RANK", "0") == "0"
            self._metrics = MetricsFile(self.run_directory / "metrics.jsonl" if is_main else None)
        self._metrics.write(record, **values)

    def heed(self, checkpointer: Checkpointer, step: int, extra: dict[str, Any] | None = None) -> None:
        """Do what was asked since the last call. All ranks call it after each step.

        Args:
            checkpointer: of the script.
            step: optimizer steps done.
            extra: as for :meth:`Checkpointer.save`.

        Raises:
            Stopped: the run was asked to stop, and the state is saved; let it pass.
            StoreError: the state cannot be saved.
        """
        self.step = step
        asked = self.interruption
        wants_save = asked.wants_save or checkpointer.is_near_only
        votes = Votes(stop=float(asked.wants_stop), save=float(wants_save), busy=float(checkpointer.is_saving))
        agreed = checkpointer.agree(votes)
        self._note_saving(is_saving=agreed.busy > 0)
        if agreed.stop:
            checkpointer.save(step, extra, wait=True)
            checkpointer.close()
            self.checkpoint_step = step
            raise Stopped(asked.reason() if asked.wants_stop else "another process was asked to stop", step)
        if agreed.save and checkpointer.save(step, extra):
            asked.save_taken()

    def _note_saving(self, is_saving: bool) -> None:
        """Measure what saves take, so that a notice can be used for steps until the last one must begin."""
        now = time.monotonic()
        step_seconds = now - (self._heeded_at or now)
        self._heeded_at = now
        if is_saving:
            self._saving_since = self._saving_since or now - step_seconds
        elif self._saving_since is not None:
            self.interruption.last_save_seconds = last_save_seconds(now - self._saving_since, step_seconds)
            self._saving_since = None


_started: list[ThisRun] = []


def this_run(dataset: str = "dataset", checkpoints: str = "checkpoints", run_directory: str = ".") -> ThisRun:
    """The run that this process belongs to.

    Args:
        dataset: its directory, where the script is started by hand.
        checkpoints: where they go then.
        run_directory: where `stop` and `save` are looked for then.
    """
    if not _started:
        interruption = Interruption()
        interruption.watch(Path(run_directory))
        _started.append(ThisRun(Path(dataset), checkpoints, Path(run_directory), 0, interruption))
    return _started[0]


def run_entrypoint(job: Job, interruption: Interruption, progress: Progress) -> tuple[Ending, str]:
    """Run the config's script to its end; return how it ended and why. What it raises is raised.

    Raises:
        ConfigurationError: there is no such script.
        TrainingError: it ended with another exit code than 0.
    """
    config = job.config
    assert config.entrypoint is not None, "asked before"
    script = _find(config.entrypoint)
    run = ThisRun(job.dataset, job.checkpoints, job.run_directory, job.generation, interruption)
    _started[:] = [run]
    sys.argv = [str(script), *config.arguments]
    sys.path.insert(0, str(script.parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    except Stopped as stop:
        return "stopped", stop.message
    except SystemExit as end:
        if end.code not in (None, 0):
            raise TrainingError(f"{config.entrypoint}: ended with {end.code!r}; see its output") from end
    finally:
        progress.step, progress.checkpoint_step = run.step, run.checkpoint_step
    return "finished", f"{config.entrypoint} is done"


def _find(entrypoint: str) -> Path:
    """The script in the folders that modules are imported from: of the code bundle on a node."""
    for folder in [*sys.path, os.curdir]:
        path = Path(folder, entrypoint)
        if path.is_file():
            return path.resolve()
    raise ConfigurationError(
        [f"entrypoint: {entrypoint}: there is no such file; put it into training.code, or into a folder of PYTHONPATH"]
    )
