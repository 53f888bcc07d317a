"""Nodes for the supervised part: real supervisors, each with its own root directory and metadata service."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.chaos.metrics import read_records
from bootstrap.layout import TRAINER_MARK, Layout
from bootstrap.supervise import actor
from bootstrap.supervise.supervisor import supervise
from bootstrap.supervise.trainers.launch import launcher_command
from bootstrap.system import System

_FORK_SERVER = b"multiprocessing.forkserver"
KEPT_RUN_DIRECTORIES = 10_000
"""A node keeps the directories of its last five generations. An experiment reads the records of all of them."""
REPOSITORY = Path(__file__).resolve().parents[2]


class MetadataService:
    """The parts of IMDSv2 that a supervisor uses, on 127.0.0.1."""

    def __init__(self, instance_id: str, address: str) -> None:
        self._paths = {
            "instance-id": instance_id,
            "instance-type": "c7i.large",
            "placement/availability-zone": "us-east-1a",
            "local-ipv4": address,
            "instance-life-cycle": "spot",
        }
        paths, token = self._paths, secrets.token_urlsafe(16)

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                self._answer(200, token)

            def do_GET(self) -> None:
                if self.headers.get("X-aws-ec2-metadata-token") != token:
                    return self._answer(401, "")
                value = paths.get(self.path.removeprefix("/latest/meta-data/"))
                return self._answer(404, "") if value is None else self._answer(200, value)

            def _answer(self, status: int, body: str) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("X-aws-ec2-metadata-token-ttl-seconds", "21600")
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, format: str, *arguments: object) -> None:
                """Log nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def give_notice(self, seconds: float) -> None:
        """Announce a spot interruption."""
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds))
        self._paths["spot/instance-action"] = json.dumps({"action": "terminate", "time": when})

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


class Node:
    """One node.

    Args:
        folder: parent of the node's root directory.
        number: number of the node, which determines its name and address.
        document: the node document.
        environment: environment for its processes.
        address: overrides the address derived from the number.
        before: command prefix for the supervisor, such as one that enters a namespace.
    """

    def __init__(
        self,
        folder: Path,
        number: int,
        document: dict[str, Any],
        environment: dict[str, str],
        address: str | None = None,
        before: Sequence[str] = (),
    ) -> None:
        self.instance_id = f"i-{number:017x}"
        self.root = folder / self.instance_id
        self.root.mkdir(parents=True)
        (self.root / "node.json").write_text(json.dumps(document), encoding="utf-8")
        self.metadata = MetadataService(self.instance_id, address or f"127.0.1.{number % 250 + 1}")
        self._before = tuple(before)
        self._environment = {
            **os.environ,
            **environment,
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": self.metadata.endpoint,
            "PYTHONPATH": str(REPOSITORY),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        self.start()

    def start(self) -> None:
        """Start or restart the supervisor."""
        with (self.root / "console.log").open("ab") as console:
            self.process = subprocess.Popen(
                [*self._before, sys.executable, "-m", "benchmarks.chaos.nodes", str(self.root)],
                env=self._environment,
                cwd=self.root,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill_supervisor(self) -> None:
        """Send SIGKILL, as the kernel does when memory runs out."""
        self.process.kill()
        self.process.wait()

    def trainers(self) -> list[int]:
        """Return the ranks' process ids, whether the launcher started them or a standby forked them in its place."""
        servers = set(self._marked(_FORK_SERVER, without=b"\0\0"))
        forked = [pid for pid in servers if _parent(pid) in servers]
        return [*self._marked(b"-m\0training\0train\0", without=b"training.process.launcher"), *forked]

    def launchers(self) -> list[int]:
        """Return the launchers' process ids."""
        servers = set(self._marked(_FORK_SERVER, without=b"\0\0"))
        standbys = {_parent(parent) for pid in servers if (parent := _parent(pid)) in servers}
        return [*self._marked(b"training.process.launcher\0", without=b"guardian.py"), *standbys]

    def run_directory(self, run: str, generation: int) -> Path:
        """Return a generation's run directory."""
        return Layout(self.root).run_directory(run, generation)

    def records(self, run: str, generation: int, kind: str) -> list[dict[str, Any]]:
        """Return rank 0's metrics records, if it ran on this node."""
        return read_records(self.run_directory(run, generation), kind)

    def console(self) -> str:
        """Return the last lines of the supervisor's output."""
        return (self.root / "console.log").read_text(encoding="utf-8", errors="replace")[-2000:]

    def last_events(self) -> list[str]:
        """Return the supervisor's last events, excluding those from the trainers."""
        path = Layout(self.root).events
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [line[:500] for line in lines if '"event": "trainer"' not in line][-8:]

    def close(self) -> None:
        """Kill all of this node's processes."""
        self.kill_supervisor()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.metadata.close()

    def processes(self) -> list[int]:
        """Return the process ids of all the supervisor's descendants."""
        return self._marked(b"", without=b"\0\0")

    def _marked(self, wanted: bytes, without: bytes) -> list[int]:
        mark = f"{TRAINER_MARK}={self.root}".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                command = (entry / "cmdline").read_bytes()
                is_it = wanted in command and without not in command
                if is_it and mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:  # it has ended, or belongs to another user
                continue
        return found


def _parent(pid: int) -> int:
    """Return the parent's process id; 0 if the process has ended."""
    try:
        # The name in parentheses may contain spaces and parentheses, so split after the last parenthesis.
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except OSError:
        return 0


class _Machine(System):
    """This machine, but without shutdown, because the experiment continues after a node has stopped."""

    def shut_down(self) -> None:
        """Do nothing."""


if __name__ == "__main__":
    actor.MAX_RUN_DIRECTORIES = KEPT_RUN_DIRECTORIES
    sys.exit(0 if supervise(_Machine(), Layout(Path(sys.argv[1])), launcher_command) else 1)
