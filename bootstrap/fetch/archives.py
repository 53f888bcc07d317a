"""Downloads zip archives from S3, verifies their digests, and unpacks them atomically."""

from __future__ import annotations

import hashlib
import tempfile
import zipfile
from pathlib import Path

from bootstrap.aws import AWS_ERRORS
from bootstrap.context import Context
from bootstrap.documents import Bundle
from bootstrap.errors import NotReadyError, StepError

# boto3 retries failed requests, but not responses that end early.
RESPONSE_SECONDS = 60.0


def fetch_archive(context: Context, bundle: Bundle, target: Path, *, named_by: str) -> None:
    """Download an archive and unpack it atomically to the directory `target`, unless the directory exists.

    Args:
        context: The context of the step.
        bundle: Location and SHA-256 of the archive.
        target: The directory to create.
        named_by: Origin of `bundle` for messages, such as "the run document".

    Raises:
        StepError: The download failed, the digest differs, or the object is not a zip archive.
    """
    if target.is_dir():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".unpacking-") as temporary:
        archive = Path(temporary) / "bundle.zip"
        unpacked = Path(temporary) / "unpacked"
        context.wait_until_ready(lambda: _download(context, bundle, archive, named_by), limit_seconds=RESPONSE_SECONDS)
        try:
            with zipfile.ZipFile(archive) as content:
                content.extractall(unpacked)
        except (zipfile.BadZipFile, NotImplementedError) as error:
            raise StepError(
                f"s3://{bundle.bucket}/{bundle.key}: not a zip archive ({error})",
                remedy="deploy again to upload the bundle again",
            ) from error
        try:
            unpacked.rename(target)
        except OSError:
            if not target.is_dir():  # a concurrent download of the same digest has created it
                raise


def _download(context: Context, bundle: Bundle, archive: Path, named_by: str) -> None:
    name = f"s3://{bundle.bucket}/{bundle.key}"
    kind = StepError
    try:
        body = context.aws.client("s3", patience="high").get_object(Bucket=bundle.bucket, Key=bundle.key)["Body"]
        kind = NotReadyError
        digest = hashlib.sha256()
        with archive.open("wb") as stream:
            for chunk in body.iter_chunks(1024 * 1024):
                digest.update(chunk)
                stream.write(chunk)
    except AWS_ERRORS as error:
        raise kind(
            f"{name}: cannot download ({error})",
            remedy="check that the object exists, and that the node's role and the S3 endpoint policy allow reading it",
        ) from error
    if digest.hexdigest() != bundle.sha256:
        raise StepError(
            f"{name}: found SHA-256 {digest.hexdigest()}, {named_by} has {bundle.sha256}",
            remedy="deploy again to upload the bundle again; the object may have been overwritten",
        )
