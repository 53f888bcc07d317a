"""Boot step: download the code bundle."""

from __future__ import annotations

import shutil
from pathlib import Path

from bootstrap.boot_steps.step_runner import Step
from bootstrap.context import Context
from bootstrap.documents import RunDocument
from bootstrap.errors import StepError
from bootstrap.fetch.archives import fetch_archive


class Code(Step):
    """Download the code bundle, verify its SHA-256 and unpack it."""

    name = "code"
    after = ("run_document",)
    may_be_skipped = True

    def digest(self, context: Context) -> str:
        """Return the digest of the bundle."""
        assert context.run is not None
        return context.run.code.sha256

    def is_done(self, context: Context) -> bool:
        """Return True if the bundle is unpacked."""
        assert context.run is not None
        return _entry_point(context, context.run).is_file()

    def act(self, context: Context) -> None:
        """Download and unpack the bundle."""
        assert context.run is not None
        fetch_code(context, context.run)

    def verify(self, context: Context) -> None:
        """Check that the bundle contains the trainer."""
        assert context.run is not None
        check_code(context, context.run)


def fetch_code(context: Context, run: RunDocument) -> None:
    """Download and unpack the run's code to `Layout.code`, unless it exists.

    Raises:
        StepError: The download failed, the digest differs, or the object is not a zip archive.
    """
    fetch_archive(context, run.code, context.layout.code(run.code.sha256), named_by="the run document")


def check_code(context: Context, run: RunDocument) -> None:
    """Check that the unpacked bundle contains the trainer.

    Raises:
        StepError: The trainer is missing.
    """
    if not _entry_point(context, run).is_file():
        raise StepError(
            f"s3://{run.code.bucket}/{run.code.key}: no `training` package ({_entry_point(context, run)} is missing)",
            remedy="deploy again; the code bundle must have training/__main__.py at its root",
        )


def remove_other_code(context: Context, keep: frozenset[str]) -> None:
    """Remove unpacked bundles except those in `keep`, so that repeated edits do not fill the disk."""
    directory = context.layout.root / "code"
    for name in context.system.list_directory(directory):
        if name not in keep:
            shutil.rmtree(directory / name, ignore_errors=True)


def _entry_point(context: Context, run: RunDocument) -> Path:
    return context.layout.code(run.code.sha256) / "training" / "__main__.py"
