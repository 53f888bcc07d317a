"""Boot step: the dataset, from S3 to the local disk, in parallel, incrementally, and verified.

s5cmd moves the bytes. A file gets its final name only after its hash was found right, so whatever has its final name
and size is good. An interrupted staging goes on where it stopped: files that were copied whole are hashed and kept.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path

from botocore.exceptions import ClientError

from bootstrap.aws import AWS_ERRORS
from bootstrap.dataset_index import INDEX, DatasetFile, index_files
from bootstrap.documents import RunDocument
from bootstrap.errors import CommandError, StepError
from bootstrap.plan import Context, Step
from bootstrap.prepared.dataset import find_prepared
from bootstrap.steps.interpreter import find_interpreter
from bootstrap.steps.mounted_dataset import link_mounted_dataset
from bootstrap.steps.transfer import SPARE_DISK_BYTES, copy_objects
from bootstrap.steps.warming import warm

logger = logging.getLogger(__name__)

# The index that the files in the directory belong to; INDEX itself is written when all of them are there.
_INDEX_OF_FILES = ".staging.json"
_PART = ".part"

# Runs where blake3 is installed: prints the hash of each file named on the command line's JSON list.
_HASHER = """
import sys
sys.path.pop(0)  # the working directory
import json
from blake3 import blake3
for path in json.load(open(sys.argv[1])):
    print(blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest())
"""


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
        missing = _keep_what_was_copied(context, directory, missing)
        _check_disk(context, directory, missing)
        copy_objects(context, source, {each.name: each.bytes for each in missing}, directory, _PART)
        wrong = _accept(context, directory, missing)
        if wrong:
            raise StepError(
                f"{source}: " + "; ".join(wrong),
                remedy="the dataset is damaged, or was written again during the copy: tokenize it again",
            )
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
        if before.get(name) != now.get(name):  # the same name and size do not mean the same bytes
            (directory / name).unlink(missing_ok=True)


def _keep_what_was_copied(context: Context, directory: Path, missing: Sequence[DatasetFile]) -> list[DatasetFile]:
    """Accept what an interrupted staging copied whole, remove what it did not, and return what is still missing."""
    if not directory.is_dir():
        return list(missing)
    parts = {_part(directory, each).name: each for each in missing}
    whole: list[DatasetFile] = []
    for path in directory.iterdir():
        each = parts.get(path.name)
        if each is not None and each.bytes in (None, path.stat().st_size):
            whole.append(each)
        elif _PART in path.name and path.name.startswith("."):  # s5cmd adds digits while it copies
            path.unlink()
    wrong = _accept(context, directory, whole)
    if wrong:
        logger.warning("%s: copied again: %s", directory, "; ".join(wrong))
    return [each for each in missing if not _is_there(directory, each)]


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


def _part(directory: Path, each: DatasetFile) -> Path:
    return directory / f".{each.name}{_PART}"


def _check_disk(context: Context, directory: Path, missing: Sequence[DatasetFile]) -> None:
    needed = sum(each.bytes or 0 for each in missing) + SPARE_DISK_BYTES
    free = context.system.free_bytes(directory)
    if needed > free:
        raise StepError(
            f"{directory}: the disk is too small: {needed} bytes needed, {free} free",
            remedy="raise node.root_volume.gib, or use a smaller dataset",
        )


def _accept(context: Context, directory: Path, copied: Sequence[DatasetFile]) -> list[str]:
    """Give each copied file that is what the index says its final name; remove the others, and say what is wrong."""
    shards = [each for each in copied if each.blake3 is not None]
    hashes = _blake3(context, directory, [_part(directory, each) for each in shards])
    found = dict(zip((each.name for each in shards), hashes))
    wrong: list[str] = []
    for each in copied:
        part = _part(directory, each)
        size = part.stat().st_size
        if each.bytes is not None and size != each.bytes:
            wrong.append(f"{each.name}: {size} bytes, the index says {each.bytes}")
        elif each.blake3 is not None and found[each.name] != each.blake3:
            wrong.append(f"{each.name}: BLAKE3 {found[each.name]}, the index says {each.blake3}")
        elif each.sha256 is not None and hashlib.sha256(part.read_bytes()).hexdigest() != each.sha256:
            wrong.append(f"{each.name}: has not the SHA-256 of the index, {each.sha256}")
        else:
            part.rename(directory / each.name)
            continue
        part.unlink()
    return wrong


def _blake3(context: Context, directory: Path, paths: Sequence[Path]) -> list[str]:
    """Return the BLAKE3 of each file: here when this interpreter has the library, else in the training interpreter."""
    try:
        from blake3 import blake3
    except ImportError:
        return _blake3_elsewhere(context, directory, paths)
    try:
        return [blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest() for path in paths]
    except OSError as error:
        raise StepError(f"{directory}: cannot be read ({_reason(error)})", remedy="check the disk") from error


def _blake3_elsewhere(context: Context, directory: Path, paths: Sequence[Path]) -> list[str]:
    listing = directory / ".to-hash.json"
    context.system.write_atomic(listing, json.dumps([str(path) for path in paths]))
    try:
        answer = context.system.run(
            [find_interpreter(context), "-c", _HASHER, str(listing)],
            timeout_seconds=context.node.supervise.boot_timeout_seconds,
        )
    except CommandError as error:
        raise StepError.from_command(
            error,
            message="the dataset's hashes cannot be computed",
            remedy="install blake3 for the training interpreter (and name it in node.python.packages)",
        ) from error
    finally:
        listing.unlink(missing_ok=True)
    return answer.split()


def _reason(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, "error") + ": " + str(error)
