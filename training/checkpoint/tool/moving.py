"""Checkpoint tool actions that copy checkpoints into and out of stores."""

from __future__ import annotations

import argparse

from training.checkpoint.selection import Selected, select
from training.checkpoint.storage.urls import open_backend
from training.checkpoint.store import list_checkpoints
from training.checkpoint.tool.export import Contents, export_bytes, export_file, file_bytes, import_file
from training.checkpoint.tool.presentation import Presenter, size
from training.checkpoint.tool.transfer import plan_transfer, require_no_run, transfer
from training.errors import ConfigurationError

DONE, PROBLEM_FOUND = 0, 1


def pull(options: argparse.Namespace, presenter: Presenter) -> int:
    """Copy checkpoints to a directory."""
    if "://" in options.destination:
        raise ConfigurationError([f"{options.destination}: not a directory; use `push` to copy to a bucket"])
    return push(options, presenter)


def push(options: argparse.Namespace, presenter: Presenter) -> int:
    """Copy checkpoints to any store."""
    destination = open_backend(options.destination)
    if not options.take_over:
        require_no_run(destination)
    wanted = _all_complete(options.checkpoint) if options.all else [select(options.checkpoint)]
    plan = plan_transfer(wanted, destination)
    if not options.dry_run:
        with presenter.progress("copied", plan.plain_bytes) as report:
            transfer(plan, destination, report)
    presenter.result(
        {
            "steps": [selected.entry.step for selected in plan.checkpoints],
            "chunks": len(plan.missing),
            "reused_chunks": len(plan.reused),
            "bytes": plan.missing_bytes,
            "dry_run": options.dry_run,
        }
    )
    for selected in plan.checkpoints:
        presenter.print(f"{'would copy' if options.dry_run else 'copied'} {selected.title}")
    if not wanted:
        presenter.note(f"{options.checkpoint}: no complete checkpoint")
    elif not plan.checkpoints:
        presenter.print(f"{options.destination} already has it")
    else:
        presenter.print(
            f"{len(plan.missing)} chunks, {size(plan.missing_bytes)}; {len(plan.reused)} chunks already existed"
        )
    return DONE if wanted else PROBLEM_FOUND


def export(options: argparse.Namespace, presenter: Presenter) -> int:
    """Export a checkpoint to a safetensors file."""
    selected = select(options.checkpoint)
    contents: Contents = "state" if options.state else "weights"
    total = export_bytes(selected, contents)
    if not options.dry_run:
        with presenter.progress("read", total) as report:
            export_file(selected, options.file, contents, options.overwrite, report)
    presenter.result({"file": str(options.file), "contents": contents, "bytes": total, "dry_run": options.dry_run})
    verb = "would write" if options.dry_run else "wrote"
    presenter.print(f"{verb} {options.file}: the {contents} of {selected.title}, {size(total)}")
    return DONE


def import_(options: argparse.Namespace, presenter: Presenter) -> int:
    """Import a checkpoint from a safetensors file."""
    destination = open_backend(options.store)
    total = file_bytes(options.file)
    if not options.take_over:
        require_no_run(destination)
    with presenter.progress("stored", total) as report:
        entry = import_file(options.file, destination, report)
    presenter.result({"step": entry.step, "entry": entry.sequence, "written_bytes": entry.written_bytes})
    presenter.print(f"{options.file} is entry {entry.sequence} of {destination.url}: step {entry.step}")
    return DONE


def _all_complete(url: str) -> list[Selected]:
    """Return a store's complete checkpoints, oldest first."""
    if "#" in url:
        raise ConfigurationError([f"{url}: selects one checkpoint, but --all copies all; remove # or --all"])
    backend = open_backend(url)
    complete = [
        Selected(backend, listed.entry, listed.manifest)
        for listed in list_checkpoints(backend)
        if listed.is_complete and listed.manifest is not None
    ]
    return complete[::-1]
