"""Reviews a change by running `python -m stacks diff` in a subprocess."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

DEPLOYED = "deployed"
"""The `--against` value that selects the account's deployed stacks."""
DEADLINE_SECONDS = 900.0
MEANINGS = {
    0: "no changes",
    10: "known changes that do not replace running nodes",
    20: "nodes are replaced",
    30: "permissions or network access are broadened, or the change is not recognized as safe",
    40: "data is at risk",
}
"""Exit codes of `python -m stacks diff` and their meanings."""
Form = Literal["text", "markdown"]


class ReviewError(RuntimeError):
    """The review failed. The message is the error output of `python -m stacks diff`."""


@dataclass(frozen=True)
class Review:
    """The review of one file's changes: its exit code and text."""

    file: Path
    code: int
    text: str

    def __str__(self) -> str:
        """Return the review as one line, without characters that a shell or workflow would interpret."""
        return f"{self.file}: {MEANINGS[self.code]}"


def review(
    file: Path,
    *,
    against: str,
    form: Form,
    environment: Mapping[str, str],
    templates: Path | None = None,
    stack: str | None = None,
) -> Review:
    """Compare a deployment file with the deployed stacks, a git revision or a folder of templates.

    Args:
        file: The deployment file.
        against: `deployed`, a git revision, or a folder.
        form: The output format: terminal or comment.
        environment: Additional environment variables, such as read-only credentials.
        templates: The file's cloud assembly; None to synthesize it.
        stack: The stack to review; None for all stacks.

    Raises:
        ReviewError: The comparison failed.
    """
    command = [sys.executable, "-m", "stacks", "diff", str(file), "--against", against]
    command += ["--markdown"] if form == "markdown" else []
    command += ["--templates", str(templates)] if templates is not None else []
    command += ["--stack", stack] if stack is not None else []
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise ReviewError(f"{file}: the comparison timed out after {DEADLINE_SECONDS:.0f} s") from error
    if done.returncode not in MEANINGS:
        raise ReviewError(done.stderr.strip() or f"{file}: the comparison failed with code {done.returncode}")
    return Review(file, done.returncode, done.stdout)


def worst_of(reviews: Sequence[Review]) -> Review:
    """Return the review with the highest exit code."""
    return max(reviews, key=lambda each: each.code)
