"""Boot step: download the dataset from S3 to the local disk in parallel and incrementally, and verify it.

A file is renamed to its final name after its hash is verified, so a file with its final name and size is valid. Staging
resumes after an interruption: complete files are hashed and kept, and only the missing ranges of large files are
downloaded. Hashing and zstd decoding overlap with the download.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

from botocore.exceptions import ClientError

from bootstrap.aws import AWS_ERRORS
from bootstrap.boot_steps.step_runner import Step
from bootstrap.context import Context
from bootstrap.datasets.index import INDEX, MAX_INDEX_BYTES, DatasetFile, index_files
from bootstrap.datasets.mounted import link_mounted_dataset
from bootstrap.datasets.verification import DECODED, PART, Verifier, part_name
from bootstrap.documents import RunDocument
from bootstrap.errors import StepError
from bootstrap.fetch.partial import JOURNAL, RANGES, hidden_names
from bootstrap.fetch.transfer import SPARE_DISK_BYTES, download_objects
from bootstrap.prepare.dataset import find_prepared
from bootstrap.prewarm.start import start_prewarm

logger = logging.getLogger(__name__)

# Name of the index while the directory is incomplete. The file INDEX is written last.
_INDEX_OF_FILES = ".staging.json"
# Interval between checks for files that s5cmd has finished. It is short so that hashing keeps up.
_POLL_SECONDS = 0.1
_BLOCK_BYTES = 512  # unit of st_blocks on every file system


class Staging(Step):
    """Download the dataset in parallel and incrementally, resume if interrupted, and verify sizes and hashes."""

    name = "staging"
    after = ("run_document", "code", "wheelhouse", "local_disks", "volumes", "shared_storage")

    def act(self, context: Context) -> None:
        """Download missing files unless a mounted volume or file system contains the dataset.

        The supervisor handles data that must still be prepared, because preparation can take longer than the boot
        timeout.
        """
        assert context.run is not None
        found = None if context.run.prepare is None else find_prepared(context, context.run)
        if context.run.prepare is None or found is not None:
            stage_dataset(context, context.run, found)
        else:
            context.layout.prepared_dataset.unlink(missing_ok=True)

    def verify(self, context: Context) -> None:
        """Check that every file in the index exists with the correct size."""
        assert context.run is not None
        if context.run.prepare is not None and not context.layout.prepared_dataset.exists():
            return
        directory = context.layout.dataset(context.run.dataset)
        index = (directory / INDEX).read_text(encoding="utf-8")
        files = _to_stage(context.run, index_files(index, str(directory / INDEX)))
        wrong = [each.name for each in files if not _exists(directory, each)]
        if wrong:
            raise StepError(
                f"{directory}: missing or wrong size after staging: {', '.join(wrong)}",
                remedy="find the program that changes this directory, and boot again",
            )


def stage_dataset(context: Context, run: RunDocument, stored: str | None = None) -> None:
    """Download the run's dataset to `Layout.dataset`, writing the index last, or link a mounted dataset.

    Args:
        context: The context of the node.
        run: The run document.
        stored: Name of the dataset under datasets/ in the bucket. The default is `run.dataset`.

    Raises:
        StepError: The dataset does not exist, the disk is too small, or a file differs from the index.
    """
    stored = stored or run.dataset
    mounted = None if run.streams_dataset else link_mounted_dataset(context, run.dataset, stored, INDEX)
    if mounted is not None:
        _use_mounted(context, mounted)
        return
    bucket, prefix = context.node.dataset_bucket, f"datasets/{stored}"
    source = f"s3://{bucket}/{prefix}"
    directory = context.layout.dataset(run.dataset)
    index_text = _fetch_index(context, stored)
    files = _to_stage(run, index_files(index_text, f"{source}/{INDEX}"))
    known = context.system.read(directory / _INDEX_OF_FILES)
    if known != index_text:
        (directory / INDEX).unlink(missing_ok=True)
        _drop_changed(directory, known, files)
        context.system.write_atomic(directory / _INDEX_OF_FILES, index_text)
    missing = [each for each in files if not _exists(directory, each)]
    if missing:
        _download(context, source, directory, missing)
    logger.info("%s: %d files staged, %d kept", source, len(missing), len(files) - len(missing))
    context.system.write_atomic(directory / INDEX, index_text)


def _to_stage(run: RunDocument, files: Sequence[DatasetFile]) -> list[DatasetFile]:
    """Return the files to stage: all files, or all except the shards if the trainer streams shards from S3."""
    return [each for each in files if each.blake3 is None or not run.streams_dataset]


def _drop_changed(directory: Path, known: str | None, files: Sequence[DatasetFile]) -> None:
    """Remove files that belong to another index, unless this index lists them with the same contents."""
    try:
        before = {each.name: each for each in index_files(known or "{}", _INDEX_OF_FILES)}
    except StepError:
        before = {}  # the files' contents are unknown
    now = {each.name: each for each in files}
    for name in {*before, *now}:
        if _contents(before.get(name)) != _contents(now.get(name)):  # equal name and size do not imply equal bytes
            (directory / name).unlink(missing_ok=True)


def _contents(each: DatasetFile | None) -> tuple[object, ...] | None:
    """Return the identity of a file's decoded contents."""
    return None if each is None else (each.bytes, each.blake3, each.sha256)


def _download(context: Context, source: str, directory: Path, missing: Sequence[DatasetFile]) -> None:
    """Download and verify files, keeping complete files from an interrupted staging."""
    kept = _complete_parts(directory, missing)
    names = {each.name for each in kept}
    absent = [each for each in missing if each.name not in names]
    _check_disk(context, directory, missing, kept)
    resumed = [each for each in absent if (directory / hidden_names(each.object_name)[0]).exists()]
    rejected = _download_and_verify(context, source, directory, absent, kept)
    again = [each for each in (*kept, *resumed) if each.name in rejected]
    if again:
        logger.warning("%s: downloading again: %s", directory, _reasons(rejected, again))
        rejected = {name: why for name, why in rejected.items() if name not in {each.name for each in again}}
        rejected |= _download_and_verify(context, source, directory, again, [])
    if rejected:
        raise StepError(
            f"{source}: " + _reasons(rejected, missing),
            remedy="the dataset is damaged or was overwritten during the download: tokenize it again",
        )


def _download_and_verify(
    context: Context, source: str, directory: Path, absent: Sequence[DatasetFile], kept: Sequence[DatasetFile]
) -> dict[str, str]:
    """Download the missing files, verify all files, and return the reason for each rejection by file name."""
    verifier = Verifier(context, directory, [*absent, *kept])
    sizes = {each.object_name: each.stored_bytes for each in absent}
    with ThreadPoolExecutor(1, thread_name_prefix="download") as pool:
        hashed = {each.object_name: each.blake3 is not None and each.encoding is None for each in absent}
        download = pool.submit(download_objects, context, source, sizes, directory, PART, hashed, verifier.set_hash)
        if kept:
            verifier.verify([part_name(each) for each in kept])
        while not wait((download,), _POLL_SECONDS).done:
            verifier.verify()
        download.result()
    verifier.verify()
    return verifier.rejected


def _complete_parts(directory: Path, missing: Sequence[DatasetFile]) -> list[DatasetFile]:
    """Return the files that an interrupted staging downloaded completely, and remove incomplete files."""
    if not directory.is_dir():
        return []
    parts = {part_name(each): each for each in missing}
    resumable = {hidden for each in missing for hidden in hidden_names(each.object_name)}
    complete: list[DatasetFile] = []
    for entry in os.scandir(directory):
        each = parts.get(entry.name)
        if each is not None and each.stored_bytes in (None, entry.stat().st_size):
            complete.append(each)
        elif entry.name not in resumable and _is_temporary(entry.name):
            Path(entry.path).unlink()
    return complete


def _is_temporary(name: str) -> bool:
    """Return True if the name belongs to an unfinished file. s5cmd appends digits to its temporary names."""
    return name.startswith(".") and (PART in name or name.endswith((DECODED, RANGES, JOURNAL)))


def _reasons(rejected: Mapping[str, str], files: Sequence[DatasetFile]) -> str:
    return "; ".join(f"{each.name}: {rejected[each.name]}" for each in files if each.name in rejected)


def _use_mounted(context: Context, mounted: Path) -> None:
    """Check that a mounted dataset is complete, and start its pre-warm if the node document requests it."""
    index = mounted / INDEX
    files = index_files(index.read_text(encoding="utf-8"), str(index))
    wrong = [each.name for each in files if not _exists(mounted, each)]
    if wrong:
        raise StepError(
            f"{mounted}: missing, or the size differs from the index: {', '.join(wrong)}",
            remedy="copy the complete dataset there, or remove its directory to make the node download it from S3",
        )
    start_prewarm(context, mounted)


def _fetch_index(context: Context, dataset: str) -> str:
    bucket, key = context.node.dataset_bucket, f"datasets/{dataset}/{INDEX}"
    s3 = context.aws.client("s3", patience="high")
    try:
        content: bytes = s3.get_object(Bucket=bucket, Key=key)["Body"].read(MAX_INDEX_BYTES + 1)
        if len(content) > MAX_INDEX_BYTES:
            raise StepError(
                f"s3://{bucket}/{key}: more than {MAX_INDEX_BYTES} bytes: not a dataset index",
                remedy="use larger shards, or publish archives instead of many small files",
            )
        return content.decode()
    except UnicodeDecodeError as error:
        raise StepError(
            f"s3://{bucket}/{key}: not a dataset index ({error.reason})", remedy="tokenize the dataset again"
        ) from error
    except AWS_ERRORS as error:
        code = error.response["Error"]["Code"] if isinstance(error, ClientError) else ""
        if code in ("NoSuchKey", "404", "AccessDenied"):  # without s3:ListBucket, S3 returns 403 for a missing key
            raise StepError(
                f"training.dataset: {dataset}: s3://{bucket}/{key} does not exist, or access is denied ({code})",
                remedy=f"create it: python -m training tokenize --input DIR --output s3://{bucket}/datasets "
                f"--name {dataset}; or correct the name; or check the node role",
            ) from error
        raise StepError(
            f"s3://{bucket}/{key}: cannot read ({error})", remedy="check the bucket and the S3 endpoint"
        ) from error


def _exists(directory: Path, each: DatasetFile) -> bool:
    path = directory / each.name
    return path.is_file() and (each.bytes is None or path.stat().st_size == each.bytes)


def _check_disk(context: Context, directory: Path, missing: Sequence[DatasetFile], kept: Sequence[DatasetFile]) -> None:
    """Check that the disk has space for all decoded files and, for each core, the largest encoded file."""
    encoded = max((each.stored_bytes or 0 for each in missing if each.encoding), default=0) * (os.cpu_count() or 1)
    present = sum(each.stored_bytes or 0 for each in kept)
    present += sum(path.stat().st_blocks * _BLOCK_BYTES for path in directory.glob(f".*{RANGES}"))
    needed = sum(each.bytes or 0 for each in missing) - present + encoded + SPARE_DISK_BYTES
    free = context.system.free_bytes(directory)
    if needed > free:
        raise StepError(
            f"{directory}: not enough disk space: {free} bytes free, {needed} needed",
            remedy="raise node.root_volume.gib, or use a smaller dataset",
        )
