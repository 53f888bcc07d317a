"""How a process ended: a synced file for the supervisor and an exit code for everyone else.

The file is what counts: torchrun turns every exit code of a worker into 1.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

Ending = Literal["finished", "stopped", "bad_configuration", "superseded", "failed"]

EXIT_CODES: dict[Ending, int] = {
    "finished": 0,
    "stopped": 75,
    "bad_configuration": 78,
    "superseded": 76,
    "failed": 1,
}
"""75 and 78 as EX_TEMPFAIL and EX_CONFIG of sysexits.h."""


@dataclass(frozen=True)
class Outcome:
    """The end of one rank.

    Attributes:
        generation: of the gang.
        rank: of this process.
        outcome: how it ended.
        step: optimizer steps done; None if it did not get as far as knowing.
        checkpoint_step: step of the newest checkpoint that this rank knows to be committed, if any.
        message: one line for people; several problems are several lines.
        traceback: of an unexpected exception.
    """

    generation: int
    rank: int
    outcome: Ending
    step: int | None = None
    checkpoint_step: int | None = None
    message: str = ""
    traceback: str | None = None

    def write(self, run_directory: Path) -> None:
        """Write `outcomes/rank-<%05d>.json`, synced, whole or not at all."""
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
