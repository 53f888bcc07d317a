"""`python -m bootstrap prewarm`: reads a dataset's blocks once, in index order.

Prints one line of JSON when the first blocks have been read or a failure occurs. Events report all later progress.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Literal

from bootstrap.context import FLUSH_SECONDS, Context, attach_shipper, identify, make_context, read_node_document
from bootstrap.datasets.index import INDEX, index_files
from bootstrap.disks.listing import list_disks, source_of
from bootstrap.errors import BootstrapError, MetadataError
from bootstrap.events.schema import Prewarm as PrewarmEvent
from bootstrap.layout import Layout
from bootstrap.prewarm.extents import plan_pieces
from bootstrap.prewarm.reader import Prewarm, Progress
from bootstrap.system import System

logger = logging.getLogger(__name__)

MIB = 1024**2
# File systems on a single disk. Their extents are offsets on that disk.
_ON_ONE_DISK = ("ext4", "xfs")


def prewarm(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    problems = [
        f"--{name}: {value}: must be more than 0"
        for name, value in (
            ("readers", options.readers),
            ("limit-mib-per-second", options.limit_mib_per_second),
            ("first-mib", options.first_mib),
        )
        if value is not None and value <= 0
    ]
    if problems:
        print("\n".join(problems), file=sys.stderr)
        return 2
    system = System()
    layout = Layout.from_environment(system.environment(), options.root)
    try:
        context = make_context(system, layout, read_node_document(system, layout))
    except BootstrapError as error:
        _print({"problem": str(error)})
        return 1
    try:
        identify(context)
    except MetadataError as error:
        logger.warning("%s", error)
    shipper = attach_shipper(context)
    try:
        return _locked(context, options)
    except (BootstrapError, OSError) as error:
        context.events.emit(PrewarmEvent("failed", options.directory.name, message=str(error)))
        _print({"problem": str(error)})
        return 1
    finally:
        if shipper is not None:
            shipper.close(FLUSH_SECONDS)


def _locked(context: Context, options: argparse.Namespace) -> int:
    """Run the pre-warm unless another process is pre-warming the same dataset."""
    state = context.layout.state / f"prewarm-{options.directory.name}.json"
    state.parent.mkdir(parents=True, exist_ok=True)
    with state.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _print({"state": "another process is running"})
            return 0
        return _read(context, options, state)


def _read(context: Context, options: argparse.Namespace, state: Path) -> int:
    directory: Path = options.directory
    index = directory / INDEX
    names = [each.name for each in index_files(index.read_text(encoding="utf-8"), str(index))]
    device, serial = _disk(context, directory)
    limit = options.limit_mib_per_second
    work = Prewarm(
        plan_pieces([directory / name for name in names], device),
        system=context.system,
        state=state,
        disk=serial,
        readers=options.readers,
        limit_bytes_per_second=limit * MIB if limit is not None else None,
    )
    signal.signal(signal.SIGTERM, lambda *_: work.stop())
    signal.signal(signal.SIGINT, lambda *_: work.stop())

    source = str(device) if device is not None else "files"

    def emit(state_name: Literal["first_read", "progress"], progress: Progress) -> None:
        remaining = progress.remaining_seconds
        context.events.emit(
            PrewarmEvent(
                state=state_name,
                dataset=directory.name,
                source=source,
                bytes_done=progress.bytes_done,
                bytes_total=progress.bytes_total,
                mib_per_second=round(progress.bytes_per_second / MIB, 1),
                remaining_seconds=round(remaining, 1) if remaining is not None else None,
            )
        )

    def on_first(progress: Progress) -> None:
        emit("first_read", progress)
        _print({"state": "first_read"})

    context.events.emit(PrewarmEvent("started", directory.name, source, work.resumed_bytes, work.bytes_total))
    complete = work.run(
        first_bytes=options.first_mib * MIB,
        on_first=on_first,
        on_progress=lambda progress: emit("progress", progress),
    )
    context.events.emit(PrewarmEvent("finished" if complete else "stopped", directory.name, source))
    return 0


def _disk(context: Context, directory: Path) -> tuple[Path | None, str]:
    """Return a directory's device (None if its extents cannot be read) and its disk's serial number."""
    source, kind = source_of(context, directory)
    if kind not in _ON_ONE_DISK or not source.is_block_device():
        return None, str(source)
    try:
        os.close(os.open(source, os.O_RDONLY))
    except PermissionError:  # not root, or in a container without the device: read the files instead
        return None, str(source)
    serials = [disk.serial for disk in list_disks(context) if disk.name == source.resolve().name]
    return source, serials[0] if serials else str(source)


def _print(answer: dict[str, str]) -> None:
    with contextlib.suppress(BrokenPipeError):  # the parent has read its line and closed the pipe
        os.write(sys.stdout.fileno(), json.dumps(answer).encode() + b"\n")
