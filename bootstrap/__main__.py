"""The node program's command line: `python -m bootstrap plan | check | boot | prewarm | supervise | service`.

Runs on the node from the unpacked node bundle; `plan` and `check` run anywhere.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

EXIT_FAILED = 1
EXIT_WRONG_INPUT = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    options = _parser().parse_args(arguments)
    try:
        import boto3  # noqa: F401 asked for before anything else needs it
    except ImportError:
        print(
            f"boto3: is not installed for {sys.executable}: the node program calls AWS with it; "
            "use an image whose python3 has it, or vendor it in the node bundle",
            file=sys.stderr,
        )
        return EXIT_FAILED
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if options.command == "plan":
        return _plan(options.root)
    if options.command == "check":
        return _check(options.document)
    if options.command == "prewarm":
        from bootstrap.prewarm.command import prewarm

        return prewarm(options)
    return _on_node(options.command, options.root)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bootstrap", description="Boots and supervises a training node.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    root_help = "directory of everything the node keeps (default: $TRAINSTACK_ROOT, else /opt/trainstack)"
    plan = commands.add_parser(
        "plan",
        help="print the steps of a boot in order, and what they would do here; touches nothing",
        description="Prints the steps in order. On a machine with a node document (ROOT/node.json) it also looks at "
        "the machine, and prints what a boot would do to it; exit code 1 when a step says that it could not.",
    )
    plan.add_argument("--root", help=root_help)
    check = commands.add_parser("check", help="check a node document; exit code 2 when it is not sound")
    check.add_argument("document", metavar="NODE_JSON", type=Path, help="file with the node document; - for stdin")
    boot = commands.add_parser(
        "boot",
        help="run the steps, then supervise; a failure is reported and the machine shut down",
        description="Reads ROOT/node.json, runs the steps of `plan`, and becomes `supervise`. A failing step is "
        "written as an event, uploaded to s3://<checkpoint bucket>/nodes/<instance id>/boot-failure.json, and the "
        "machine is shut down.",
    )
    boot.add_argument("--root", help=root_help)
    _add_prewarm(commands, root_help)
    supervise = commands.add_parser(
        "supervise",
        help="join the run and keep this node's trainers going until the node leaves",
        description="Joins the run of the run document: elects generations with the other nodes, starts and stops the "
        "trainers, answers spot interruption, rebalance, scale-in and a changed run document.",
    )
    supervise.add_argument("--root", help=root_help)
    service = commands.add_parser(
        "service",
        help="what the systemd unit runs: supervise; after a restart of the machine, the steps before that",
        description="The unit that `boot` writes runs this, so that the supervisor is started again when it dies, and "
        "volumes and disks are mounted again when the machine was restarted.",
    )
    service.add_argument("--root", help=root_help)
    return parser


def _add_prewarm(commands: argparse._SubParsersAction[argparse.ArgumentParser], root_help: str) -> None:
    from bootstrap.prewarm.reader import FIRST_BYTES, READERS

    parser = commands.add_parser(
        "prewarm",
        help="read the blocks of a dataset on a volume once, so that EBS has loaded them when training reads them",
        description="Reads the blocks of the dataset in DIRECTORY in the order of its index, past the page cache, and "
        "writes one line when the first are read. Ends early on SIGTERM; the next time it goes on there.",
    )
    parser.add_argument("directory", type=Path, metavar="DIRECTORY", help="of the dataset, with its dataset.json")
    parser.add_argument("--root", help=root_help)
    parser.add_argument("--readers", type=int, default=READERS, help=f"reads at the same time (default: {READERS})")
    parser.add_argument("--limit-mib-per-second", type=float, help="read no faster (default: as fast as it goes)")
    first = FIRST_BYTES // 1024**2
    parser.add_argument(
        "--first-mib", type=int, default=first, help=f"say so when this much is read (default: {first})"
    )


def _plan(root: str | None) -> int:
    from bootstrap.boot import STEPS, make_context, read_node_document
    from bootstrap.errors import BootstrapError, StepError
    from bootstrap.layout import Layout
    from bootstrap.system import System

    system = System()
    layout = Layout.from_environment(system.environment(), root)
    context = None
    if system.read(layout.node_document) is not None:
        try:
            context = make_context(system, layout, read_node_document(system, layout))
        except BootstrapError as error:
            print(error, file=sys.stderr)
            return EXIT_WRONG_INPUT
    exit_code = 0
    for number, step in enumerate(STEPS, start=1):
        summary = (type(step).__doc__ or "").strip().splitlines()[0]
        after = f" (after {', '.join(step.after)})" if step.after else ""
        print(f"{number}. {step.name}: {summary}{after}")
        if context is None:
            continue
        try:
            for line in step.intent(context):
                print(f"   {line}")
        except BootstrapError as error:
            remedy = f"; {error.remedy}" if isinstance(error, StepError) else ""
            print(f"   cannot be done: {error}{remedy}")
            exit_code = EXIT_FAILED
    return exit_code


def _check(path: Path) -> int:
    from bootstrap.documents import NodeDocument
    from bootstrap.errors import DocumentError

    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
        node = NodeDocument.from_text(text, document=str(path))
    except (OSError, UnicodeDecodeError) as error:
        print(f"{path}: cannot be read ({error}); give the path of a node document", file=sys.stderr)
        return EXIT_WRONG_INPUT
    except DocumentError as error:
        print(error, file=sys.stderr)
        return EXIT_WRONG_INPUT
    print(json.dumps({"document": str(path), "deployment": node.deployment, "digest": node.digest()}))
    return 0


def _on_node(command: str, root: str | None) -> int:
    from bootstrap.boot import become_supervisor, boot
    from bootstrap.errors import BootstrapError
    from bootstrap.layout import Layout
    from bootstrap.service import hand_over, has_booted, note_boot
    from bootstrap.supervise.supervisor import supervise
    from bootstrap.system import System

    system = System()
    layout = Layout.from_environment(system.environment(), root)
    try:
        if command == "boot" or (command == "service" and not has_booted(system, layout)):
            if not boot(system, layout):
                return EXIT_FAILED
            note_boot(system, layout)
        if command == "boot":
            if not hand_over(system, layout):
                become_supervisor(system, layout)
            return 0
        return 0 if supervise(system, layout) else EXIT_FAILED
    except BootstrapError as error:
        print(error, file=sys.stderr)
        return EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
