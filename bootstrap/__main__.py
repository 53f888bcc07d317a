"""The node program's command line: `python -m bootstrap COMMAND`.

The program runs on the node from the unpacked node bundle. `plan`, `check` and `events` run anywhere. This module must
parse under Python 3.9, the interpreter in Amazon Linux 2023, so that it can report the version that the node program
needs.
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 11):
    sys.exit(
        f"{sys.executable}: found Python {sys.version_info[0]}.{sys.version_info[1]}, but the node program needs 3.11 "
        "or newer; set node.python.interpreter in the deployment file to a newer interpreter in the image"
    )

import argparse
import json
import logging
from collections.abc import Sequence
from pathlib import Path

EXIT_FAILED = 1
EXIT_WRONG_INPUT = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    options = _parser().parse_args(arguments)
    problem = _find_boto3(getattr(options, "root", None))
    if problem:
        print(
            f"boto3 is not installed for {sys.executable}, and the node program needs it to call AWS; use an image "
            f"whose interpreter has it, or a wheelhouse: {problem}",
            file=sys.stderr,
        )
        return EXIT_FAILED
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if options.command == "plan":
        return _plan(options.root)
    if options.command == "check":
        return _check(options.document)
    if options.command == "events":
        from bootstrap.events.page import render

        print(render(), end="")
        return 0
    if options.command == "prewarm":
        from bootstrap.prewarm.command import prewarm

        return prewarm(options)
    return _on_node(options.command, options.root)


def _find_boto3(root: str | None) -> str:
    """Import boto3, from the wheelhouse if the interpreter does not have it. Return the problem, or an empty string."""
    import importlib
    import os

    from bootstrap.fetch.sdk import SdkError, provide_boto3
    from bootstrap.layout import Layout

    try:
        importlib.import_module("boto3")
    except ImportError:
        try:
            provide_boto3(Layout.from_environment(os.environ, root), Path(__file__).resolve().parent.parent)
            importlib.invalidate_caches()
            importlib.import_module("boto3")
        except (SdkError, ImportError) as error:
            return str(error)
    return ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bootstrap", description="Boot and supervise a training node.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    root_help = "root directory of the node's files (default: $TRAINSTACK_ROOT, else /opt/trainstack)"
    plan = commands.add_parser(
        "plan",
        help="list the boot steps in order and what each would do on this machine, without changing anything",
        description="List the boot steps in order. On a machine with a node document (ROOT/node.json), also inspect "
        "the machine and print what a boot would change. The exit code is 1 if a step would fail.",
    )
    plan.add_argument("--root", help=root_help)
    check = commands.add_parser("check", help="validate a node document (exit code 2 if it is invalid)")
    check.add_argument("document", metavar="NODE_JSON", type=Path, help="file with the node document, or - for stdin")
    boot = commands.add_parser(
        "boot",
        help="run the boot steps, then supervise; on failure, report it and shut down",
        description="Read ROOT/node.json, run the steps that `plan` lists, then run `supervise`. If a step "
        "fails, emit an event, upload the failure to s3://<control bucket>/nodes/<user id>/boot-failure.json, and "
        "shut down the instance.",
    )
    boot.add_argument("--root", help=root_help)
    _add_prewarm(commands, root_help)
    supervise = commands.add_parser(
        "supervise",
        help="join the run and manage this node's trainers until the node leaves",
        description="Join the run in the run document: elect generations with the other nodes, start and stop the "
        "trainers, and react to spot interruptions, rebalance recommendations, scale-in and run document changes.",
    )
    supervise.add_argument("--root", help=root_help)
    service = commands.add_parser(
        "service",
        help="entry point of the systemd unit: supervise, after the boot steps if the machine has restarted",
        description="The systemd unit that `boot` writes runs this command. systemd restarts it when the supervisor "
        "dies. After a machine restart, the command runs the boot steps again to mount volumes and disks.",
    )
    service.add_argument("--root", help=root_help)
    commands.add_parser("events", help="print the event schema as Markdown (docs/events.md)")
    return parser


def _add_prewarm(commands: argparse._SubParsersAction[argparse.ArgumentParser], root_help: str) -> None:
    from bootstrap.prewarm.reader import FIRST_BYTES, READERS

    parser = commands.add_parser(
        "prewarm",
        help="read each block of a dataset on an EBS volume once, so that EBS loads it before training needs it",
        description="Read the blocks of the dataset in DIRECTORY in the order of its index, bypassing the page cache, "
        "and print one line when the first blocks have been read. SIGTERM stops the command; the next call resumes.",
    )
    parser.add_argument("directory", type=Path, metavar="DIRECTORY", help="directory that contains dataset.json")
    parser.add_argument("--root", help=root_help)
    parser.add_argument("--readers", type=int, default=READERS, help=f"number of parallel reads (default: {READERS})")
    parser.add_argument("--limit-mib-per-second", type=float, help="maximum read rate (default: unlimited)")
    first = FIRST_BYTES // 1024**2
    parser.add_argument(
        "--first-mib", type=int, default=first, help=f"print the line after this many MiB (default: {first})"
    )


def _plan(root: str | None) -> int:
    from bootstrap.boot_steps.boot_sequence import STEPS
    from bootstrap.context import make_context, read_node_document
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
            print(f"   would fail: {error}{remedy}")
            exit_code = EXIT_FAILED
    return exit_code


def _check(path: Path) -> int:
    from bootstrap.documents import NodeDocument
    from bootstrap.errors import DocumentError

    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
        node = NodeDocument.from_text(text, document=str(path))
    except (OSError, UnicodeDecodeError) as error:
        print(f"{path}: cannot read the node document ({error})", file=sys.stderr)
        return EXIT_WRONG_INPUT
    except DocumentError as error:
        print(error, file=sys.stderr)
        return EXIT_WRONG_INPUT
    print(json.dumps({"document": str(path), "deployment": node.deployment, "digest": node.digest()}))
    return 0


def _on_node(command: str, root: str | None) -> int:
    from bootstrap.boot_main import become_supervisor, boot
    from bootstrap.boot_steps.service import has_booted, install_service, record_boot, start_service
    from bootstrap.errors import BootstrapError
    from bootstrap.layout import Layout
    from bootstrap.supervise.supervisor import supervise
    from bootstrap.system import System

    system = System()
    layout = Layout.from_environment(system.environment(), root)
    try:
        is_installed = command == "boot" and install_service(system, layout)
        if command == "boot" or (command == "service" and not has_booted(system, layout)):
            if not boot(system, layout):
                return EXIT_FAILED
            record_boot(system, layout)
        if command == "boot":
            if not (is_installed and start_service(system, layout)):
                become_supervisor(system, layout)
            return 0
        return 0 if supervise(system, layout) else EXIT_FAILED
    except BootstrapError as error:
        print(error, file=sys.stderr)
        return EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
