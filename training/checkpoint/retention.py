"""Which checkpoints of a run are worth keeping: a decision over log entries that touches no store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from training.checkpoint.manifest import LogEntry
from training.errors import ConfigurationError

SECONDS_PER_HOUR = 3600.0
LEAST_KEPT = 2
"""A newest checkpoint that turns out to be damaged needs a predecessor."""


@dataclass(frozen=True)
class Retention:
    """What is kept. A checkpoint stays as long as one of the rules, or a tag, wants it.

    Attributes:
        keep_last: newest checkpoints, at least 2.
        keep_best: those with the lowest validation loss.
        keep_every_hours: of all others, one for each such stretch of time; None: no rule.

    Raises:
        ConfigurationError: a number is out of its range.
    """

    keep_last: int = LEAST_KEPT
    keep_best: int = 0
    keep_every_hours: float | None = None

    def __post_init__(self) -> None:
        problems = []
        if self.keep_last < LEAST_KEPT:
            problems.append(
                f"keep_last: {self.keep_last}: a damaged newest needs a predecessor; give {LEAST_KEPT} or more"
            )
        if self.keep_best < 0:
            problems.append(f"keep_best: {self.keep_best}: is a count of checkpoints; give 0 or more")
        if self.keep_every_hours is not None and not self.keep_every_hours > 0:
            problems.append(f"keep_every_hours: {self.keep_every_hours}: is a time; give more than 0, or none")
        if problems:
            raise ConfigurationError(problems)

    def kept(self, whole: Sequence[LogEntry], tags: Mapping[int, Iterable[str]]) -> dict[int, list[str]]:
        """Decide over a run's whole checkpoints.

        Deciding again over what is kept, or over it and newer ones, never calls for one that was let go.

        Args:
            whole: log entries of checkpoints that can be read, newest first.
            tags: sequences of tagged entries, and their tags.

        Returns:
            Sequences of the entries to keep, each with the reasons in words.
        """
        reasons: dict[int, list[str]] = {}
        for rank, entry in enumerate(whole[: self.keep_last], start=1):
            reasons.setdefault(entry.sequence, []).append(f"newest {rank} of {self.keep_last}")
        for rank, entry in enumerate(self._best(whole), start=1):
            reasons.setdefault(entry.sequence, []).append(f"best {rank} of {self.keep_best}")
        for entry in self._spaced(whole):
            reasons.setdefault(entry.sequence, []).append(f"every {self.keep_every_hours:g} h")
        for entry in whole:
            for tag in sorted(tags.get(entry.sequence, ())):
                reasons.setdefault(entry.sequence, []).append(f"tag {tag}")
        return reasons

    def _best(self, whole: Sequence[LogEntry]) -> list[LogEntry]:
        """The lowest validation losses; of those that share a measurement, only the one nearest to it."""
        nearest: dict[tuple[int, float], LogEntry] = {}
        for entry in whole:
            if entry.validation is not None:
                nearest[(entry.validation.step, entry.validation.loss)] = entry
        ranked = sorted(nearest.items(), key=lambda item: (item[0][1], -item[0][0]))
        return [entry for _, entry in ranked[: self.keep_best]]

    def _spaced(self, whole: Sequence[LogEntry]) -> list[LogEntry]:
        """From the oldest on, each that is far enough from the one before; a clock that jumped back starts anew."""
        if self.keep_every_hours is None:
            return []
        spaced: list[LogEntry] = []
        for entry in reversed(whole):
            passed = entry.unix_seconds - spaced[-1].unix_seconds if spaced else -1.0
            if not 0 <= passed < self.keep_every_hours * SECONDS_PER_HOUR:
                spaced.append(entry)
        return spaced
