"""The command line of ``python -m training checkpoint``; nothing slow is imported, the trainer's is parsed with it."""

from __future__ import annotations

import argparse
from pathlib import Path

GRAMMAR = (
    "URL is s3://bucket/prefix or a directory. CHECKPOINT is a step (the newest checkpoint of it), the name of a tag, "
    "entry:N for a place in the log, or newest, which is meant when none is given."
)
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
  0  done; for verify: all of it is sound; for diff: the same state
  1  there is no such checkpoint, or it is damaged; for diff: the states differ
  2  the command or its arguments cannot work, or the store refused; the reason is on standard error
"""


def add_checkpoint_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the ``checkpoint`` command and its actions."""
    checkpoint = commands.add_parser(
        "checkpoint",
        help="look into a checkpoint store, tidy it, and move checkpoints in and out",
        description=f"Look into a checkpoint store, tidy it, and move checkpoints in and out. {GRAMMAR}",
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
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output, for scripts")
    return parser


def _add_readers(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    ls = _add(actions, "ls", "list the checkpoints of a store", "Contents are not read: whole means that all is there.")
    ls.add_argument("store", metavar="URL")
    ls.add_argument("--all", action="store_true", help="also those that retention has collected")
    show = _add(actions, "show", "describe one checkpoint: where the run stood, its config, its tensors")
    show.add_argument("checkpoint", metavar="URL[#CHECKPOINT]")
    verify = _add(actions, "verify", "read and hash every chunk of one checkpoint, or without # of all that are kept")
    verify.add_argument("checkpoint", metavar="URL[#CHECKPOINT]")
    diff = _add(actions, "diff", "compare the states of two checkpoints", "Only what may differ is read.")
    diff.add_argument("first", metavar="A", help="URL[#CHECKPOINT]")
    diff.add_argument("second", metavar="B", help="URL[#CHECKPOINT]")


def _add_keeping(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    tag = _add(actions, "tag", "keep a checkpoint under a name, until the name is removed or moved")
    tag.add_argument("checkpoint", metavar="URL[#CHECKPOINT]")
    tag.add_argument("name", metavar="NAME")
    tag.add_argument("--remove", action="store_true", help="give the name up; URL goes without #")
    gc = _add(
        actions,
        "gc",
        "delete what no kept checkpoint needs",
        "Kept are the newest, the best, one every so often, and the tagged ones; without any --keep option as the "
        "run's own config says. It may run beside training: chunks of the newest start of the run are then left to it.",
    )
    gc.add_argument("store", metavar="URL")
    gc.add_argument("--keep-last", type=int, metavar="N", help="newest checkpoints to keep, at least 2")
    gc.add_argument("--keep-best", type=int, metavar="N", help="those with the lowest validation loss, besides")
    gc.add_argument("--keep-every-hours", type=float, metavar="H", help="one more for each such stretch of time")
    gc.add_argument("--dry-run", action="store_true", help="say what would be kept and deleted, and do nothing")
    gc.add_argument(
        "--exclusive",
        action="store_true",
        help="take the store over first, so that everything may be tidied; a run that trains in it ends",
    )
    gc.add_argument(
        "--trust",
        action="store_true",
        help="take checkpoints for valid whose chunks are there; otherwise the two newest are read and hashed first",
    )
    archive = _add(
        actions,
        "archive",
        "give the chunks of old checkpoints a cheaper storage class of S3",
        "Chunks of the newest two checkpoints are never moved. Colder classes bill for at least 30 (.._IA), 90 "
        "(GLACIER..) or 180 days (DEEP_ARCHIVE); GLACIER and DEEP_ARCHIVE have to be restored before they can be read.",
    )
    archive.add_argument("checkpoint", metavar="URL[#CHECKPOINT]", help="without #, all but the newest two")
    archive.add_argument("--storage-class", choices=STORAGE_CLASSES, default="GLACIER_IR", help="default: %(default)s")
    archive.add_argument("--dry-run", action="store_true", help="say what would be moved, and do nothing")
    restore = _add(actions, "restore", "have the archived chunks of a checkpoint made readable for some days")
    restore.add_argument("checkpoint", metavar="URL[#CHECKPOINT]")
    restore.add_argument("--days", type=int, default=7, help="how long they stay readable; default: %(default)s")
    restore.add_argument(
        "--tier",
        choices=("Standard", "Bulk", "Expedited"),
        default="Standard",
        help="Standard takes 3 to 12 hours, Bulk 5 to 48, Expedited minutes (not from DEEP_ARCHIVE); default: Standard",
    )
    restore.add_argument("--dry-run", action="store_true", help="say what would be restored, and do nothing")


def _add_movers(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    pull = _add(actions, "pull", "copy a checkpoint to a directory", _COPYING)
    push = _add(actions, "push", "copy a checkpoint to another store: a bucket, or a branch of a run", _COPYING)
    for parser, destination in ((pull, "DIRECTORY"), (push, "URL")):
        parser.add_argument("checkpoint", metavar="URL[#CHECKPOINT]")
        parser.add_argument("destination", metavar=destination)
        parser.add_argument("--all", action="store_true", help="all whole checkpoints, the oldest first; URL without #")
        parser.add_argument("--dry-run", action="store_true", help="say what would be copied, and do nothing")
        _add_take_over(parser)
    export = _add(actions, "export", "write a checkpoint to a safetensors file", "Weights only, unless --state.")
    export.add_argument("checkpoint", metavar="URL[#CHECKPOINT]")
    export.add_argument("file", type=Path, metavar="FILE")
    export.add_argument("--state", action="store_true", help="the whole state, which import makes a checkpoint again")
    export.add_argument("--overwrite", action="store_true", help="FILE may be there already")
    export.add_argument("--dry-run", action="store_true", help="say what would be written, and do nothing")
    imported = _add(
        actions,
        "import",
        "make a safetensors file the newest checkpoint of a store",
        "A file of a whole state is the same checkpoint again; one of weights is a run before its first step.",
    )
    imported.add_argument("file", type=Path, metavar="FILE")
    imported.add_argument("store", metavar="URL")
    _add_take_over(imported)


_COPYING = (
    "Chunks that the destination has are not copied again, so that a broken copy goes on and a mirror is brought up to "
    "date. Between directories of one file system files are linked, and inside S3 copied there: such chunks are not "
    "read, and `verify` checks them. Tags go along. The last one copied is the destination's newest checkpoint, from "
    "which a run that is started there goes on."
)


def _add_take_over(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--take-over",
        action="store_true",
        help="also if a run trained in the destination: if it is at work it ends, and this is its newest checkpoint",
    )
