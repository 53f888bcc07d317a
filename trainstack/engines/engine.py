"""The interface of an engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol


class View(Protocol):
    """Something to print: as JSON, or as lines of text."""

    def to_json(self) -> Any:
        """Return JSON values."""

    def lines(self) -> list[str]:
        """Return lines for a terminal."""


@dataclass(frozen=True)
class LogQuery:
    """Selection of the output to return.

    Attributes:
        node: Only this instance's output; empty: all instances.
        rank: Only the node with this rank; None: all.
        since_seconds: Age of the oldest output.
        follow: Continue until Ctrl-C.
    """

    node: str
    rank: int | None
    since_seconds: float
    follow: bool


@dataclass(frozen=True)
class Submission:
    """Options for submitting a run.

    Attributes:
        stacks: Stacks to deploy; empty: all.
        approved: Approved exit code of the review.
        follow: Report progress until the run ends.
    """

    stacks: tuple[str, ...]
    approved: int
    follow: bool
    as_json: bool


class Engine(Protocol):
    """Runs one training. Every method raises CommandError if the engine does not support or permit the call."""

    def submit(self, submission: Submission) -> None:
        """Start the run, or apply changes in the deployment file, and print the result."""

    def observe(self) -> View:
        """Return the run's status."""

    def explain(self) -> View:
        """Return why the run is not training."""

    def logs(self, query: LogQuery) -> Iterator[str]:
        """Yield lines of the trainers' output."""

    def stop(self, *, waits: bool, as_json: bool) -> None:
        """Save a checkpoint and stop the run until it is resumed, and print the result."""

    def resume(self, *, waits: bool, as_json: bool) -> None:
        """Start a stopped run again, and print the result."""
