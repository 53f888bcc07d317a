"""Errors that are detected before a deploy. Each message names the key's path, its value, the rule and a remedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Problem:
    """One problem in a deployment file: the key's path and value, the violated rule, and a remedy.

    Errors stop `check`, synthesis and deploy. Warnings are only printed.
    """

    path: str
    value: object
    rule: str
    remedy: str
    severity: Literal["error", "warning"] = "error"

    def __str__(self) -> str:
        return f"{self.path}: {self.value!r}: {self.rule}; {self.remedy}"

    def to_json(self) -> dict[str, Any]:
        """Return the problem as JSON values. A value without a JSON type is converted to text."""
        value = self.value if isinstance(self.value, (str, int, float, bool, type(None))) else str(self.value)
        return asdict(self) | {"value": value}


class BundleError(ValueError):
    """The user code cannot be added to the code bundle."""


class DeployError(RuntimeError):
    """A deploy or a deletion failed. The message contains the reason and a remedy."""


class ConfigError(ValueError):
    """A deployment file is invalid. The exception contains all problems."""

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.source = source
        self.problems = list(problems)
        count = f"{len(self.problems)} problem" + ("s" if len(self.problems) != 1 else "")
        super().__init__(f"{source}: {count}\n" + "\n".join(f"  {problem}" for problem in self.problems))
