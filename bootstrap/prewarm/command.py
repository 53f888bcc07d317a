"""`python -m bootstrap prewarm`: reads the blocks of a dataset once, in the order of its index.

One line of JSON goes to standard output: when the first of them have been read, or when that cannot be. What happens
later is told by events only.
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

from bootstrap.boot import attach_shipper, make_context, read_node_document
from bootstrap.dataset_index import INDEX, index_files
from bootstrap.errors import BootstrapError, MetadataError
from bootstrap.layout import Layout
from bootstrap.plan import Context
from bootstrap.prewarm.extents import plan_pieces
from bootstrap.prewarm.reader import Prewarm, Progress
from bootstrap.steps.disks import list_disks, source_of
from bootstrap.system import System

logger = logging.getLogger(__name__)

MIB = 1024**2
FLUSH_SECONDS = 10.0
# File systems whose extents are places of the one disk that they are on.
_ON_ONE_DISK = ("ext4", "xfs")


def prewarm(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    problems = [
        f"--{name}: {value}: must be more than 0; give another number"
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
        _say({"problem": str(error)})
        return 1
    try:
        context.identity = context.metadata.identity()
        context.events.set_instance(context.identity.instance_id)
    except MetadataError as error:
        logger.warning("%s", error)
    shipper = attach_shipper(context)
    try:
        return _locked(context, options)
    except (BootstrapError, OSError) as error:
        context.events.emit("prewarm", state="failed", dataset=options.directory.name, message=str(error))
        _say({"problem": str(error)})
        return 1
    finally:
        if shipper is not None:
            shipper.close(FLUSH_SECONDS)


def _locked(context: Context, options: argparse.Namespace) -> int:
    """Read, unless another process reads the same dataset."""
    state = context.layout.state / f"prewarm-{options.directory.name}.json"
    state.parent.mkdir(parents=True, exist_ok=True)
    with state.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say({"state": "another process reads it"})
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

    def tell(state_name: str, progress: Progress) -> None:
        remaining = progress.remaining_seconds
        context.events.emit(
            "prewarm",
            state=state_name,
            dataset=directory.name,
            bytes_done=progress.bytes_done,
            bytes_total=progress.bytes_total,
            mib_per_second=round(progress.bytes_per_second / MIB, 1),
            remaining_seconds=round(remaining, 1) if remaining is not None else None,
        )

    def first(progress: Progress) -> None:
        tell("first_read", progress)
        _say({"state": "first_read"})

    reads = str(device) if device is not None else "files"
    total, resumed = work.bytes_total, work.resumed_bytes
    context.events.emit(
        "prewarm", state="started", dataset=directory.name, bytes_done=resumed, bytes_total=total, reads=reads
    )
    whole = work.run(
        first_bytes=options.first_mib * MIB, on_first=first, on_progress=lambda progress: tell("progress", progress)
    )
    context.events.emit("prewarm", state="finished" if whole else "stopped", dataset=directory.name)
    return 0


def _disk(context: Context, directory: Path) -> tuple[Path | None, str]:
    """Return the device that a directory is on, where extents can be read from it, and the serial of its disk."""
    source, kind = source_of(context, directory)
    if kind not in _ON_ONE_DISK or not source.is_block_device():
        return None, str(source)
    try:
        os.close(os.open(source, os.O_RDONLY))
    except PermissionError:  # no root, or a container without its devices: the files can be read
        return None, str(source)
    serials = [disk.serial for disk in list_disks(context) if disk.name == source.resolve().name]
    return source, serials[0] if serials else str(source)


def _say(answer: dict[str, str]) -> None:
    with contextlib.suppress(BrokenPipeError):  # who waited has its line, and waits no more
        os.write(sys.stdout.fileno(), json.dumps(answer).encode() + b"\n")
