"""Copies objects from S3 with s5cmd, with as many requests at a time as their sizes and the machine's cores ask for."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bootstrap.errors import CommandError, StepError
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
    context: Context, source: str, objects: Mapping[str, int | None], directory: Path, suffix: str
) -> None:
    """Copy objects from below an s3:// URL to hidden files with a suffix; their sizes are None where not known.

    Raises:
        StepError: s5cmd fails, or the disk is full.
    """
    small = [name for name, size in objects.items() if (size or 0) <= WHOLE_MIB * MIB]
    large = [name for name in objects if name not in set(small)]
    for names in (large, small):
        if names:
            largest = max(objects[name] or 0 for name in names)
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
