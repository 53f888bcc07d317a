"""Boot step: the code that trains, by digest."""

from __future__ import annotations

import hashlib
import logging
import shutil
import tempfile
import zipfile
from pathlib import Path

from bootstrap.aws import AWS_ERRORS
from bootstrap.documents import RunDocument
from bootstrap.errors import StepError
from bootstrap.plan import Context, Step

logger = logging.getLogger(__name__)


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
    target = context.layout.code(run.code.sha256)
    if target.is_dir():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".unpacking-") as temporary:
        archive = Path(temporary) / "bundle.zip"
        unpacked = Path(temporary) / "unpacked"
        _download(context, run, archive)
        try:
            with zipfile.ZipFile(archive) as bundle:
                bundle.extractall(unpacked)
        except (zipfile.BadZipFile, NotImplementedError) as error:
            raise StepError(
                f"s3://{run.code.bucket}/{run.code.key}: is no zip archive ({error})",
                remedy="deploy again to upload the bundle anew",
            ) from error
        try:
            unpacked.rename(target)
        except OSError:
            if not target.is_dir():  # another fetch of the same digest came first: what it left is the same
                raise


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


def _download(context: Context, run: RunDocument, archive: Path) -> None:
    name = f"s3://{run.code.bucket}/{run.code.key}"
    try:
        body = context.aws.client("s3").get_object(Bucket=run.code.bucket, Key=run.code.key)["Body"]
        digest = hashlib.sha256()
        with archive.open("wb") as stream:
            for chunk in body.iter_chunks(1024 * 1024):
                digest.update(chunk)
                stream.write(chunk)
    except AWS_ERRORS as error:
        raise StepError(
            f"{name}: cannot be fetched ({error})",
            remedy="check that the bundle is there, that the node's role may read it, and the S3 endpoint's policy",
        ) from error
    if digest.hexdigest() != run.code.sha256:
        raise StepError(
            f"{name}: has SHA-256 {digest.hexdigest()}, the run document says {run.code.sha256}",
            remedy="deploy again to upload the bundle anew; somebody may have written over it",
        )
