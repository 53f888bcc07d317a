"""Arguments for ``python -m training checkpoint``. Every command imports this module, so importing it must be fast."""

from __future__ import annotations

import argparse
from pathlib import Path

from training.checkpoint.address import GRAMMAR

STORAGE_CLASSES = (
    "STANDARD",
    "STANDARD_IA",
    "ONEZONE_IA",
    "INTELLIGENT_TIERING",
    "GLACIER_IR",
    "GLACIER",
    "DEEP_ARCHIVE",
)
EXIT_CODES = """exit codes:
  0  success; for verify, no damage found; for diff, the states are equal
  1  the checkpoint does not exist or is damaged; for diff, the states differ
  2  invalid arguments, or the store rejected a request; see standard error
"""


def add_checkpoint_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the ``checkpoint`` command and its actions."""
    checkpoint = commands.add_parser(
        "checkpoint",
        help="inspect and clean up a checkpoint store, and copy checkpoints in and out",
        description=f"Inspect and clean up a checkpoint store, and copy checkpoints in and out. {GRAMMAR}",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = checkpoint.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_readers(actions)
    _add_keeping(actions)
    _add_movers(actions)


def _add(
    actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, summary: str, details: str = ""
) -> argparse.ArgumentParser:
    parser = actions.add_parser(
        name, help=summary, description=f"{summary[:1].upper()}{summary[1:]}. {details}", epilog=GRAMMAR
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document to standard output, for scripts")
    return parser


def _add_readers(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    ls = _add(
        actions, "ls", "list a store's checkpoints", "Contents are not read: `complete` means that all chunks exist."
    )
    ls.add_argument("store", metavar="URL")
    ls.add_argument("--all", action="store_true", help="include checkpoints collected by retention")
    show = _add(actions, "show", "describe one checkpoint: the run's position, its config, and its tensors")
    show.add_argument("checkpoint", metavar="URL[#CHECKPOINT]")
    verify = _add(actions, "verify", "read and hash every chunk in one checkpoint or, without #, in all kept ones")
    verify.add_argument("checkpoint", metavar="URL[#CHECKPOINT]")
    diff = _add(actions, "diff", "compare the states of two checkpoints", "Only tensors that may differ are read.")
    diff.add_argument("first", metavar="A", help="URL[#CHECKPOINT]")
    diff.add_argument("second", metavar="B", help="URL[#CHECKPOINT]")


def _add_keeping(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    tag = _add(actions, "tag", "keep a checkpoint under a name until the tag is removed or moved")
    tag.add_argument("checkpoint", metavar="URL[#CHECKPOINT]")
    tag.add_argument("name", metavar="NAME")
    tag.add_argument("--remove", action="store_true", help="remove the tag; specify URL without #")
    gc = _add(
        actions,
        "gc",
        "delete chunks that no kept checkpoint needs",
        "Keeps the newest, the best and tagged checkpoints, and one every N hours. Without a --keep option, the rules "
        "come from the run's config. Safe during training: chunks from the run's newest start are not deleted.",
    )
    gc.add_argument("store", metavar="URL")
    gc.add_argument("--keep-last", type=int, metavar="N", help="keep the newest N, at least 2")
    gc.add_argument("--keep-best", type=int, metavar="N", help="also keep the N with the lowest validation loss")
    gc.add_argument("--keep-every-hours", type=float, metavar="H", help="also keep one checkpoint every H hours")
    gc.add_argument(
        "--dry-run", action="store_true", help="only print the checkpoints to keep and the chunks to delete"
    )
    gc.add_argument(
        "--exclusive",
        action="store_true",
        help="first take over the store, which ends any run that uses it, so that all garbage can be deleted",
    )
    gc.add_argument(
        "--trust",
        action="store_true",
        help="assume that checkpoints are undamaged; by default, the newest two are read and hashed first",
    )
    archive = _add(
        actions,
        "archive",
        "move the chunks of old checkpoints to a cheaper S3 storage class",
        "Chunks of the newest two checkpoints are never moved. Colder classes bill at least 30 days (*_IA), 90 days "
        "(GLACIER*) or 180 days (DEEP_ARCHIVE). Chunks in GLACIER and DEEP_ARCHIVE must be restored before reading.",
    )
    archive.add_argument("checkpoint", metavar="URL[#CHECKPOINT]", help="without #: all except the newest two")
    archive.add_argument("--storage-class", choices=STORAGE_CLASSES, default="GLACIER_IR", help="default: %(default)s")
    archive.add_argument("--dry-run", action="store_true", help="only print the number of chunks to move")
    restore = _add(actions, "restore", "make a checkpoint's archived chunks readable for a number of days")
    restore.add_argument("checkpoint", metavar="URL[#CHECKPOINT]")
    restore.add_argument("--days", type=int, default=7, help="number of days; default: %(default)s")
    restore.add_argument(
        "--tier",
        choices=("Standard", "Bulk", "Expedited"),
        default="Standard",
        help="Standard takes 3 to 12 hours, Bulk 5 to 48, Expedited minutes (not from DEEP_ARCHIVE); default: Standard",
    )
    restore.add_argument("--dry-run", action="store_true", help="only print the number of chunks to restore")


def _add_movers(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    pull = _add(actions, "pull", "copy a checkpoint to a directory", _COPYING)
    push = _add(actions, "push", "copy a checkpoint to another store: a bucket, or a branch of a run", _COPYING)
    for parser, destination in ((pull, "DIRECTORY"), (push, "URL")):
        parser.add_argument("checkpoint", metavar="URL[#CHECKPOINT]")
        parser.add_argument("destination", metavar=destination)
        parser.add_argument(
            "--all", action="store_true", help="copy all complete checkpoints, oldest first; specify URL without #"
        )
        parser.add_argument("--dry-run", action="store_true", help="only print the checkpoints to copy")
        _add_take_over(parser)
    export = _add(actions, "export", "write a checkpoint to a safetensors file", "The default is weights only.")
    export.add_argument("checkpoint", metavar="URL[#CHECKPOINT]")
    export.add_argument("file", type=Path, metavar="FILE")
    export.add_argument(
        "--state", action="store_true", help="export the full state, which can be imported as the same checkpoint"
    )
    export.add_argument("--overwrite", action="store_true", help="replace an existing FILE")
    export.add_argument("--dry-run", action="store_true", help="only print the file's size")
    imported = _add(
        actions,
        "import",
        "import a safetensors file as the newest checkpoint of a store",
        "A file with the full state becomes the same checkpoint. A file with weights starts a new run.",
    )
    imported.add_argument("file", type=Path, metavar="FILE")
    imported.add_argument("store", metavar="URL")
    _add_take_over(imported)


_COPYING = (
    "Chunks that the destination already has are not copied again, so the command can resume an interrupted copy or "
    "update a mirror. Between directories on one file system, files are linked. Within S3, S3 copies them. Such "
    "chunks are not read; `verify` checks them. Tags are also copied. The last checkpoint copied becomes the newest "
    "checkpoint in the destination, and a run started there resumes from it."
)


def _add_take_over(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--take-over",
        action="store_true",
        help="copy even if the destination is a run's store: ends the run, and the copy becomes its newest checkpoint",
    )
