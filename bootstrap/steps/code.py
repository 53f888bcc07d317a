"""Boot step: the code that trains, by digest."""

from __future__ import annotations

import shutil
from pathlib import Path

from bootstrap.documents import RunDocument
from bootstrap.errors import StepError
from bootstrap.plan import Context, Step
from bootstrap.steps.archives import fetch_archive


class Code(Step):
    """Fetch the code bundle by digest, verify its SHA-256 and unpack it."""

    name = "code"
    after = ("run_document",)
    may_be_skipped = True

    def digest(self, context: Context) -> str:
        """Return the digest of the bundle."""
        assert context.run is not None
        return context.run.code.sha256

    def look(self, context: Context) -> bool:
        """Return whether the bundle is unpacked."""
        assert context.run is not None
        return _entry_point(context, context.run).is_file()

    def act(self, context: Context) -> None:
        """Fetch and unpack it."""
        assert context.run is not None
        fetch_code(context, context.run)

    def verify(self, context: Context) -> None:
        """The bundle holds the trainer."""
        assert context.run is not None
        check_code(context, context.run)


def fetch_code(context: Context, run: RunDocument) -> None:
    """Put the run's code where `Layout.code` says, whole or not at all; nothing to do when it is there.

    Raises:
        StepError: It cannot be fetched, is not what the digest says, or is no zip archive.
    """
    fetch_archive(context, run.code, context.layout.code(run.code.sha256), named_by="the run document")


def check_code(context: Context, run: RunDocument) -> None:
    """Make sure that the unpacked bundle holds the trainer.

    Raises:
        StepError: It does not.
    """
    if not _entry_point(context, run).is_file():
        raise StepError(
            f"s3://{run.code.bucket}/{run.code.key}: holds no `training` package ({_entry_point(context, run)})",
            remedy="deploy again; the code bundle must have training/__main__.py at its top",
        )


def remove_other_code(context: Context, keep: frozenset[str]) -> None:
    """Remove unpacked bundles of other digests than `keep`, so that years of edits do not fill the disk."""
    folder = context.layout.root / "code"
    for name in context.system.list_directory(folder):
        if name not in keep:
            shutil.rmtree(folder / name, ignore_errors=True)


def _entry_point(context: Context, run: RunDocument) -> Path:
    return context.layout.code(run.code.sha256) / "training" / "__main__.py"
