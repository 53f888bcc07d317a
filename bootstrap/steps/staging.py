"""Boot step: the dataset, from S3 to the local disk, in parallel, incrementally, and verified.

s5cmd moves the bytes. A file gets its final name only after its hash was found right, so whatever has its final name
and size is good, and an interrupted staging goes on where it stopped.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import shlex
from collections.abc import Sequence
from pathlib import Path

from botocore.exceptions import ClientError

from bootstrap.aws import AWS_ERRORS
from bootstrap.dataset_index import INDEX, DatasetFile, index_files
from bootstrap.documents import RunDocument
from bootstrap.errors import CommandError, StepError
from bootstrap.plan import Context, Step
from bootstrap.steps.mounted_dataset import link_mounted_dataset
from bootstrap.steps.python_env import find_interpreter
from bootstrap.steps.warming import warm

logger = logging.getLogger(__name__)

# The index that the files in the directory belong to; INDEX itself is written when all of them are there.
_INDEX_OF_FILES = ".staging.json"
WORKERS = 32
PARTS_IN_FLIGHT = 16
PART_MIB = 16
SPARE_DISK_BYTES = 256 * 1024**2

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
    after = ("run_document", "local_disks", "volumes", "shared_storage")

    def act(self, context: Context) -> None:
        """Copy what is missing, unless a mounted volume or file system holds the dataset."""
        assert context.run is not None
        stage_dataset(context, context.run)

    def verify(self, context: Context) -> None:
        """Every file of the index is there with its size."""
        assert context.run is not None
        directory = context.layout.dataset(context.run.dataset)
        index = (directory / INDEX).read_text(encoding="utf-8")
        files = _to_stage(context.run, index_files(index, str(directory / INDEX)))
        wrong = [each.name for each in files if not _is_there(directory, each)]
        if wrong:
            raise StepError(
                f"{directory}: missing, or of another size, after staging: {', '.join(wrong)}",
                remedy="something else changes this directory; see what, and boot again",
            )


def stage_dataset(context: Context, run: RunDocument) -> None:
    """Bring the run's dataset to where `Layout.dataset` says; the index comes last.

    Raises:
        StepError: There is no such dataset, the disk is too small, or a file is not what the index says.
    """
    mounted = None if run.streams_dataset else link_mounted_dataset(context, run.dataset, INDEX)
    if mounted is not None:
        _use_mounted(context, mounted)
        return
    bucket, prefix = context.node.dataset_bucket, f"datasets/{run.dataset}"
    source = f"s3://{bucket}/{prefix}"
    directory = context.layout.dataset(run.dataset)
    index_text = _fetch_index(context, run.dataset)
    files = _to_stage(run, index_files(index_text, f"{source}/{INDEX}"))
    if context.system.read(directory / _INDEX_OF_FILES) != index_text:
        (directory / INDEX).unlink(missing_ok=True)
        for each in files:  # the same name and size do not mean the same bytes under another index
            (directory / each.name).unlink(missing_ok=True)
        context.system.write_atomic(directory / _INDEX_OF_FILES, index_text)
    missing = [each for each in files if not _is_there(directory, each)]
    if missing:
        _check_disk(context, directory, missing)
        _copy(context, source, directory, missing)
        _verify(context, source, directory, missing)
        for each in missing:
            _part(directory, each).rename(directory / each.name)
    logger.info("%s: %d files staged, %d were there", source, len(missing), len(files) - len(missing))
    context.system.write_atomic(directory / INDEX, index_text)


def _to_stage(run: RunDocument, files: Sequence[DatasetFile]) -> list[DatasetFile]:
    """Return what is copied: everything, or what is no shard where the trainer reads the shards from S3 itself."""
    return [each for each in files if each.blake3 is None or not run.streams_dataset]


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
    return directory / f".{each.name}.part"


def _check_disk(context: Context, directory: Path, missing: Sequence[DatasetFile]) -> None:
    for each in missing:  # what an earlier staging left is written over: it takes no further room
        _part(directory, each).unlink(missing_ok=True)
    needed = sum(each.bytes or 0 for each in missing) + SPARE_DISK_BYTES
    free = context.system.free_bytes(directory)
    if needed > free:
        raise StepError(
            f"{directory}: the disk is too small: {needed} bytes needed, {free} free",
            remedy="raise node.root_volume.gib, or use a smaller dataset",
        )


def _copy(context: Context, source: str, directory: Path, missing: Sequence[DatasetFile]) -> None:
    options = f"--concurrency {PARTS_IN_FLIGHT} --part-size {PART_MIB} --source-region {context.node.region}"
    lines = [
        f"cp --raw {options} {shlex.quote(f'{source}/{each.name}')} {shlex.quote(str(_part(directory, each)))}"
        for each in missing
    ]
    commands = directory / ".s5cmd-commands"
    context.system.write_atomic(commands, "\n".join(lines) + "\n")
    environment = {"AWS_REGION": context.node.region}
    given = context.system.environment()
    endpoint = given.get("AWS_ENDPOINT_URL_S3") or given.get("AWS_ENDPOINT_URL")
    if endpoint and "S3_ENDPOINT_URL" not in given:
        environment["S3_ENDPOINT_URL"] = endpoint
    command = ["s5cmd", "--log", "error", "--numworkers", str(WORKERS), "run", str(commands)]
    try:
        context.system.run(
            command, timeout_seconds=context.node.supervise.boot_timeout_seconds, environment=environment
        )
    except CommandError as error:
        full = "no space left" in error.output_tail or context.system.free_bytes(directory) < SPARE_DISK_BYTES // 8
        raise StepError.from_command(
            error,
            message=f"{directory}: the disk is full" if full else f"{source}: cannot be copied",
            remedy="raise node.root_volume.gib, or use a smaller dataset"
            if full
            else "see the last lines of s5cmd (on PATH? may the role read the dataset?), and boot again",
        ) from error
    finally:
        commands.unlink(missing_ok=True)


def _verify(context: Context, source: str, directory: Path, missing: Sequence[DatasetFile]) -> None:
    shards = [each for each in missing if each.blake3 is not None]
    hashes = _blake3(context, directory, [_part(directory, each) for each in shards])
    found = dict(zip((each.name for each in shards), hashes))
    wrong: list[str] = []
    for each in missing:
        part = _part(directory, each)
        size = part.stat().st_size
        if each.bytes is not None and size != each.bytes:
            wrong.append(f"{each.name}: {size} bytes, the index says {each.bytes}")
        elif each.blake3 is not None and found[each.name] != each.blake3:
            wrong.append(f"{each.name}: BLAKE3 {found[each.name]}, the index says {each.blake3}")
        elif each.sha256 is not None and hashlib.sha256(part.read_bytes()).hexdigest() != each.sha256:
            wrong.append(f"{each.name}: has not the SHA-256 of the index, {each.sha256}")
    if wrong:
        for each in missing:
            _part(directory, each).unlink(missing_ok=True)
        raise StepError(
            f"{source}: " + "; ".join(wrong),
            remedy="the dataset is damaged, or was written again during the copy: tokenize it again",
        )


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
