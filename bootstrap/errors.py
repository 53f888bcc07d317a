"""Exceptions that the node program raises.

BootstrapError
+-- DocumentError      an invalid node or run document
+-- StepError          a failed boot step, with a remedy
|   +-- PermanentError   a failure that a retry cannot fix
|   +-- NotReadyError    a failure that may resolve itself, because something is still starting
+-- CommandError       a program that failed
+-- MetadataError      an unexpected response from the instance metadata service
|   +-- NoMetadataService   no response from the instance metadata service
+-- ControlStoreError  control records in the control bucket that could not be read or written
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self


class BootstrapError(Exception):
    """Base class for the node program's exceptions."""


@dataclass(frozen=True)
class Problem:
    """A problem in a document: its path, its value, the violated rule, and the remedy."""

    path: str
    value: str
    rule: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path}: {self.value}: {self.rule}; {self.remedy}"


class DocumentError(BootstrapError):
    """A document violates its schema. `problems` lists every violation."""

    def __init__(self, document: str, problems: Sequence[Problem]) -> None:
        self.document = document
        self.problems = tuple(problems)
        count = f"{len(self.problems)} problem" + ("" if len(self.problems) == 1 else "s")
        super().__init__("\n".join([f"{document}: {count}", *(f"  {problem}" for problem in self.problems)]))


class CommandError(BootstrapError):
    """A program could not be started, timed out (`exit_code` None), or exited with a nonzero code."""

    def __init__(self, command: Sequence[str], exit_code: int | None, output_tail: str, reason: str) -> None:
        super().__init__(f"{' '.join(command)}: {reason}")
        self.command = tuple(command)
        self.exit_code = exit_code
        self.output_tail = output_tail
        self.reason = reason


class StepError(BootstrapError):
    """A boot step failed: `message` describes the failure, and `remedy` how to fix it."""

    def __init__(
        self,
        message: str,
        *,
        remedy: str,
        command: Sequence[str] | None = None,
        exit_code: int | None = None,
        output_tail: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.command = tuple(command) if command is not None else None
        self.exit_code = exit_code
        self.output_tail = output_tail

    @classmethod
    def from_command(cls, error: CommandError, *, message: str, remedy: str) -> Self:
        """Return a step error for a failed program."""
        return cls(
            f"{message}: {error.reason}",
            remedy=remedy,
            command=error.command,
            exit_code=error.exit_code,
            output_tail=error.output_tail,
        )


class PermanentError(StepError):
    """A failure that will recur on every retry until a user fixes its cause."""


class NotReadyError(StepError):
    """A failure that may resolve itself, because the machine, the image or a service is still starting."""

    @classmethod
    def from_step(cls, error: StepError) -> Self:
        """Return the failure as a NotReadyError."""
        return cls(
            error.message,
            remedy=error.remedy,
            command=error.command,
            exit_code=error.exit_code,
            output_tail=error.output_tail,
        )

    def after(self, waited_seconds: float) -> Self:
        """Append the step's waiting time to the message, and return the failure."""
        self.message = f"{self.message} (after waiting {waited_seconds:g} seconds)"
        self.args = (self.message,)
        return self


class MetadataError(BootstrapError):
    """The instance metadata service sent an unexpected response."""


class NoMetadataService(MetadataError):
    """The instance metadata address did not respond."""


class ControlStoreError(BootstrapError):
    """A run's control records could not be read or written."""
