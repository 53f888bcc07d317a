"""Runs a machine: manages its directory and environment, and runs each boot as a process tree.

`inventory` manages EC2 states, and `init` is the first process in each boot.
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
from localcloud.compute.errors import ProcessTreeError
from localcloud.compute.launch import user_data
from localcloud.compute.machines import process_tree
from localcloud.compute.machines.process_users import instance_user
from localcloud.state import MARKER, mark_of
from localcloud.tokens import TOKEN_HEADER

_logger = logging.getLogger(__name__)

_INHERITED = ("LANG", "TZ", "TMPDIR")
_INHERITED_PREFIXES = ("OPENBLAS", "OMP")
_SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"

# cloud-init's documented command. User data needs only one of its queries. Source (2026-11):
# https://docs.cloud-init.io/en/latest/reference/cli.html (query), instancedata.html (v1.instance_id).
_CLOUD_INIT = f"""#!/bin/sh
[ "$*" = "query instance_id" ] || {{ echo "cloud-init: only 'query instance_id' is supported" >&2; exit 1; }}
echo "${process_tree.INSTANCE_VARIABLE}"
"""

_POWER_PROGRAM = '''#!{interpreter} -ES
"""Powers off this instance through the cloud's API, since it has no firmware."""
import json, os, sys, urllib.error, urllib.request

name, arguments = os.path.basename(sys.argv[0]), sys.argv[1:]
when = "now" if name != "shutdown" else None
for argument in arguments:
    if argument in ("-h", "-P", "-p", "-H", "--halt", "--poweroff", "-f", "--force", "--no-wall"):
        pass
    elif when is None and not argument.startswith("-"):
        when = argument
    elif argument.startswith("-"):
        sys.exit(f"{{name}}: unknown option {{argument}}; supported are -h, -P and -H")
if when not in ("now", "+0"):
    sys.exit(f"{{name}}: time {{when or '+1 (default)'}} is not supported; use 'now'")
order = json.dumps({{"instance_id": os.environ["LOCALCLOUD_INSTANCE"]}}).encode()
headers = {{"Content-Type": "application/json", "{header}": "{token}"}}
request = urllib.request.Request("{endpoint}/_localcloud/compute/poweroff", data=order, headers=headers)
opener = urllib.request.build_opener(urllib.request.ProxyHandler({{}}))
try:
    opener.open(request, timeout=30).close()
except urllib.error.HTTPError as refusal:
    sys.exit(f"{{name}}: refused by the cloud: {{refusal.read().decode()}}")
except OSError as error:
    sys.exit(f"{{name}}: cannot reach the cloud: {{error}}")
'''


class Machine:
    """An instance's directory and processes. Thread-safe.

    If a boot ends unexpectedly, `on_crash` is called in a separate thread.
    """

    def __init__(
        self, directory: Path, instance_id: str, *, endpoint_url: str, state_directory: Path, power_token: str
    ) -> None:
        self.directory = directory
        self.instance_id = instance_id
        self.metadata_url = ""
        self.on_crash: Callable[[], None] = lambda: None
        self._endpoint_url = endpoint_url
        self._state_directory = state_directory
        self._power_token = power_token
        self._lock = threading.RLock()
        self._init: subprocess.Popen[bytes] | None = None
        self._is_frozen = False
        self._user: int | None = None

    @property
    def console_path(self) -> Path:
        """The path of the machine's console output file."""
        return self.directory / "console.log"

    def make(self, data: bytes) -> None:
        """Create the directory with root, home, the image's programs in bin, and the user data."""
        for name in ("root", "home", "bin"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        self.console_path.touch()
        power = self.directory / "bin" / "shutdown"
        power.touch(mode=0o700)
        power.write_text(
            _POWER_PROGRAM.format(
                interpreter=sys.executable, endpoint=self._endpoint_url, header=TOKEN_HEADER, token=self._power_token
            )
        )
        (self.directory / "bin" / "poweroff").symlink_to("shutdown")
        cloud_init = self.directory / "bin" / "cloud-init"
        cloud_init.write_text(_CLOUD_INIT)
        cloud_init.chmod(0o755)
        if user_data.is_script(data):
            script = self.directory / "user-data"
            script.write_bytes(user_data.plain(data))
            script.chmod(stat.S_IRWXU)
        elif data:
            self.console_path.write_text("not running the user data because it does not start with '#!'\n")
        self._give_to_user()

    def _give_to_user(self) -> None:
        """Make the instance's user the owner of the instance's files, and deny access to other users."""
        self.directory.chmod(0o700)
        self._user = instance_user(self.instance_id, self.directory)
        if self._user is not None:
            for path in (self.directory, *self.directory.iterdir(), *(self.directory / "bin").iterdir()):
                os.chown(path, self._user, self._user, follow_symlinks=False)

    def environment(self) -> dict[str, str]:
        """Return the complete environment for the instance's programs."""
        home = self.directory / "home"
        inherited = {
            name: value
            for name, value in os.environ.items()
            if name in _INHERITED or name.startswith(_INHERITED_PREFIXES)
        }
        if self._user is not None:
            # The user has no account, and torch names its cache directory after the user.
            inherited["LOGNAME"] = self.instance_id
            inherited.pop("TMPDIR", None)  # other users might not have access to it
        return inherited | {
            "PATH": f"{self.directory / 'bin'}:{Path(sys.executable).parent}:{_SYSTEM_PATH}",
            "HOME": str(home),
            "TRAINSTACK_ROOT": str(self.directory / "root"),
            "AWS_ENDPOINT_URL": self._endpoint_url,
            "S3_ENDPOINT_URL": self._endpoint_url,
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": self.metadata_url,
            "AWS_CONFIG_FILE": str(home / ".aws" / "config"),
            "AWS_SHARED_CREDENTIALS_FILE": str(home / ".aws" / "credentials"),
            MARKER: mark_of(self._state_directory),
            process_tree.INSTANCE_VARIABLE: self.instance_id,
        }

    def boot(self) -> None:
        """Start the init process, which runs the user data if the user data is a script.

        Raises:
            ProcessTreeError: The process cannot be started.
        """
        script = self.directory / "user-data"
        command = [sys.executable, "-m", "localcloud.compute.machines.init", "--home", str(self.directory / "home")]
        if script.exists():
            command += ["--user-data", str(script)]
        with self._lock:
            try:
                with self.console_path.open("ab") as console:
                    process = subprocess.Popen(
                        command, cwd=Path(localcloud.__file__).resolve().parents[1], env=self.environment(),
                        stdin=subprocess.PIPE, stdout=console, stderr=console, start_new_session=True,
                        user=self._user, group=self._user, extra_groups=None if self._user is None else [],
                    )  # fmt: skip
            except OSError as error:
                raise ProcessTreeError(f"{self.instance_id}: cannot start {command[0]}: {error}") from error
            self._init = process
            self._is_frozen = False
            (self.directory / "pid").write_text(f"{process.pid}\n")
        threading.Thread(target=self._watch, args=(process,), name=f"watch-{self.instance_id}", daemon=True).start()

    def power_off(self, grace_seconds: float) -> None:
        """End all processes in the running boot. Kill them immediately if frozen or if the grace period is 0."""
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
            _logger.debug("%s: init has already exited", self.instance_id)
        process.wait()
        self._clean_up(process)

    def set_frozen(self, is_frozen: bool) -> None:
        """Stop or resume all of the machine's processes, as if pausing or resuming a virtual machine.

        Raises:
            ProcessTreeError: The machine is powered off.
        """
        with self._lock:
            if self._init is None:
                raise ProcessTreeError(f"{self.instance_id}: powered off")
            if is_frozen:
                process_tree.freeze(self._init.pid)
            else:
                process_tree.thaw(self._init.pid)
            self._is_frozen = is_frozen

    def console(self, maximum_bytes: int | None = None) -> bytes:
        """Return the console output, or at most its last `maximum_bytes`."""
        if not self.console_path.exists():
            return b""
        with self.console_path.open("rb") as console:
            if maximum_bytes is not None:
                console.seek(max(0, self.console_path.stat().st_size - maximum_bytes))
            return console.read()

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        with self._lock:
            has_crashed = self._init is process
            if has_crashed:
                self._init = None
        if has_crashed:
            self._clean_up(process)
            self.on_crash()

    def _clean_up(self, process: subprocess.Popen[bytes]) -> None:
        process_tree.end_marked(self.instance_id)
        if process.stdin is not None:
            try:
                process.stdin.close()
            except BrokenPipeError:
                _logger.debug("%s: the control pipe broke", self.instance_id)
        (self.directory / "pid").unlink(missing_ok=True)
