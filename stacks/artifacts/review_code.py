"""The digest of the code that reviews and delivers changes. A review uses it to detect changes to its own code."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from stacks.artifacts.bundles import EXCLUDED, ROOT

OUTPUT = "ReviewDigest"
"""The TrainingStack output that contains the digest."""
TRUSTED = (
    ".github/workflows", ".gitlab-ci.yml", "Makefile", "app.py", "cdk.json", "package-lock.json", "package.json",
    "requirements-cpu.lock", "requirements-cuda.lock", "requirements.lock", "requirements.txt", "stacks/changes",
    "stacks/commands/deliver.py", "stacks/commands/diff.py", "stacks/constructs/delivery", "stacks/delivery",
    "stacks/pipeline_stack.py",
)  # fmt: skip
"""The files and folders that a delivery trusts: the review, the gates, the workflows and their dependencies."""


def review_digest(root: Path = ROOT) -> str:
    """Return the SHA-256 digest of the names and contents of all trusted files that exist."""
    digest = hashlib.sha256()
    for path in _files(root):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _files(root: Path) -> Iterator[Path]:
    for name in TRUSTED:
        place = root / name
        found = sorted(place.rglob("*")) if place.is_dir() else [place]
        yield from (path for path in found if path.is_file() and not EXCLUDED & set(path.relative_to(root).parts))
