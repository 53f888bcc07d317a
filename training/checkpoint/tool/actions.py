"""The actions of ``python -m training checkpoint``. Each action prints its result and returns the exit code."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict, fields

from pydantic import ValidationError

from training.checkpoint.address import Address
from training.checkpoint.gc import CollectionPlan, GarbageCollector
from training.checkpoint.retention import MIN_KEPT, Retention
from training.checkpoint.selection import open_existing, select
from training.checkpoint.storage.backend import Backend, tiers_of
from training.checkpoint.storage.urls import open_backend
from training.checkpoint.store import Listed, list_checkpoints
from training.checkpoint.tags import put_tag, remove_tag
from training.checkpoint.tool import moving
from training.checkpoint.tool.archive import archived_chunks, movable_chunks, move, on_s3, restore
from training.checkpoint.tool.diff import Difference, bytes_to_compare, compare
from training.checkpoint.tool.inspection import (
    Verifier,
    damaged_among_newest,
    describe,
    describe_checkpoints,
    describe_local,
    readable,
    unique_bytes,
)
from training.checkpoint.tool.moving import DONE, PROBLEM_FOUND
from training.checkpoint.tool.presentation import Presenter, size
from training.checkpoint.tool.transfer import open_log
from training.config import CheckpointConfig
from training.errors import ConfigurationError, CorruptCheckpointError, NotFoundError


def run_checkpoint(options: argparse.Namespace) -> int:
    """Run a parsed ``checkpoint`` command; return the exit code.

    Raises:
        TrainingError: The command failed.
    """
    presenter = Presenter(options.json)
    try:
        return _ACTIONS[options.action](options, presenter)
    except (NotFoundError, CorruptCheckpointError) as error:
        presenter.note(str(error))
        return PROBLEM_FOUND


def _ls(options: argparse.Namespace, presenter: Presenter) -> int:
    backend = open_existing(options.store)
    described = [each for each in describe_checkpoints(backend) if _is_shown(each, options.all)]
    presenter.result(described)
    tiers = tiers_of(backend) if len(tiers_of(backend)) > 1 else ()
    columns = [f"in {tier.url}" for tier in tiers]
    presenter.table(
        [
            *("step", "entry", "generation", "committed", "size", "added", "val. loss", "reason", "tags"),
            *(*columns, "condition"),
        ],
        [
            [
                *(str(each["step"]), str(each["entry"]), str(each["generation"]), each["committed"]),
                *(size(each["bytes"]), size(each["written_bytes"])),
                "-" if each["validation_loss"] is None else f"{each['validation_loss']:.4f}",
                *(each["reason"] or "", " ".join(each["tags"])),
                *(_share(each["stored_bytes_by_tier"].get(tier.url), each["stored_bytes"]) for tier in tiers),
                each["condition"]
                + (f": {each['missing_chunks']} chunks missing" if each["condition"] == "damaged" else ""),
            ]
            for each in described
        ],
    )
    local = describe_local(backend)
    if local is not None:
        presenter.note(
            f"step {local['step']} is in {local['store']} but not durable yet: {size(local['bytes'])} in the shares of "
            f"{local['shares']} of {local['world_size']} ranks"
        )
    if any(each["condition"] == "complete" for each in described):
        return DONE
    presenter.note(f"{options.store}: no complete checkpoint")
    return PROBLEM_FOUND


def _share(held_bytes: int | None, stored_bytes: int | None) -> str:
    """Format the part of a checkpoint that is in a tier."""
    if held_bytes is None or not stored_bytes:
        return "-"
    return "all" if held_bytes == stored_bytes else f"{size(held_bytes)} of {size(stored_bytes)}"


def _is_shown(described: dict[str, object], all_of_them: bool) -> bool:
    return all_of_them or described["condition"] != "collected"


def _show(options: argparse.Namespace, presenter: Presenter) -> int:
    selected = select(options.checkpoint)
    described = describe(selected)
    presenter.result(described)
    presenter.print(selected.title)
    for key in ("position", "generation", "world_size", "precision", "device_type", "torch_version", "config_digest"):
        presenter.print(f"  {key.replace('_', ' ')}: {described[key]}")
    for key in ("subject", "validation", "config", "extra", "tags"):
        if described[key]:
            presenter.print(f"  {key}: {described[key]}")
    for tier, stored_bytes in described["stored_bytes_by_tier"].items():
        presenter.print(f"  stored in {tier}: {size(stored_bytes)}")
    presenter.table(
        ["tensor", "type", "shape", "size"],
        [
            [name, tensor["dtype"], str(tensor["shape"]), size(tensor["bytes"])]
            for name, tensor in described["tensors"].items()
        ],
    )
    return DONE


def _verify(options: argparse.Namespace, presenter: Presenter) -> int:
    chosen = _chosen(options.checkpoint)
    with presenter.progress("verified", sum(map(unique_bytes, chosen))) as report:
        backend = open_backend(Address.parse(options.checkpoint).url)
        verifier = Verifier(backend, report)
        verified = [verifier.verify(listed) for listed in chosen]
    presenter.result(
        [{"step": each.entry.step, "entry": each.entry.sequence, "problems": each.problems} for each in verified]
    )
    for each in verified:
        title = f"step {each.entry.step} (entry {each.entry.sequence})"
        for problem in each.problems:
            presenter.print(f"{title}: {problem}")
        if not each.problems:
            presenter.print(f"{title}: every chunk exists and matches its hash")
    if not verified:
        presenter.note(f"{options.checkpoint}: no checkpoint")
    return DONE if verified and not any(each.problems for each in verified) else PROBLEM_FOUND


def _chosen(text: str) -> list[Listed]:
    """Return an address's checkpoint or, if it does not select one, all checkpoints with a manifest."""
    if "#" in text:
        selected = select(text)
        return [Listed(selected.entry, selected.manifest, [])]
    return list(readable(open_backend(text)))


def _diff(options: argparse.Namespace, presenter: Presenter) -> int:
    first, second = select(options.first), select(options.second)
    with presenter.progress("read", bytes_to_compare(first, second)) as report:
        found = compare(first, second, report)
    presenter.result({**asdict(found), "equal_state": found.is_empty})
    presenter.print(f"A: {first.title}\nB: {second.title}")
    _print_difference(found, presenter)
    return DONE if found.is_empty else PROBLEM_FOUND


def _print_difference(found: Difference, presenter: Presenter) -> None:
    for path, (before, after) in found.fields.items():
        presenter.print(f"  {path}: {before!r} -> {after!r}")
    for name in found.only_first:
        presenter.print(f"  {name}: only in A")
    for name in found.only_second:
        presenter.print(f"  {name}: only in B")
    for name, (before, after) in found.forms.items():
        presenter.print(f"  {name}: {before} -> {after}")
    presenter.table(
        ["changed tensor", "largest difference", "relative"],
        [[change.name, f"{change.largest:.3g}", f"{change.relative:.3g}"] for change in found.changes],
    )
    presenter.print(
        f"{len(found.equal)} tensors are equal, {len(found.changes)} changed; of B's {size(found.bytes)}, "
        f"{size(found.shared_bytes)} are in chunks that A also has"
    )


def _tag(options: argparse.Namespace, presenter: Presenter) -> int:
    address = Address.parse(options.checkpoint)
    if options.remove:
        if "#" in options.checkpoint:
            raise ConfigurationError([f"{options.checkpoint}: --remove takes a tag name; omit # and the text after it"])
        remove_tag(open_backend(address.url), options.name)
        presenter.result({"removed": options.name})
        presenter.print(f"{address.url}: removed tag {options.name}")
        return DONE
    selected = select(options.checkpoint)
    put_tag(selected.backend, options.name, selected.entry)
    presenter.result({"tag": options.name, "step": selected.entry.step, "entry": selected.entry.sequence})
    presenter.print(f"tagged {selected.title} as {options.name}")
    return DONE


def _gc(options: argparse.Namespace, presenter: Presenter) -> int:
    backend = open_backend(options.store)
    retention = _retention(options, backend)
    if options.exclusive and not options.dry_run:
        fence = open_log(backend).fence
        collector = GarbageCollector(backend, retention)
    else:
        collector = GarbageCollector(backend, retention)
        fence = collector.ended_fence() if not options.exclusive else collector.newest_sequence()
    damaged: set[int] = set()
    if not options.trust:
        with presenter.progress("verified", sum(map(unique_bytes, _newest_complete(backend)))) as report:
            damaged = damaged_among_newest(backend, MIN_KEPT, report)
    plan = collector.plan(fence, damaged) if options.dry_run else collector.collect(fence, damaged)
    _print_collection(plan, damaged, options.dry_run, presenter)
    return DONE


def _retention(options: argparse.Namespace, backend: Backend) -> Retention:
    """Return the rules from the options or, if there are none, from the newest checkpoint's config."""
    if any(getattr(options, rule.name) is not None for rule in fields(Retention)):
        return Retention.from_settings(options)
    for listed in list_checkpoints(backend):
        if listed.manifest is None:
            continue
        try:
            config = CheckpointConfig.model_validate(listed.manifest.config["checkpoint"])
        except (KeyError, ValidationError) as error:
            raise ConfigurationError(
                [f"{backend.url}: the newest checkpoint has no retention rules in its config; use a --keep option"]
            ) from error
        return Retention.from_settings(config)
    return Retention()


def _newest_complete(backend: Backend) -> list[Listed]:
    complete = (listed for listed in list_checkpoints(backend) if listed.is_complete)
    return [listed for listed, _ in zip(complete, range(MIN_KEPT), strict=False)]


def _print_collection(plan: CollectionPlan, damaged: set[int], dry_run: bool, presenter: Presenter) -> None:
    presenter.result(
        {
            "kept": [{"entry": sequence, "reasons": reasons} for sequence, reasons in plan.kept.items()],
            "dropped": [{"entry": entry.sequence, "step": entry.step} for entry in plan.dropped],
            "damaged": sorted(damaged),
            "deleted_chunks": len(plan.garbage),
            "left_chunks": plan.left,
            "dry_run": dry_run,
        }
    )
    for sequence, reasons in plan.kept.items():
        presenter.print(f"keep entry {sequence}: {', '.join(reasons)}")
    for sequence in sorted(damaged):
        presenter.print(f"entry {sequence} is damaged and not counted")
    for entry in plan.dropped:
        presenter.print(f"{'would drop' if dry_run else 'dropped'} entry {entry.sequence}: step {entry.step}")
    presenter.print(f"{len(plan.garbage)} chunks {'would be' if dry_run else 'were'} deleted")
    if plan.left:
        presenter.print(
            f"{plan.left} more unneeded chunks belong to the newest start of the run, which deletes them itself if it "
            "is still training; after it has exited, use --exclusive to delete them"
        )


def _archive(options: argparse.Namespace, presenter: Presenter) -> int:
    selected = select(options.checkpoint) if "#" in options.checkpoint else None
    backend = on_s3(open_backend(Address.parse(options.checkpoint).url))
    moved = movable_chunks(backend, options.storage_class, selected.entry.sequence if selected else None)
    total = sum(each.bytes for each in moved.values())
    if not options.dry_run:
        with presenter.progress("moved", total) as report:
            move(backend, moved, options.storage_class, report)
    presenter.result({"chunks": len(moved), "bytes": total, "dry_run": options.dry_run})
    verb = "would be" if options.dry_run else "are"
    presenter.print(f"{len(moved)} chunks of {size(total)} {verb} in {options.storage_class}")
    return DONE


def _restore(options: argparse.Namespace, presenter: Presenter) -> int:
    if options.days < 1:
        raise ConfigurationError([f"--days: {options.days}: must be a number of days; use 1 or more"])
    selected = select(options.checkpoint)
    archived = archived_chunks(selected)
    total = sum(each.bytes for each in archived.values())
    if not options.dry_run:
        with presenter.progress("requested", total) as report:
            restore(on_s3(selected.backend), archived, options.days, options.tier, report)
    presenter.result({"chunks": len(archived), "bytes": total, "dry_run": options.dry_run})
    verb = "would be" if options.dry_run else "are being"
    presenter.print(f"{len(archived)} archived chunks of {size(total)} {verb} restored for {options.days} days")
    return DONE


_ACTIONS: dict[str, Callable[[argparse.Namespace, Presenter], int]] = {
    "ls": _ls,
    "show": _show,
    "verify": _verify,
    "diff": _diff,
    "tag": _tag,
    "gc": _gc,
    "archive": _archive,
    "restore": _restore,
    "pull": moving.pull,
    "push": moving.push,
    "export": moving.export,
    "import": moving.import_,
}
