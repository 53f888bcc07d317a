"""Runs tests in a user-mode Linux kernel, for features missing from the kernel of this machine.

The guest uses the file system of this machine, with separate block devices, mounts and /tmp, and exits with the tests.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent.parent
TIMEOUT_SECONDS = 230.0
MEMORY = "1500M"
_INIT = """#!/bin/sh
mount -t proc none /proc; mount -t sysfs none /sys
mount -t tmpfs none /run; mount -t tmpfs -o size=1400M none /tmp
modules=/usr/lib/uml/modules/$(uname -r)/kernel
for module in block/loop md/md-mod md/raid0; do insmod $modules/drivers/$module.ko; done
ip link set lo up
export PATH={path} HOME=/root PYTHONDONTWRITEBYTECODE=1
cd {repository}
{command}
echo "exit code $?"
echo o > /proc/sysrq-trigger
sleep 60
"""


def is_installed() -> bool:
    return shutil.which("linux.uml") is not None


def run_tests(directory: Path, *arguments: str) -> tuple[int, str]:
    """Run pytest in the guest; return its exit code and its output."""
    command = shlex.join([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments])
    path = f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin"
    init = directory / "init"
    init.write_text(_INIT.format(path=path, repository=shlex.quote(str(REPOSITORY)), command=command))
    init.chmod(0o755)
    kernel = ["linux.uml", f"mem={MEMORY}", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "rw", "quiet"]
    guest = subprocess.Popen(
        [*kernel, f"init={init}", "con=null", "con0=null,fd:1"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = guest.communicate(timeout=TIMEOUT_SECONDS)
    finally:
        with contextlib.suppress(ProcessLookupError):  # its processes run on this machine and outlive their parent
            os.killpg(guest.pid, signal.SIGKILL)
    ended = re.search(r"^exit code (\d+)", output, re.MULTILINE)
    return int(ended[1]) if ended else -1, output
