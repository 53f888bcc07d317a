"""Runs a demo from a command line."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from localcloud.demo.commands import CommandFailed
from localcloud.demo.driver import Demo
from localcloud.demo.watch import RunFailed

Log = Callable[[float, str, str], None]
"""Prints a line with its Unix time and its source."""


def run_demo(console: Console, build: Path, stale: Sequence[str], make_demo: Callable[[Log], Demo]) -> dict[str, Any]:
    """Run a demo, print its log, and return its report.

    Args:
        console: The console.
        build: Folder for logs and the report.
        stale: Names of the files that an earlier run may have left there.
        make_demo: Creates the demo.

    Raises:
        typer.Exit: The demo failed or was interrupted.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    started = time.time()

    def log(unix_seconds: float, source: str, line: str) -> None:
        console.print(f"[dim]{unix_seconds - started:6.1f} s[/dim]  [cyan]{source:<20}[/cyan] ", end="")
        console.print(line, markup=False, soft_wrap=True)

    shutil.rmtree(build / "logs", ignore_errors=True)
    build.mkdir(parents=True, exist_ok=True)
    for path in (*(build / name for name in stale), *build.glob("outputs-*.json")):
        path.unlink(missing_ok=True)
    try:
        return make_demo(log).run()
    except (CommandFailed, RunFailed) as failure:
        console.print(str(failure), style="red", markup=False)
        console.print(f"Logs: {build / 'logs'}; node consoles: {build / 'cloud' / 'instances'}", style="red")
        raise typer.Exit(1) from failure
    except KeyboardInterrupt:
        console.print("interrupted; all demo processes have been stopped")
        raise typer.Exit(130) from None
