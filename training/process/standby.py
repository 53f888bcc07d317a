"""The warm standby: when a generation starts, it becomes the launcher, and forks ranks that have imported torch.

Importing torch and the modules that an optimizer needs takes seconds, and several times as long on a busy machine. The
standby imports them ahead of time, while the node waits for its peers or trains. It forks the ranks from
multiprocessing's fork server, which has imported these modules, is single-threaded, and has not initialized a GPU.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import socket
import sys
from collections.abc import Callable, Mapping
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from training.process.launcher import launch, parse

DESCRIPTOR_VARIABLE = "TRAINSTACK_STANDBY_FD"
"""Variable with the file descriptor of the socket to the supervisor. The standby sends `IMPORTING` and then `READY`. It
receives the start message, which is JSON up to the end of the stream. An empty stream ends the standby."""
IMPORTING, READY = b"i", b"r"

_IMPORTS = ["training.loop.trainer", "torch._dynamo", "boto3"]


class _ForkedRank:
    """A rank forked by the fork server, which reports its exit code."""

    def __init__(self, process: ForkServerProcess) -> None:
        self._process = process
        process.start()

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode


def run_standby(run_rank: Callable[[list[str]], int]) -> int:
    """Import, wait for the start message, and run the generation; return the launcher's exit code.

    The start message contains `arguments` (the launcher's command line), `environment` (variables), `directory`
    (working directory) and `log` (file for standard output and error).

    Args:
        run_rank: importable function that runs a rank with the trainer's arguments.
    """
    supervisor = socket.socket(fileno=int(os.environ.pop(DESCRIPTOR_VARIABLE)))
    supervisor.sendall(IMPORTING)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTS)
    forkserver.ensure_running()
    first = context.Process(target=os.getpid)
    first.start()
    first.join()  # the fork server forks only after finishing all its imports
    with contextlib.suppress(OSError):  # the supervisor may close its end after sending the start message
        supervisor.sendall(READY)
    with supervisor, supervisor.makefile("rb") as stream:
        text = stream.read()
    if not text:
        return 0
    start: dict[str, Any] = json.loads(text)
    _enter(start)
    plan = parse(start["arguments"])
    return launch(
        plan,
        lambda rank: _ForkedRank(
            context.Process(target=_become_rank, args=(start, plan.variables(rank), run_rank, list(plan.arguments[2:])))
        ),
    )


def _become_rank(
    start: Mapping[str, Any], variables: Mapping[str, str], run_rank: Callable[[list[str]], int], arguments: list[str]
) -> None:
    """Run one rank in a forked process."""
    _enter(start)
    os.environ.update(variables)
    code = run_rank(arguments)
    if code != 0:
        sys.exit(code)


def _enter(start: Mapping[str, Any]) -> None:
    """Switch to the generation's environment, working directory and log."""
    os.environ.update(start["environment"])
    os.chdir(start["directory"])
    sys.stdout.flush()
    sys.stderr.flush()
    with Path(start["log"]).open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
