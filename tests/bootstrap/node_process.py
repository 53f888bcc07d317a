"""Runs a supervisor as a process, with the stand-in trainer instead of the launcher."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from bootstrap.layout import Layout
from bootstrap.supervise.supervisor import supervise
from bootstrap.supervise.trainers.launch import Launch, launcher_command, trainer_arguments
from bootstrap.system import System


class TestSystem(System):
    """The real machine, except that a shutdown writes a file, and a file sets the clock offset."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root = root

    def unix_seconds(self) -> float:
        offset = self._root / "clock-offset-seconds"
        return super().unix_seconds() + (float(offset.read_text()) if offset.exists() else 0.0)

    def shut_down(self) -> None:
        (self._root / "shut-down").write_text("now")


def direct(launch: Launch) -> list[str]:
    rank, world = launch.global_ranks[0], launch.world_size
    variables = [f"RANK={rank}", f"WORLD_SIZE={world}"]
    return ["env", *variables, launch.interpreter, "-m", "training", *trainer_arguments(launch)]


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    command = launcher_command if sys.argv[2:] == ["launcher"] else direct
    root = Path(sys.argv[1])
    sys.exit(0 if supervise(TestSystem(root), Layout(root), command) else 1)
