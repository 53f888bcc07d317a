"""``python -m training checkpoint``: one function an action. Each returns the exit code and says what it did."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict

from pydantic import ValidationError

from training.checkpoint import tool_moving
from training.checkpoint.backend import Backend, open_backend, tiers_of
from training.checkpoint.cold_storage import archived_chunks, movable_chunks, move, on_s3, restore
from training.checkpoint.diff import Difference, bytes_to_compare, compare
from training.checkpoint.gc import CollectionPlan, GarbageCollector
from training.checkpoint.inspection import (
    Verifier,
    damaged_among_newest,
    describe,
    describe_checkpoints,
    describe_near,
    readable,
    unique_bytes,
)
from training.checkpoint.presentation import Presenter, size
from training.checkpoint.retention import LEAST_KEPT, Retention
from training.checkpoint.selection import Address, select
from training.checkpoint.store import Listed, list_checkpoints
from training.checkpoint.tags import put_tag, remove_tag
from training.checkpoint.transfer import open_log
from training.config import CheckpointConfig
from training.errors import ConfigurationError, CorruptCheckpointError, NotFoundError

DONE, FOUND_WANTING = 0, 1


def run_checkpoint(options: argparse.Namespace) -> int:
    """Carry out a parsed ``checkpoint`` command; return the exit code.

    Raises:
        TrainingError: it cannot be done; the reason is in words.
    """
    presenter = Presenter(options.json)
    try:
        return _ACTIONS[options.action](options, presenter)
    except (NotFoundError, CorruptCheckpointError) as error:
        presenter.remark(str(error))
        return FOUND_WANTING


def _ls(options: argparse.Namespace, presenter: Presenter) -> int:
    backend = open_backend(options.store)
    described = [each for each in describe_checkpoints(backend) if _is_shown(each, options.all)]
    presenter.result(described)
    tiers = tiers_of(backend) if len(tiers_of(backend)) > 1 else ()
    columns = [f"in {tier.url}" for tier in tiers]
    presenter.table(
        [
            "step",
            "entry",
            "generation",
            "committed",
            "size",
            "added",
            "val. loss",
            "reason",
            "tags",
            *columns,
            "condition",
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
    near = describe_near(backend)
    if near is not None:
        presenter.remark(
            f"step {near['step']} is in {near['store']} and not durable yet: {size(near['bytes'])}, the shares of "
            f"{near['shares']} of {near['world_size']} ranks"
        )
    if any(each["condition"] == "whole" for each in described):
        return DONE
    presenter.remark(f"{options.store}: has no whole checkpoint")
    return FOUND_WANTING


def _share(held_bytes: int | None, stored_bytes: int | None) -> str:
    """How much of a checkpoint a tier has."""
    if held_bytes is None or not stored_bytes:
        return "-"
    return "all" if held_bytes == stored_bytes else f"{size(held_bytes)} of {size(stored_bytes)}"


def _is_shown(described: dict[str, object], all_of_them: bool) -> bool:
    return all_of_them or described["condition"] != "collected"


def _show(options: argparse.Namespace, presenter: Presenter) -> int:
    selected = select(options.checkpoint)
    described = describe(selected)
    presenter.result(described)
    presenter.say(selected.title)
    for key in ("position", "generation", "world_size", "precision", "device_type", "torch_version", "config_digest"):
        presenter.say(f"  {key.replace('_', ' ')}: {described[key]}")
    for key in ("subject", "validation", "config", "extra", "tags"):
        if described[key]:
            presenter.say(f"  {key}: {described[key]}")
    for tier, stored_bytes in described["stored_bytes_by_tier"].items():
        presenter.say(f"  stored in {tier}: {size(stored_bytes)}")
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
            presenter.say(f"{title}: {problem}")
        if not each.problems:
            presenter.say(f"{title}: every chunk is there and has its hash")
    if not verified:
        presenter.remark(f"{options.checkpoint}: has no checkpoint")
    return DONE if verified and not any(each.problems for each in verified) else FOUND_WANTING


def _chosen(text: str) -> list[Listed]:
    """The checkpoint of an address, or all that still have their manifest if it names none."""
    if "#" in text:
        selected = select(text)
        return [Listed(selected.entry, selected.manifest, [])]
    return list(readable(open_backend(text)))


def _diff(options: argparse.Namespace, presenter: Presenter) -> int:
    first, second = select(options.first), select(options.second)
    with presenter.progress("read", bytes_to_compare(first, second)) as report:
        found = compare(first, second, report)
    presenter.result({**asdict(found), "equal_state": found.is_empty})
    presenter.say(f"A: {first.title}\nB: {second.title}")
    _say_difference(found, presenter)
    return DONE if found.is_empty else FOUND_WANTING


def _say_difference(found: Difference, presenter: Presenter) -> None:
    for path, (before, after) in found.fields.items():
        presenter.say(f"  {path}: {before!r} -> {after!r}")
    for name in found.only_first:
        presenter.say(f"  {name}: only in A")
    for name in found.only_second:
        presenter.say(f"  {name}: only in B")
    for name, (before, after) in found.forms.items():
        presenter.say(f"  {name}: {before} -> {after}")
    presenter.table(
        ["changed tensor", "largest difference", "relative"],
        [[change.name, f"{change.largest:.3g}", f"{change.relative:.3g}"] for change in found.changes],
    )
    presenter.say(
        f"{len(found.equal)} tensors are equal, {len(found.changes)} changed; of B's {size(found.bytes)}, "
        f"{size(found.shared_bytes)} are chunks that A has too"
    )


def _tag(options: argparse.Namespace, presenter: Presenter) -> int:
    address = Address.parse(options.checkpoint)
    if options.remove:
        if "#" in options.checkpoint:
            raise ConfigurationError([f"{options.checkpoint}: a tag is removed by its name alone; drop what follows #"])
        remove_tag(open_backend(address.url), options.name)
        presenter.result({"removed": options.name})
        presenter.say(f"{address.url}: tag {options.name} is removed")
        return DONE
    selected = select(options.checkpoint)
    put_tag(selected.backend, options.name, selected.entry)
    presenter.result({"tag": options.name, "step": selected.entry.step, "entry": selected.entry.sequence})
    presenter.say(f"{selected.title} is kept as {options.name}")
    return DONE


def _gc(options: argparse.Namespace, presenter: Presenter) -> int:
    backend = open_backend(options.store)
    retention = _retention(options, backend)
    if options.exclusive and not options.dry_run:
        epoch = open_log(backend).epoch
        collector = GarbageCollector(backend, retention)
    else:
        collector = GarbageCollector(backend, retention)
        epoch = collector.ended_epoch() if not options.exclusive else collector.newest_sequence()
    distrusted: set[int] = set()
    if not options.trust:
        with presenter.progress("verified", sum(map(unique_bytes, _newest_whole(backend)))) as report:
            distrusted = damaged_among_newest(backend, LEAST_KEPT, report)
    plan = collector.plan(epoch, distrusted) if options.dry_run else collector.collect(epoch, distrusted)
    _say_collection(plan, distrusted, options.dry_run, presenter)
    return DONE


def _retention(options: argparse.Namespace, backend: Backend) -> Retention:
    """What the options say, or else the config of the newest checkpoint."""
    given = {
        name: getattr(options, name)
        for name in ("keep_last", "keep_best", "keep_every_hours")
        if getattr(options, name) is not None
    }
    if given:
        return Retention(**given)
    for listed in list_checkpoints(backend):
        if listed.manifest is None:
            continue
        try:
            config = CheckpointConfig.model_validate(listed.manifest.config["checkpoint"])
        except (KeyError, ValidationError) as error:
            raise ConfigurationError(
                [f"{backend.url}: its newest checkpoint does not say what to keep; give --keep-last and the like"]
            ) from error
        return Retention(config.keep_last, config.keep_best, config.keep_every_hours)
    return Retention()


def _newest_whole(backend: Backend) -> list[Listed]:
    whole = (listed for listed in list_checkpoints(backend) if listed.is_whole)
    return [listed for listed, _ in zip(whole, range(LEAST_KEPT))]


def _say_collection(plan: CollectionPlan, distrusted: set[int], dry_run: bool, presenter: Presenter) -> None:
    presenter.result(
        {
            "kept": [{"entry": sequence, "reasons": reasons} for sequence, reasons in plan.kept.items()],
            "dropped": [{"entry": entry.sequence, "step": entry.step} for entry in plan.dropped],
            "damaged": sorted(distrusted),
            "deleted_chunks": len(plan.garbage),
            "left_chunks": plan.left,
            "dry_run": dry_run,
        }
    )
    for sequence, reasons in plan.kept.items():
        presenter.say(f"keep entry {sequence}: {', '.join(reasons)}")
    for sequence in sorted(distrusted):
        presenter.say(f"entry {sequence} is damaged and does not count")
    for entry in plan.dropped:
        presenter.say(f"{'would drop' if dry_run else 'dropped'} entry {entry.sequence}: step {entry.step}")
    presenter.say(f"{len(plan.garbage)} chunks {'would be' if dry_run else 'were'} deleted")
    if plan.left:
        presenter.say(
            f"{plan.left} more chunks that nothing kept needs are of the newest start of the run, which may go on: "
            "it deletes them itself, or --exclusive does when it has ended"
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
    presenter.say(f"{len(moved)} chunks of {size(total)} {verb} in {options.storage_class}")
    return DONE


def _restore(options: argparse.Namespace, presenter: Presenter) -> int:
    if options.days < 1:
        raise ConfigurationError([f"--days: {options.days}: is a number of days; give 1 or more"])
    selected = select(options.checkpoint)
    archived = archived_chunks(selected)
    total = sum(each.bytes for each in archived.values())
    if not options.dry_run:
        with presenter.progress("asked for", total) as report:
            restore(on_s3(selected.backend), archived, options.days, options.tier, report)
    presenter.result({"chunks": len(archived), "bytes": total, "dry_run": options.dry_run})
    verb = "would be" if options.dry_run else "are being"
    presenter.say(f"{len(archived)} archived chunks of {size(total)} {verb} made readable for {options.days} days")
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
    "pull": tool_moving.pull,
    "push": tool_moving.push,
    "export": tool_moving.export,
    "import": tool_moving.import_,
}
