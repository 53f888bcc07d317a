"""Downloads objects from S3. The parallelism depends on the object sizes and the number of cores.

s5cmd downloads the small objects. It cannot resume within an object, so `large` downloads the large objects.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bootstrap.context import Context
from bootstrap.errors import CommandError, StepError
from bootstrap.fetch.large import Finished, LargeObject, download_large
from bootstrap.interpreter import find_tool

MIB = 1024**2
SPARE_DISK_BYTES = 256 * MIB
# S3 serves 85 to 90 MB/s per request, after up to 200 ms, and recommends parallel ranges of 8 to 16 MB.
# Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance-guidelines.html (2026-11).
REQUESTS_PER_CORE = 16
MIN_REQUESTS, MAX_REQUESTS = 64, 256
PART_MIB = 8
SINGLE_REQUEST_MIB = 16
"""Maximum size of an object that is downloaded in one request."""
LARGE_BYTES = 64 * MIB
"""Minimum size of an object that `large` downloads. At this size, its start-up time of 0.1 s is negligible."""


@dataclass(frozen=True)
class Settings:
    """Settings for s5cmd: `workers` objects at a time, each in `parts` requests of `part_mib`."""

    workers: int
    parts: int
    part_mib: int


def settings_for(largest_bytes: int, count: int, cores: int) -> Settings:
    """Return the settings for `count` objects of at most `largest_bytes` each."""
    requests = min(max(cores * REQUESTS_PER_CORE, MIN_REQUESTS), MAX_REQUESTS)
    if largest_bytes <= SINGLE_REQUEST_MIB * MIB:
        return Settings(min(requests, count), 1, SINGLE_REQUEST_MIB)
    parts = min(-(-largest_bytes // (PART_MIB * MIB)), max(requests // count, 4), requests)
    return Settings(max(1, min(requests // parts, count)), parts, PART_MIB)


def download_objects(
    context: Context,
    source: str,
    objects: Mapping[str, int | None],
    directory: Path,
    suffix: str,
    hashed: Mapping[str, bool],
    finished: Finished,
) -> None:
    """Download objects under an s3:// URL to hidden files: a dot, the name of the object, and a suffix.

    Args:
        context: The context of the step.
        source: The URL, without a trailing slash.
        objects: Object sizes by name, with None for unknown sizes.
        directory: Destination.
        suffix: Suffix of the file names.
        hashed: Whether to hash a large object while it downloads, by name.
        finished: Called for each large object.

    Raises:
        StepError: A download failed, or the disk is full.
    """
    bucket, _, prefix = source.removeprefix("s3://").partition("/")
    large = [
        LargeObject(f"{prefix}/{name}", f".{name}{suffix}", size, hashed[name])
        for name, size in objects.items()
        if size is not None and size >= LARGE_BYTES
    ]
    if large:
        download_large(context, bucket, large, directory, finished)
    others = {name: size or 0 for name, size in objects.items() if (size or 0) < LARGE_BYTES}
    small = [name for name, size in others.items() if size <= SINGLE_REQUEST_MIB * MIB]
    medium = [name for name, size in others.items() if size > SINGLE_REQUEST_MIB * MIB]
    for names in (medium, small):
        if names:
            largest = max(others[name] for name in names)
            _run(context, source, names, settings_for(largest, len(names), os.cpu_count() or 1), directory, suffix)


def download_tree(context: Context, source: str, directory: Path, on_tick: Callable[[], None] | None = None) -> None:
    """Download all objects under an s3:// URL to a directory, keeping their paths. For `on_tick`, see `System.run`.

    Raises:
        StepError: s5cmd failed, or the disk is full.
    """
    options = ["--concurrency", "4", "--part-size", str(PART_MIB), "--source-region", context.node.region]
    arguments = ["--numworkers", str(MIN_REQUESTS), "cp", *options, f"{source}/*", f"{directory}/"]
    _s5cmd(context, source, arguments, directory, on_tick)


def _run(context: Context, source: str, names: list[str], settings: Settings, directory: Path, suffix: str) -> None:
    options = f"--concurrency {settings.parts} --part-size {settings.part_mib} --source-region {context.node.region}"
    lines = [
        f"cp --raw {options} {shlex.quote(f'{source}/{name}')} {shlex.quote(str(directory / f'.{name}{suffix}'))}"
        for name in names
    ]
    commands = directory / ".s5cmd-commands"
    context.system.write_atomic(commands, "\n".join(lines) + "\n")
    try:
        _s5cmd(context, source, ["--numworkers", str(settings.workers), "run", str(commands)], directory)
    finally:
        commands.unlink(missing_ok=True)


def _s5cmd(
    context: Context,
    source: str,
    arguments: Sequence[str],
    directory: Path,
    on_tick: Callable[[], None] | None = None,
) -> None:
    environment = {"AWS_REGION": context.node.region}
    inherited = context.system.environment()
    endpoint = inherited.get("AWS_ENDPOINT_URL_S3") or inherited.get("AWS_ENDPOINT_URL")
    if endpoint and "S3_ENDPOINT_URL" not in inherited:
        environment["S3_ENDPOINT_URL"] = endpoint
    s5cmd = find_tool(context, "s5cmd")
    try:
        context.system.run(
            [s5cmd, "--log", "error", *arguments],
            timeout_seconds=context.node.supervise.boot_timeout_seconds,
            environment=environment,
            on_tick=on_tick,
        )
    except CommandError as error:
        full = "no space left" in error.output_tail or context.system.free_bytes(directory) < SPARE_DISK_BYTES // 8
        raise StepError.from_command(
            error,
            message=f"{directory}: the disk is full" if full else f"{source}: cannot download",
            remedy="raise node.root_volume.gib, or use a smaller dataset"
            if full
            else "see the output of s5cmd: it must be installed, and the node's role must be able to read the dataset",
        ) from error
