"""A process that has torch imported and waits: it becomes torchrun when a generation starts, and forks its ranks.

Importing torch, and what an optimizer imports when it is made, takes seconds, several times as long on a busy machine,
and twice: in torchrun, and in each rank. A node that waits for its peers, or trains, can have done both before the next
generation is there. What runs then is torchrun as ever (static rendezvous, no restarts); its ranks are forked from
multiprocessing's fork server, which has imported the same, holds no thread and has touched no GPU.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import socket
import sys
from collections.abc import Mapping
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

DESCRIPTOR_VARIABLE = "TRAINSTACK_STANDBY_FD"
"""Names the socket to the supervisor, which is told `IMPORTING`, then `READY`. The start comes on it: JSON up to the
end of the stream. A stream that ends without a word ends the standby."""
IMPORTING, READY = b"i", b"r"

_IMPORTS = ["training.trainer", "torch._dynamo", "torch.distributed.elastic.multiprocessing.api", "boto3"]


def run_standby() -> int:
    """Import, wait for the start, and run the generation to its end; returns torchrun's exit code.

    The start is {"arguments": of torchrun, "environment": variables, "directory": to work in, "log": to write to}.
    """
    supervisor = socket.socket(fileno=int(os.environ.pop(DESCRIPTOR_VARIABLE)))
    supervisor.sendall(IMPORTING)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTS)
    forkserver.ensure_running()
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    first = context.Process(target=os.getpid)
    first.start()
    first.join()  # it could only be forked when the fork server had imported everything
    with contextlib.suppress(OSError):  # a supervisor that has started this one need not listen any more
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
    try:
        elastic_launch(config, run_rank)(start, options.training_script_args)
    except ChildFailedError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def run_rank(start: Mapping[str, Any], arguments: list[str]) -> None:
    """Be one rank: torchrun has set its variables."""
    from training.__main__ import main

    _enter(start)
    code = main(arguments)
    if code != 0:
        sys.exit(code)


def _enter(start: Mapping[str, Any]) -> None:
    """Become a process of the generation, as if it had been started with its environment, directory and log."""
    os.environ.update(start["environment"])
    os.chdir(start["directory"])
    sys.stdout.flush()
    sys.stderr.flush()
    with Path(start["log"]).open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
