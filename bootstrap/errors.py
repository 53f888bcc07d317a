"""Exceptions of the node program.

BootstrapError
+-- DocumentError      a node or run document that is not as written down
+-- StepError          a boot step that failed, with what a person needs to go on
|   +-- LastingError   it would fail again in the same way: trying again only costs money
+-- CommandError       a program that ended badly
+-- MetadataError      the instance metadata service did not answer as it should
|   +-- NoMetadataService   there is no instance metadata service here
+-- ControlStoreError  the control records in the checkpoint bucket could not be read or written
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class BootstrapError(Exception):
    """Anything that the node program raises on purpose."""


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a document: where, what was found, the rule it breaks, and what to do about it."""

    path: str
    value: str
    rule: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path}: {self.value}: {self.rule}; {self.remedy}"


class DocumentError(BootstrapError):
    """A document that does not follow its schema; `problems` holds every one of them."""

    def __init__(self, document: str, problems: Sequence[Problem]) -> None:
        self.document = document
        self.problems = tuple(problems)
        count = f"{len(self.problems)} problem" + ("" if len(self.problems) == 1 else "s")
        super().__init__("\n".join([f"{document}: {count}", *(f"  {problem}" for problem in self.problems)]))


class CommandError(BootstrapError):
    """A program that could not be started, took too long (`exit_code` None), or ended with a code that is not 0."""

    def __init__(self, command: Sequence[str], exit_code: int | None, output_tail: str, reason: str) -> None:
        super().__init__(f"{' '.join(command)}: {reason}")
        self.command = tuple(command)
        self.exit_code = exit_code
        self.output_tail = output_tail
        self.reason = reason


class StepError(BootstrapError):
    """A boot step that failed: `message` says what, `remedy` what a person can do."""

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
    def from_command(cls, error: CommandError, *, message: str, remedy: str) -> StepError:
        """Return the step's failure for a program that ended badly."""
        return cls(
            f"{message}: {error.reason}",
            remedy=remedy,
            command=error.command,
            exit_code=error.exit_code,
            output_tail=error.output_tail,
        )


class LastingError(StepError):
    """A failure that another try meets again, until a person changes something."""


class MetadataError(BootstrapError):
    """The instance metadata service answered with something other than what it promises."""


class NoMetadataService(MetadataError):
    """Nothing answers at the instance metadata address."""


class ControlStoreError(BootstrapError):
    """The control records of a run could not be read or written."""
