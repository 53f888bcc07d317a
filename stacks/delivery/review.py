"""What a deploy would do, as `python -m stacks diff` says it, and whether a person must agree first."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

DEPLOYED = "deployed"
"""What `--against` names to compare with the account."""
DEADLINE_SECONDS = 900.0
WORDS = {
    0: "nothing changes",
    10: "changes that touch no running node",
    20: "nodes are replaced",
    30: "IAM or network is broadened",
    40: "data is at risk",
}
"""Exit codes of `python -m stacks diff` and what they mean."""
Form = Literal["text", "markdown"]


class ReviewError(RuntimeError):
    """The change cannot be told; the message is that of `python -m stacks diff`."""


@dataclass(frozen=True)
class Review:
    """One file's change: the exit code of the comparison, and its words."""

    file: Path
    code: int
    text: str

    def __str__(self) -> str:
        """Return it in a line, of letters that any shell and workflow passes on unchanged."""
        return f"{self.file}: {WORDS[self.code]}"


def review(file: Path, *, against: str, form: Form, environment: Mapping[str, str]) -> Review:
    """Compare a deployment file with what is deployed, or with a revision or folder of templates.

    Args:
        file: The deployment file.
        against: `deployed`, a git revision, or a folder.
        form: For a terminal, or for a comment.
        environment: Variables beside those of this process, such as credentials that may read only.

    Raises:
        ReviewError: The comparison failed.
    """
    command = [sys.executable, "-m", "stacks", "diff", str(file), "--against", against]
    command += ["--markdown"] if form == "markdown" else []
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
        raise ReviewError(f"{file}: the comparison has not ended within {DEADLINE_SECONDS:.0f} seconds") from error
    if done.returncode not in WORDS:
        raise ReviewError(done.stderr.strip() or f"{file}: the comparison ended with code {done.returncode}")
    return Review(file, done.returncode, done.stdout)


def worst(reviews: Sequence[Review]) -> Review:
    """Return the one that asks for most care."""
    return max(reviews, key=lambda each: each.code)
