"""The warm standby: a process that has imported torch. When a generation starts, it becomes torchrun, and forks ranks.

Importing torch and the modules that an optimizer needs takes seconds, and several times as long on a busy machine. The
imports are needed twice: in torchrun and in each rank. The standby does both ahead of time, while the node waits for
its peers or trains. It then runs the usual torchrun (static rendezvous, no restarts). It forks the ranks from
multiprocessing's fork server, which has imported the same modules, is single-threaded, and has not initialized a GPU.
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
from pathlib import Path
from typing import Any

DESCRIPTOR_VARIABLE = "TRAINSTACK_STANDBY_FD"
"""Variable with the file descriptor of the socket to the supervisor. The standby sends `IMPORTING` and then `READY`. It
receives the start message, which is JSON up to the end of the stream. An empty stream ends the standby."""
IMPORTING, READY = b"i", b"r"

_IMPORTS = ["training.loop.trainer", "torch._dynamo", "torch.distributed.elastic.multiprocessing.api", "boto3"]


def run_standby(run_rank: Callable[[list[str]], int]) -> int:
    """Import, wait for the start message, and run the generation; return torchrun's exit code.

    The start message contains `arguments` (torchrun's command line), `environment` (variables), `directory` (working
    directory) and `log` (file for standard output and error).

    Args:
        run_rank: importable function that runs a rank with the training script's arguments.
    """
    supervisor = socket.socket(fileno=int(os.environ.pop(DESCRIPTOR_VARIABLE)))
    supervisor.sendall(IMPORTING)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTS)
    forkserver.ensure_running()
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    from training.process.torchrun import listen_on_own_address

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
    options = run.get_args_parser().parse_args(start["arguments"])
    config, _, _ = run.config_from_args(options)
    config.start_method = "forkserver"
    listen_on_own_address()
    try:
        elastic_launch(config, _become_rank)(start, run_rank, options.training_script_args)
    except ChildFailedError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _become_rank(start: Mapping[str, Any], run_rank: Callable[[list[str]], int], arguments: list[str]) -> None:
    """Run one rank in a forked process. torchrun has set its environment variables."""
    _enter(start)
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
