"""Reports how a process ended: an exit code, and an outcome file for the supervisor.

The supervisor reads the file, because an exit code contains neither the step nor the reason.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

Ending = Literal["finished", "stopped", "bad_configuration", "superseded", "not_reformed", "failed"]

EXIT_CODES: dict[Ending, int] = {
    "finished": 0,
    "stopped": 75,
    "bad_configuration": 78,
    "superseded": 76,
    "not_reformed": 74,
    "failed": 1,
}
"""Exit codes by outcome. 74, 75 and 78 are EX_IOERR, EX_TEMPFAIL and EX_CONFIG from sysexits.h."""


@dataclass(frozen=True)
class Outcome:
    """One rank's outcome.

    Attributes:
        generation: the gang's generation number.
        rank: this process's rank.
        outcome: how the process ended.
        step: optimizer steps completed; None if the process ended before the step was known.
        checkpoint_step: step of the newest checkpoint known to be committed; None if there is none.
        message: reason for the outcome, one line per problem.
        traceback: traceback of an unexpected exception.
    """

    generation: int
    rank: int
    outcome: Ending
    step: int | None = None
    checkpoint_step: int | None = None
    message: str = ""
    traceback: str | None = None

    def write(self, run_directory: Path) -> None:
        """Write `outcomes/rank-<%05d>.json` atomically, and sync it to disk."""
        directory = run_directory / "outcomes"
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"rank-{self.rank:05d}.json"
        temporary = path.with_suffix(".json.unfinished")
        with temporary.open("w", encoding="utf-8") as file:
            json.dump({"schema_version": 1, **asdict(self)}, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
