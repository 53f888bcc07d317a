"""Retention rules for a run's checkpoints. They use only log entries, and do not access the store.

To add a rule, add a field and a branch in :meth:`Retention.kept`, a field in `training.config.CheckpointConfig`, an
option in `training.checkpoint.tool.arguments`, and a row in docs/checkpoint-keeping.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

from training.checkpoint.manifest import LogEntry
from training.errors import ConfigurationError

SECONDS_PER_HOUR = 3600.0
MIN_KEPT = 2
"""Minimum number of checkpoints to keep. The preceding one is needed if the newest is damaged."""


@dataclass(frozen=True)
class Retention:
    """The retention rules. A checkpoint is kept as long as a rule or a tag keeps it.

    Attributes:
        keep_last: number of newest checkpoints to keep, at least 2.
        keep_best: number of checkpoints with the lowest validation loss to keep.
        keep_every_hours: hours between the checkpoints that are kept permanently; None: off.

    Raises:
        ConfigurationError: A value is out of range.
    """

    keep_last: int = MIN_KEPT
    keep_best: int = 0
    keep_every_hours: float | None = None

    def __post_init__(self) -> None:
        problems = []
        if self.keep_last < MIN_KEPT:
            problems.append(
                f"keep_last: {self.keep_last}: the newest checkpoint may be damaged; set it to {MIN_KEPT} or more"
            )
        if self.keep_best < 0:
            problems.append(f"keep_best: {self.keep_best}: must be a number of checkpoints; set it to 0 or more")
        if self.keep_every_hours is not None and not self.keep_every_hours > 0:
            problems.append(f"keep_every_hours: {self.keep_every_hours}: must be more than 0; correct or remove it")
        if problems:
            raise ConfigurationError(problems)

    @classmethod
    def from_settings(cls, settings: object) -> Retention:
        """Return the rules set in a config section or in parsed options.

        Args:
            settings: object with an attribute for each rule; None means the default.
        """
        given = {field.name: getattr(settings, field.name) for field in fields(cls)}
        return cls(**{name: value for name, value in given.items() if value is not None})

    def kept(self, complete: Sequence[LogEntry], tags: Mapping[int, Iterable[str]]) -> dict[int, list[str]]:
        """Decide which of a run's complete checkpoints to keep.

        When the rules are applied again to the kept checkpoints, with or without newer ones, they never require a
        dropped checkpoint.

        Args:
            complete: log entries of readable checkpoints, newest first.
            tags: tag names, by the tagged entry's sequence number.

        Returns:
            Sequence numbers of the entries to keep, each with the reasons as text.
        """
        reasons: dict[int, list[str]] = {}
        for rank, entry in enumerate(complete[: self.keep_last], start=1):
            reasons.setdefault(entry.sequence, []).append(f"newest {rank} of {self.keep_last}")
        for rank, entry in enumerate(self._best(complete), start=1):
            reasons.setdefault(entry.sequence, []).append(f"best {rank} of {self.keep_best}")
        for entry in self._spaced(complete):
            reasons.setdefault(entry.sequence, []).append(f"every {self.keep_every_hours:g} h")
        for entry in complete:
            for tag in sorted(tags.get(entry.sequence, ())):
                reasons.setdefault(entry.sequence, []).append(f"tag {tag}")
        return reasons

    def _best(self, complete: Sequence[LogEntry]) -> list[LogEntry]:
        """Return the entries with the lowest validation losses, using only the entry closest to each measurement."""
        nearest: dict[tuple[int, float], LogEntry] = {}
        for entry in complete:
            if entry.validation is not None:
                nearest[(entry.validation.step, entry.validation.loss)] = entry
        ranked = sorted(nearest.items(), key=lambda item: (item[0][1], -item[0][0]))
        return [entry for _, entry in ranked[: self.keep_best]]

    def _spaced(self, complete: Sequence[LogEntry]) -> list[LogEntry]:
        """Return entries that are far enough apart, oldest first. If the clock was set back, the spacing restarts."""
        if self.keep_every_hours is None:
            return []
        spaced: list[LogEntry] = []
        for entry in reversed(complete):
            passed = entry.unix_seconds - spaced[-1].unix_seconds if spaced else -1.0
            if not 0 <= passed < self.keep_every_hours * SECONDS_PER_HOUR:
                spaced.append(entry)
        return spaced
