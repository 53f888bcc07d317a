"""What goes wrong before anything is deployed, in words that say how to put it right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Problem:
    """One mistake in a deployment file: where, what was given, the rule, and what to do.

    An error stops `check`, synthesis and deploy; a warning is told and stops nothing.
    """

    path: str
    value: object
    rule: str
    remedy: str
    severity: Literal["error", "warning"] = "error"

    def __str__(self) -> str:
        return f"{self.path}: {self.value!r}: {self.rule}; {self.remedy}"

    def to_json(self) -> dict[str, Any]:
        """Return the problem for programs; a value that JSON does not have becomes text."""
        value = self.value if isinstance(self.value, (str, int, float, bool, type(None))) else str(self.value)
        return asdict(self) | {"value": value}


class BundleError(ValueError):
    """The user's code cannot be shipped beside the trainer."""


class ConfigError(ValueError):
    """A deployment file is wrong; holds every problem found."""

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.source = source
        self.problems = list(problems)
        count = f"{len(self.problems)} problem" + ("s" if len(self.problems) != 1 else "")
        super().__init__(f"{source}: {count}\n" + "\n".join(f"  {problem}" for problem in self.problems))
