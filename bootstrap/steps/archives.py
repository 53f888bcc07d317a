"""Fetches zip archives from S3 by digest, and unpacks them whole or not at all."""

from __future__ import annotations

import hashlib
import tempfile
import zipfile
from pathlib import Path

from bootstrap.aws import AWS_ERRORS
from bootstrap.documents import Bundle
from bootstrap.errors import StepError
from bootstrap.plan import Context


def fetch_archive(context: Context, bundle: Bundle, target: Path, *, named_by: str) -> None:
    """Unpack an archive as the folder `target`, whole or not at all; nothing to do when that is there.

    Args:
        context: What the step works with.
        bundle: Where the archive is, and its SHA-256.
        target: The folder that it becomes.
        named_by: What says so, for messages: "the run document".

    Raises:
        StepError: It cannot be fetched, is not what the digest says, or is no zip archive.
    """
    if target.is_dir():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".unpacking-") as temporary:
        archive = Path(temporary) / "bundle.zip"
        unpacked = Path(temporary) / "unpacked"
        _download(context, bundle, archive, named_by)
        try:
            with zipfile.ZipFile(archive) as content:
                content.extractall(unpacked)
        except (zipfile.BadZipFile, NotImplementedError) as error:
            raise StepError(
                f"s3://{bundle.bucket}/{bundle.key}: is no zip archive ({error})",
                remedy="deploy again to upload the bundle anew",
            ) from error
        try:
            unpacked.rename(target)
        except OSError:
            if not target.is_dir():  # another fetch of the same digest came first: what it left is the same
                raise


def _download(context: Context, bundle: Bundle, archive: Path, named_by: str) -> None:
    name = f"s3://{bundle.bucket}/{bundle.key}"
    try:
        body = context.aws.client("s3").get_object(Bucket=bundle.bucket, Key=bundle.key)["Body"]
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
    if digest.hexdigest() != bundle.sha256:
        raise StepError(
            f"{name}: has SHA-256 {digest.hexdigest()}, {named_by} says {bundle.sha256}",
            remedy="deploy again to upload the bundle anew; somebody may have written over it",
        )
