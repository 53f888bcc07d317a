"""An instance's init process, which runs the user data, adopts orphans and terminates all of the instance's processes.

At each boot, the machine starts `python -m localcloud.compute.machines.init` with a pipe as its standard input. The
process reads one command per line from the pipe. It runs until it receives the power-off command, or until the pipe
closes because the cloud has exited.
"""

from __future__ import annotations

import argparse
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path

from localcloud.compute.machines import process_tree

ORPHANED_GRACE_SECONDS = 1.0
"""Grace period for processes after the cloud has exited."""
_BLOCKED = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


class Init:
    """A single boot of an instance."""

    def __init__(self, user_data: Path | None, home: Path, control: int = 0) -> None:
        self._user_data = user_data
        self._home = home
        self._control = control
        self._script: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Run until the power-off command arrives or the control pipe closes. Return the exit status."""
        process_tree.adopt_orphans()
        # Block signals instead of ignoring them, so that a signal sent to the script before its exec stays pending.
        signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
        wake_read, wake_write = os.pipe()
        for descriptor in (wake_read, wake_write):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        os.set_blocking(self._control, False)
        self._start_script()
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(wake_read, selectors.EVENT_READ)
            grace_seconds = self._serve(selector, wake_read)
        _log(f"powering off, grace period {grace_seconds:g} s")
        process_tree.end_descendants(os.getpid(), grace_seconds)
        return 0

    def _serve(self, selector: selectors.BaseSelector, wake: int) -> float:
        """Process commands until power-off. Return the grace period in seconds."""
        pending = b""
        while True:
            for key, _ in selector.select():
                if key.fd == wake:
                    os.read(wake, 4096)
                    self._reap()
                    continue
                received = os.read(self._control, 4096)
                if not received:
                    return ORPHANED_GRACE_SECONDS
                *lines, pending = (pending + received).split(b"\n")
                for line in lines:
                    word, _, value = line.decode().partition(" ")
                    if word == "poweroff":
                        return float(value)

    def _start_script(self) -> None:
        if self._user_data is None:
            _log("no user data to run at this boot")
            return
        _log("running the user data")
        try:
            self._script = subprocess.Popen(
                [str(self._user_data)], cwd=self._home, stdin=subprocess.DEVNULL, start_new_session=True,
                preexec_fn=_default_signals,  # safe because this process has one thread
            )  # fmt: skip
        except OSError as error:
            _log(f"cannot run the user data: {error}")

    def _reap(self) -> None:
        for pid, status in process_tree.reap():
            if self._script is not None and pid == self._script.pid:
                self._script.returncode = os.waitstatus_to_exitcode(status)
                _log(f"user data ended with exit status {self._script.returncode}")


def _default_signals() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED)


def _log(message: str) -> None:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    sys.stdout.write(f"[{stamp} init] {message}\n")
    sys.stdout.flush()


def main() -> int:
    """Parse the command line and run as the instance's init process."""
    parser = argparse.ArgumentParser(prog="python -m localcloud.compute.machines.init", description=__doc__)
    parser.add_argument("--home", type=Path, required=True, help="working directory of the user data")
    parser.add_argument("--user-data", type=Path, help="program to run at this boot")
    arguments = parser.parse_args()
    return Init(arguments.user_data, arguments.home).run()


if __name__ == "__main__":
    sys.exit(main())
