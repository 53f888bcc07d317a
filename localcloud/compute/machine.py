"""One machine: its directory, its environment, and its boots as process trees.

Not here: EC2 states and records (`inventory`), the init process itself (`init`).
"""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import localcloud
from localcloud.compute import process_tree, user_data
from localcloud.compute.errors import ProcessTreeError

_logger = logging.getLogger(__name__)

_INHERITED = ("LANG", "TZ", "TMPDIR")
_INHERITED_PREFIXES = ("OPENBLAS", "OMP")
_SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"

_POWER_PROGRAM = '''#!{interpreter} -ES
"""Powers this instance off or restarts it by telling the cloud, as the machine's firmware would."""
import json, os, sys, urllib.error, urllib.request

name, arguments = os.path.basename(sys.argv[0]), sys.argv[1:]
reboot = name == "reboot"
when = "now" if name != "shutdown" else None
for argument in arguments:
    if argument in ("-r", "--reboot"):
        reboot = True
    elif argument in ("-h", "-P", "-p", "-H", "--halt", "--poweroff", "-f", "--force", "--no-wall"):
        pass
    elif when is None and not argument.startswith("-"):
        when = argument
    elif argument.startswith("-"):
        sys.exit(f"{{name}}: option {{argument}} is not known here; -h, -P, -H and -r are")
if when not in ("now", "+0"):
    sys.exit(f"{{name}}: time {{when or '(none, that is +1)'}} is not possible here; say 'now'")
order = json.dumps({{"instance_id": os.environ["LOCALCLOUD_INSTANCE"], "reboot": reboot}}).encode()
headers = {{"Content-Type": "application/json"}}
request = urllib.request.Request("{endpoint}/_localcloud/compute/poweroff", data=order, headers=headers)
opener = urllib.request.build_opener(urllib.request.ProxyHandler({{}}))
try:
    opener.open(request, timeout=30).close()
except urllib.error.HTTPError as refusal:
    sys.exit(f"{{name}}: the cloud refuses: {{refusal.read().decode()}}")
except OSError as error:
    sys.exit(f"{{name}}: the cloud does not answer: {{error}}")
'''


class Machine:
    """The directory and the processes of one instance; safe to use from several threads.

    `on_gone` is called, from a thread of its own, when a boot ends that nobody ordered to end.
    """

    def __init__(self, directory: Path, instance_id: str, *, endpoint_url: str, state_directory: Path) -> None:
        self.directory = directory
        self.instance_id = instance_id
        self.metadata_url = ""
        self.on_gone: Callable[[], None] = lambda: None
        self._endpoint_url = endpoint_url
        self._state_directory = state_directory
        self._lock = threading.RLock()
        self._init: subprocess.Popen[bytes] | None = None
        self._is_frozen = False

    @property
    def console_path(self) -> Path:
        """Where everything goes that the machine prints."""
        return self.directory / "console.log"

    @property
    def is_on(self) -> bool:
        """Whether a boot is running."""
        with self._lock:
            return self._init is not None and self._init.poll() is None

    def make(self, data: bytes) -> None:
        """Create the directory: root, home, bin with the power programs, and the user data."""
        for name in ("root", "home", "bin"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        self.console_path.touch()
        power = self.directory / "bin" / "shutdown"
        power.write_text(_POWER_PROGRAM.format(interpreter=sys.executable, endpoint=self._endpoint_url))
        power.chmod(0o755)
        for name in ("poweroff", "reboot"):
            (self.directory / "bin" / name).symlink_to("shutdown")
        if user_data.is_script(data):
            script = self.directory / "user-data"
            script.write_bytes(user_data.plain(data))
            script.chmod(stat.S_IRWXU)
        elif data:
            self.console_path.write_text("user data does not start with '#!': nothing is run\n")

    def environment(self) -> dict[str, str]:
        """Return the whole environment of the instance's programs."""
        home = self.directory / "home"
        inherited = {
            name: value
            for name, value in os.environ.items()
            if name in _INHERITED or name.startswith(_INHERITED_PREFIXES)
        }
        return inherited | {
            "PATH": f"{self.directory / 'bin'}:{Path(sys.executable).parent}:{_SYSTEM_PATH}",
            "HOME": str(home),
            "TRAINSTACK_ROOT": str(self.directory / "root"),
            "AWS_ENDPOINT_URL": self._endpoint_url,
            "S3_ENDPOINT_URL": self._endpoint_url,
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": self.metadata_url,
            "AWS_CONFIG_FILE": str(home / ".aws" / "config"),
            "AWS_SHARED_CREDENTIALS_FILE": str(home / ".aws" / "credentials"),
            "LOCALCLOUD_STATE": str(self._state_directory),
            process_tree.INSTANCE_VARIABLE: self.instance_id,
        }

    def boot(self, *, run_user_data: bool) -> None:
        """Start the init process; it runs the user data when asked and when that is a script.

        Raises:
            ProcessTreeError: a boot is already running, or the process cannot be started.
        """
        script = self.directory / "user-data"
        command = [sys.executable, "-m", "localcloud.compute.init", "--home", str(self.directory / "home")]
        if run_user_data and script.exists():
            command += ["--user-data", str(script)]
        with self._lock:
            if self.is_on:
                raise ProcessTreeError(f"{self.instance_id}: is already on")
            try:
                with self.console_path.open("ab") as console:
                    process = subprocess.Popen(
                        command, cwd=Path(localcloud.__file__).resolve().parents[1], env=self.environment(),
                        stdin=subprocess.PIPE, stdout=console, stderr=console, start_new_session=True,
                    )  # fmt: skip
            except OSError as error:
                raise ProcessTreeError(f"{self.instance_id}: cannot start {command[0]}: {error}") from error
            self._init = process
            self._is_frozen = False
            (self.directory / "pid").write_text(f"{process.pid}\n")
        threading.Thread(target=self._watch, args=(process,), name=f"watch-{self.instance_id}", daemon=True).start()

    def power_off(self, grace_seconds: float) -> None:
        """End every process of the running boot; SIGKILL at once when frozen or when the grace is zero."""
        with self._lock:
            process, self._init = self._init, None
            grace_seconds = 0.0 if self._is_frozen else grace_seconds
        if process is None:
            return
        assert process.stdin is not None
        try:
            process.stdin.write(f"poweroff {grace_seconds}\n".encode())
            process.stdin.flush()
        except BrokenPipeError:
            _logger.debug("%s: init has ended already", self.instance_id)
        process.wait()
        self._clear_away(process)

    def set_frozen(self, is_frozen: bool) -> None:
        """Stop or continue every process of the machine, as a hypervisor pauses a guest.

        Raises:
            ProcessTreeError: the machine is off.
        """
        with self._lock:
            if self._init is None:
                raise ProcessTreeError(f"{self.instance_id}: is off")
            if is_frozen:
                process_tree.freeze(self._init.pid)
            else:
                process_tree.thaw(self._init.pid)
            self._is_frozen = is_frozen

    def console(self, maximum_bytes: int | None = None) -> bytes:
        """Return what the machine has printed, the last `maximum_bytes` of it."""
        if not self.console_path.exists():
            return b""
        with self.console_path.open("rb") as console:
            if maximum_bytes is not None:
                console.seek(max(0, self.console_path.stat().st_size - maximum_bytes))
            return console.read()

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        with self._lock:
            is_ordered = self._init is not process
            if not is_ordered:
                self._init = None
        if not is_ordered:
            self._clear_away(process)
            self.on_gone()

    def _clear_away(self, process: subprocess.Popen[bytes]) -> None:
        process_tree.end_marked(self.instance_id)
        if process.stdin is not None:
            try:
                process.stdin.close()
            except BrokenPipeError:
                _logger.debug("%s: the control pipe broke", self.instance_id)
        (self.directory / "pid").unlink(missing_ok=True)
