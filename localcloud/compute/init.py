"""The first process of an instance: runs the user data, adopts orphans, and ends everything it stands for.

Started as `python -m localcloud.compute.init`, once per boot, with a pipe on standard input. It lives until the machine
ends: commands are read from the pipe, one a line, and the end of the pipe (the cloud is gone) ends the machine too.
Not here: what the outside sees of the instance (`inventory`), and metadata (`imds`).
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

from localcloud.compute import process_tree

ORPHANED_GRACE_SECONDS = 1.0
"""How long processes may take to end when the cloud itself has gone."""
_KEPT_OFF = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


class Init:
    """One boot of one instance."""

    def __init__(self, user_data: Path | None, home: Path, control: int = 0) -> None:
        self._user_data = user_data
        self._home = home
        self._control = control
        self._script: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Run until told to power off or until the control pipe closes; return the exit status."""
        process_tree.adopt_orphans()
        # Blocked, not ignored: a signal that meets the script before its exec waits there instead of being lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, _KEPT_OFF)
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
        _log(f"power off, {grace_seconds:g} s for processes to end")
        process_tree.end_descendants(os.getpid(), grace_seconds)
        return 0

    def _serve(self, selector: selectors.BaseSelector, wake: int) -> float:
        """Return the grace in seconds that the power-off allows."""
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
                preexec_fn=_default_signals,  # safe: this process has one thread
            )  # fmt: skip
        except OSError as error:
            _log(f"the user data cannot be run: {error}")

    def _reap(self) -> None:
        for pid, status in process_tree.reap():
            if self._script is not None and pid == self._script.pid:
                self._script.returncode = os.waitstatus_to_exitcode(status)
                _log(f"the user data ended with exit status {self._script.returncode}")


def _default_signals() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _KEPT_OFF)


def _log(message: str) -> None:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    sys.stdout.write(f"[{stamp} init] {message}\n")
    sys.stdout.flush()


def main() -> int:
    """Parse the command line and be the instance's first process."""
    parser = argparse.ArgumentParser(prog="python -m localcloud.compute.init", description=__doc__)
    parser.add_argument("--home", type=Path, required=True, help="working directory of the user data")
    parser.add_argument("--user-data", type=Path, help="program to run at this boot")
    arguments = parser.parse_args()
    return Init(arguments.user_data, arguments.home).run()


if __name__ == "__main__":
    sys.exit(main())
