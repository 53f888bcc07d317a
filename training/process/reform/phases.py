"""Measures the phases of a change to the gang."""

from __future__ import annotations

import logging
import time

logger = logging.getLogger(__name__)

NAMES = ("disband", "meet", "agree", "state", "prime", "writer", "last")
"""The phases, in order: leave the old gang; meet at the store and connect; agree on a step; take the state; prime DDP;
open the checkpoint writer; wait for the last rank."""


class Phases:
    """Measures the phases of a change, and logs each beginning. Seconds by name.

    Args:
        generation: the generation that is being formed.

    Attributes:
        current: name of the phase that is under way.
    """

    def __init__(self, generation: int) -> None:
        self.seconds: dict[str, float] = {}
        self._generation = generation
        self._since = self._began = time.monotonic()
        self._begin(NAMES[0])

    def end(self, name: str) -> None:
        """Assign the time since the last phase to ``name``."""
        now = time.monotonic()
        self.seconds[f"{name}_seconds"] = now - self._since
        self._since = now
        self._begin(NAMES[NAMES.index(name) + 1])

    def _begin(self, name: str) -> None:
        self.current = name
        logger.info("generation %d: phase %s", self._generation, name)

    @property
    def total_seconds(self) -> float:
        """Time since the beginning."""
        return time.monotonic() - self._began
