"""Boot step: the dataset, from S3 to the local disk, in parallel, incrementally, and verified.

A file gets its final name only after its hash was found right, so whatever has its final name and size is good. An
interrupted staging goes on where it stopped: files that were copied whole are hashed and kept, and of large ones only
the missing ranges are fetched. Files are hashed, and zstd is expanded, while others are copied.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

from botocore.exceptions import ClientError

from bootstrap.aws import AWS_ERRORS
from bootstrap.dataset_index import INDEX, DatasetFile, index_files
from bootstrap.documents import RunDocument
from bootstrap.errors import StepError
from bootstrap.fetch.partial import JOURNAL, RANGES, hidden_names
from bootstrap.plan import Context, Step
from bootstrap.prepared.dataset import find_prepared
from bootstrap.steps.accepting import PART, PLAIN, Acceptance, part_name
from bootstrap.steps.mounted_dataset import link_mounted_dataset
from bootstrap.steps.transfer import SPARE_DISK_BYTES, copy_objects
from bootstrap.steps.warming import warm

logger = logging.getLogger(__name__)

# The index that the files in the directory belong to; INDEX itself is written when all of them are there.
_INDEX_OF_FILES = ".staging.json"
# How often to look for what s5cmd has copied: hashing is to lag little behind, and a look costs a listing.
_LOOK_SECONDS = 0.1
_BLOCK_BYTES = 512  # of st_blocks, whatever the file system's are


class Staging(Step):
    """Copy the dataset with s5cmd: parallel, incremental, resumable, verified by size and hash."""

    name = "staging"
    after = ("run_document", "code", "wheelhouse", "local_disks", "volumes", "shared_storage")

    def act(self, context: Context) -> None:
        """Copy what is missing, unless a mounted volume or file system holds the dataset.

        Data that are yet to be prepared are left to the supervisor: that may take longer than a boot may.
        """
        assert context.run is not None
        found = None if context.run.prepare is None else find_prepared(context, context.run)
        if context.run.prepare is None or found is not None:
            stage_dataset(context, context.run, found)
        else:
            context.layout.prepared_dataset.unlink(missing_ok=True)

    def verify(self, context: Context) -> None:
        """Every file of the index is there with its size."""
        assert context.run is not None
        if context.run.prepare is not None and not context.layout.prepared_dataset.exists():
            return
        directory = context.layout.dataset(context.run.dataset)
        index = (directory / INDEX).read_text(encoding="utf-8")
        files = _to_stage(context.run, index_files(index, str(directory / INDEX)))
        wrong = [each.name for each in files if not _is_there(directory, each)]
        if wrong:
            raise StepError(
                f"{directory}: missing, or of another size, after staging: {', '.join(wrong)}",
                remedy="something else changes this directory; see what, and boot again",
            )


def stage_dataset(context: Context, run: RunDocument, stored: str | None = None) -> None:
    """Bring the run's dataset to where `Layout.dataset` says; the index comes last.

    Args:
        context: What the step works with.
        run: Whose dataset.
        stored: Its name under datasets/ in the bucket; None: as the run has it.

    Raises:
        StepError: There is no such dataset, the disk is too small, or a file is not what the index says.
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
    missing = [each for each in files if not _is_there(directory, each)]
    there = len(files) - len(missing)
    if missing:
        _bring(context, source, directory, missing)
    logger.info("%s: %d files staged, %d were there", source, len(missing), there)
    context.system.write_atomic(directory / INDEX, index_text)


def _to_stage(run: RunDocument, files: Sequence[DatasetFile]) -> list[DatasetFile]:
    """Return what is copied: everything, or what is no shard where the trainer reads the shards from S3 itself."""
    return [each for each in files if each.blake3 is None or not run.streams_dataset]


def _drop_changed(directory: Path, known: str | None, files: Sequence[DatasetFile]) -> None:
    """Remove what another index put there, unless this one names the same bytes."""
    try:
        before = {each.name: each for each in index_files(known or "{}", _INDEX_OF_FILES)}
    except StepError:
        before = {}  # nobody knows what the files are
    now = {each.name: each for each in files}
    for name in {*before, *now}:
        if _bytes_of(before.get(name)) != _bytes_of(now.get(name)):  # the same name and size do not mean the same bytes
            (directory / name).unlink(missing_ok=True)


def _bytes_of(each: DatasetFile | None) -> tuple[object, ...] | None:
    """Return what tells a file's plain bytes from others."""
    return None if each is None else (each.bytes, each.blake3, each.sha256)


def _bring(context: Context, source: str, directory: Path, missing: Sequence[DatasetFile]) -> None:
    """Copy files, and accept them meanwhile; first of all those that an interrupted staging copied whole."""
    kept = _copied_whole(directory, missing)
    names = {each.name for each in kept}
    absent = [each for each in missing if each.name not in names]
    _check_disk(context, directory, missing, kept)
    begun = [each for each in absent if (directory / hidden_names(each.object_name)[0]).exists()]
    refused = _copy_and_accept(context, source, directory, absent, kept)
    again = [each for each in (*kept, *begun) if each.name in refused]
    if again:
        logger.warning("%s: copied again: %s", directory, _told(refused, again))
        refused = {name: why for name, why in refused.items() if name not in {each.name for each in again}}
        refused |= _copy_and_accept(context, source, directory, again, [])
    if refused:
        raise StepError(
            f"{source}: " + _told(refused, missing),
            remedy="the dataset is damaged, or was written again during the copy: tokenize it again",
        )


def _copy_and_accept(
    context: Context, source: str, directory: Path, absent: Sequence[DatasetFile], kept: Sequence[DatasetFile]
) -> dict[str, str]:
    """Copy what is absent, and accept it and what was kept; return what is wrong with the files that were refused."""
    acceptance = Acceptance(context, directory, [*absent, *kept])
    sizes = {each.object_name: each.stored_bytes for each in absent}
    with ThreadPoolExecutor(1, thread_name_prefix="copy") as pool:
        hashed = {each.object_name: each.blake3 is not None and each.encoding is None for each in absent}
        copying = pool.submit(copy_objects, context, source, sizes, directory, PART, hashed, acceptance.learn)
        if kept:
            acceptance.take([part_name(each) for each in kept])
        while not wait((copying,), _LOOK_SECONDS).done:
            acceptance.take()
        copying.result()
    acceptance.take()
    return acceptance.wrong


def _copied_whole(directory: Path, missing: Sequence[DatasetFile]) -> list[DatasetFile]:
    """Return what an interrupted staging copied whole; remove what it did not."""
    if not directory.is_dir():
        return []
    parts = {part_name(each): each for each in missing}
    begun = {hidden for each in missing for hidden in hidden_names(each.object_name)}
    whole: list[DatasetFile] = []
    for entry in os.scandir(directory):
        each = parts.get(entry.name)
        if each is not None and each.stored_bytes in (None, entry.stat().st_size):
            whole.append(each)
        elif entry.name not in begun and _is_passing(entry.name):
            Path(entry.path).unlink()
    return whole


def _is_passing(name: str) -> bool:
    """Return whether a staging gives such a name to what it has not finished; s5cmd adds digits to its own."""
    return name.startswith(".") and (PART in name or name.endswith((PLAIN, RANGES, JOURNAL)))


def _told(refused: Mapping[str, str], files: Sequence[DatasetFile]) -> str:
    return "; ".join(f"{each.name}: {refused[each.name]}" for each in files if each.name in refused)


def _use_mounted(context: Context, mounted: Path) -> None:
    """Make sure that a mounted dataset is complete, and begin to read it where the node document says so."""
    index = mounted / INDEX
    files = index_files(index.read_text(encoding="utf-8"), str(index))
    wrong = [each.name for each in files if not _is_there(mounted, each)]
    if wrong:
        raise StepError(
            f"{mounted}: missing, or not of the size in the index: {', '.join(wrong)}",
            remedy="write the whole dataset there, or remove its directory: it then comes from S3",
        )
    warm(context, mounted)


def _fetch_index(context: Context, dataset: str) -> str:
    bucket, key = context.node.dataset_bucket, f"datasets/{dataset}/{INDEX}"
    s3 = context.aws.client("s3")
    try:
        text: str = s3.get_object(Bucket=bucket, Key=key)["Body"].read().decode()
    except AWS_ERRORS as error:
        code = error.response["Error"]["Code"] if isinstance(error, ClientError) else ""
        if code in ("NoSuchKey", "404", "AccessDenied"):  # S3 answers 403 for a missing key without s3:ListBucket
            raise StepError(
                f"training.dataset: {dataset}: s3://{bucket}/{key} is not there, or may not be read ({code})",
                remedy=f"make it: python -m training tokenize --input DIR --output s3://{bucket}/datasets "
                f"--name {dataset}; or correct the name; or check the node role",
            ) from error
        raise StepError(
            f"s3://{bucket}/{key}: cannot be read ({error})", remedy="check the bucket and the S3 endpoint"
        ) from error
    return text


def _is_there(directory: Path, each: DatasetFile) -> bool:
    path = directory / each.name
    return path.is_file() and (each.bytes is None or path.stat().st_size == each.bytes)


def _check_disk(context: Context, directory: Path, missing: Sequence[DatasetFile], kept: Sequence[DatasetFile]) -> None:
    """Make sure of room for the plain files, and for the largest of the encoded ones beside its own."""
    encoded = max((each.stored_bytes or 0 for each in missing if each.encoding), default=0) * (os.cpu_count() or 1)
    there = sum(each.stored_bytes or 0 for each in kept)
    there += sum(path.stat().st_blocks * _BLOCK_BYTES for path in directory.glob(f".*{RANGES}"))
    needed = sum(each.bytes or 0 for each in missing) - there + encoded + SPARE_DISK_BYTES
    free = context.system.free_bytes(directory)
    if needed > free:
        raise StepError(
            f"{directory}: the disk is too small: {needed} bytes needed, {free} free",
            remedy="raise node.root_volume.gib, or use a smaller dataset",
        )
