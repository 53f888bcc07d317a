"""User-supplied training scripts, started by `entrypoint` in a config or manually.

from training.checkpoint import Checkpointer
from training.script import this_run

run = this_run()
checkpointer = Checkpointer(run.checkpoints, model, optimizer, generation=run.generation)
step = checkpointer.resume().step
while step < steps:
    ...                                    # forward, backward, optimizer.step()
    step += 1
    run.handle_requests(checkpointer, step)  # saves on request; saves and exits on a stop request
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.errors import ConfigurationError, TrainingError
from training.loop.interruption import Interruption
from training.loop.last_save import last_save_seconds
from training.observe.metrics import MetricsFile
from training.process.distributed import ControlFlags
from training.process.outcome import EXIT_CODES, Ending
from training.process.store import host_store

if TYPE_CHECKING:
    from training.checkpoint.checkpointer import Checkpointer
    from training.loop.job import Job
    from training.loop.trainer import Progress


Extra = dict[str, Any] | Callable[[], dict[str, Any]] | None


class Stopped(SystemExit):  # noqa: N818
    """The script received a stop request and saved its state. Exits the process with the exit code for `stopped`."""

    def __init__(self, reason: str, step: int) -> None:
        super().__init__(EXIT_CODES["stopped"])
        self.message = f"{reason}; stopped after step {step}"


@dataclass
class ThisRun:
    """The script's data and checkpoint paths, and the requests sent to it.

    Attributes:
        dataset: directory of the staged dataset.
        checkpoints: checkpoint store, for :class:`training.checkpoint.Checkpointer`.
        run_directory: directory for the script's files; files named `stop` and `save` in it are requests.
        generation: number of this start of the run, to pass to the Checkpointer.
        interruption: save and stop requests.
        step: optimizer steps completed at the last call to :meth:`handle_requests`.
        checkpoint_step: step saved when the script stopped.
    """

    dataset: Path
    checkpoints: str
    run_directory: Path
    generation: int
    interruption: Interruption
    step: int | None = None
    checkpoint_step: int | None = None
    _last_step_at: float | None = None
    _saving_since: float | None = None
    _metrics: MetricsFile | None = None

    def report(self, record: str, **values: Any) -> None:
        """Append a record, such as `step` or `validation`, to the run's metrics. Only rank 0 writes it."""
        if self._metrics is None:
            is_main = os.environ.get("RANK", "0") == "0"
            self._metrics = MetricsFile(self.run_directory / "metrics.jsonl" if is_main else None)
        self._metrics.write(record, **values)

    def handle_requests(
        self,
        checkpointer: Checkpointer,
        step: int,
        extra: Extra = None,
        rank_extra: Extra = None,
        *,
        wants_save: bool = False,
    ) -> bool:
        """Handle the save and stop requests received since the last call. All ranks must call it after each step.

        Args:
            checkpointer: the script's checkpointer.
            step: optimizer steps completed.
            extra: extra state, or a function that returns it when a save needs it; see :meth:`Checkpointer.save`.
            rank_extra: this rank's extra state, or a function that returns it.
            wants_save: True to also save without a request; True on any rank is enough.

        Returns:
            True if a save has begun.

        Raises:
            Stopped: The run received a stop request, and the state is saved. Do not catch this exception.
            StoreError: The state cannot be saved.
        """
        self.step = step
        interruption = self.interruption
        wants_save = wants_save or interruption.wants_save or checkpointer.is_local_only
        flags = ControlFlags(
            stop=float(interruption.wants_stop), save=float(wants_save), busy=float(checkpointer.is_saving)
        )
        agreed = checkpointer.agree(flags)
        self._note_saving(is_saving=agreed.busy > 0)
        if agreed.stop:
            checkpointer.save(step, _value(extra), rank_extra=_value(rank_extra), wait=True)
            checkpointer.close()
            self.checkpoint_step = step
            raise Stopped(interruption.reason() if interruption.wants_stop else "stop requested on another rank", step)
        if agreed.save and not agreed.busy and checkpointer.save(step, _value(extra), rank_extra=_value(rank_extra)):
            interruption.save_taken()
            return True
        return False

    def _note_saving(self, is_saving: bool) -> None:
        """Measure the duration of saves, so that the run can train after a notice until the last save must begin."""
        now = time.monotonic()
        step_seconds = now - (self._last_step_at or now)
        self._last_step_at = now
        if is_saving:
            self._saving_since = self._saving_since or now - step_seconds
        elif self._saving_since is not None:
            self.interruption.last_save_seconds = last_save_seconds(now - self._saving_since, step_seconds)
            self._saving_since = None


def _value(extra: Extra) -> dict[str, Any] | None:
    return extra() if callable(extra) else extra


_started: list[ThisRun] = []


def this_run(dataset: str = "dataset", checkpoints: str = "checkpoints", run_directory: str = ".") -> ThisRun:
    """Return this process's run. The arguments are used only if the script was started manually.

    Args:
        dataset: dataset directory.
        checkpoints: checkpoint store.
        run_directory: directory for the files `stop` and `save`.
    """
    if not _started:
        interruption = Interruption()
        interruption.watch(Path(run_directory))
        _started.append(ThisRun(Path(dataset), checkpoints, Path(run_directory), 0, interruption))
    return _started[0]


def run_entrypoint(job: Job, interruption: Interruption, progress: Progress) -> tuple[Ending, str]:
    """Run the config's script; return its outcome and a message. Exceptions raised by the script propagate.

    Raises:
        ConfigurationError: The script does not exist.
        TrainingError: The script exited with a non-zero exit code.
    """
    config = job.config
    assert config.entrypoint is not None, "checked by the caller"
    script = _find(config.entrypoint)
    host_store()
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
            raise TrainingError(f"{config.entrypoint}: exited with {end.code!r}; see its output") from end
    finally:
        progress.step, progress.checkpoint_step = run.step, run.checkpoint_step
    return "finished", f"{config.entrypoint} finished"


def _find(entrypoint: str) -> Path:
    """Find the script on the module search path, which includes the code bundle on a node; return its path."""
    for folder in [*sys.path, os.curdir]:
        path = Path(folder, entrypoint)
        if path.is_file():
            return path.resolve()
    raise ConfigurationError(
        [f"entrypoint: {entrypoint}: no such file; put it in training.code or in a folder on PYTHONPATH"]
    )
