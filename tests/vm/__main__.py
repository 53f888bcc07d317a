"""`make test-vm`: deploys to the embedded cloud, whose only instance is a Debian guest in QEMU, and trains in it.

The guest boots like an EC2 instance: firmware, kernel, systemd, cloud-init with the EC2 data source, the user data, the
node program as root on real disks, the supervisor under systemd. It has no GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localcloud.demo.commands import CommandFailed
from localcloud.demo.driver import Demo
from localcloud.demo.watch import EventLog, Fault, RunFailed, follow
from localcloud.state import MARKER, mark_of, read_cloud_file
from tests.vm.image import make_image

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAMS = {"debootstrap": "debootstrap", "qemu-system-x86_64": "qemu-system-x86", "mke2fs": "e2fsprogs"}
CONSOLE_TAIL_BYTES = 20_000
UP_SECONDS = 60.0


@dataclass
class VirtualMachineRun(Demo):
    """The demo, on a cloud whose instances are QEMU guests."""

    accelerator: str = "tcg"
    limit_seconds: float = 2400.0

    def _cloud(self, verb: str) -> None:
        if verb == "down":
            super()._cloud(verb)
            return
        self._command("down", self._localcloud("down"), {})
        self.state.mkdir(parents=True, exist_ok=True)
        arguments = [sys.executable, "-m", "tests.vm.cloud", str(self.state), str(self.build), self.accelerator]
        with (self.state / "cloud.log").open("ab") as log:
            process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, MARKER: mark_of(self.state)},
                start_new_session=True,
            )
        deadline = time.monotonic() + UP_SECONDS
        while read_cloud_file(self.state) is None:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RunFailed(f"the cloud does not start: see {self.state / 'cloud.log'}")
            time.sleep(0.1)
        self.log(time.time(), "cloud", verb)

    def _train(self, environment: Mapping[str, str]) -> EventLog:
        log = EventLog(self._client("logs", environment), self._outputs()["LogGroup"])
        no_fault = Fault("none", 1.0, interrupt=self._interrupt)
        try:
            follow(
                log,
                no_fault,
                report=self.log,
                running_instances=self._running_instances,
                stall_seconds=self.limit_seconds,
            )
        finally:
            self._keep(log)
        return log

    def _log_deploy(self, line: str) -> None:
        """Print nothing: the demo covers the output of a deploy."""

    def _keep(self, log: EventLog) -> None:
        """Write the record of the run, even if it failed."""
        consoles = sorted((self.state / "instances").glob("*/console.log"), key=lambda path: path.stat().st_mtime)
        text = consoles[-1].read_text(errors="replace") if consoles else ""
        record = {
            "accelerator": self.accelerator,
            "events": [event for event in log.events if event["event"] != "gpu_use"],
            "probe": [line.partition("PROBE ")[2].strip() for line in text.splitlines() if line.startswith("PROBE ")],
            "console_tail": text[-CONSOLE_TAIL_BYTES:],
        }
        (self.build / "record.json").write_text(json.dumps(record, indent=2) + "\n")


def missing_programs() -> list[str]:
    """Return the Debian packages of missing programs."""
    return sorted(package for name, package in PROGRAMS.items() if shutil.which(name) is None)


def judge(record: Mapping[str, Any]) -> list[str]:
    """Return the expectations that the record does not meet."""
    events = record["events"]
    names = {event["event"] for event in events}
    steps = {event["step"]: event["outcome"] for event in events if event["event"] == "boot_step"}
    started = [event for event in events if event["event"] == "supervisor_started"]
    records = [event["record"] for event in events if event["event"] == "trainer"]
    resumed = [record["resumed_from_step"] for record in records if record["record"] == "start"]
    probe = "\n".join(record["probe"])
    expected = {
        "every boot step is done": bool(steps) and set(steps.values()) == {"done"},
        "the run finished": "run_finished" in names,
        "systemd restarted the supervisor after SIGKILL": len(started) >= 2 and "NRestarts=1" in probe,
        "training resumed from the last checkpoint": len(resumed) >= 2 and bool(resumed[-1]),
        "the unit has its settings": all(one in probe for one in ("KillMode=mixed", "OOMPolicy=continue")),
        "datasets are on the instance store array": "active raid0" in probe and "/opt/trainstack/datasets" in probe,
        "the root disk is unchanged": "Amazon Elastic Block Store" in probe,
        "no instance faults": "instance_fault" not in names,
    }  # fmt: skip
    return [name for name, is_met in expected.items() if not is_met]


def main() -> int:
    """Run the test within its time limit; print unmet expectations and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.vm", description=__doc__)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "vm", help="output directory")
    parser.add_argument(
        "--accelerator",
        choices=("tcg", "kvm"),
        default="tcg",
        help="QEMU accelerator (default: tcg, available everywhere)",
    )
    parser.add_argument("--limit-seconds", type=float, default=2400.0, help="time limit (default: %(default)g)")
    options = parser.parse_args()
    if missing_programs():
        parser.exit(2, f"missing packages, install them with apt-get: {' '.join(missing_programs())}\n")
    if os.geteuid() != 0:
        parser.exit(2, "needs root to create the image and to serve instance metadata on port 80\n")
    options.build.mkdir(parents=True, exist_ok=True)
    make_image(options.build)
    started = time.time()

    def log(when: float, source: str, line: str) -> None:
        print(f"{when - started:8.1f} s  {source}: {line}", flush=True)

    run = VirtualMachineRun(
        config=ROOT / "tests" / "vm" / "deployment.yaml",
        build=options.build,
        data=ROOT / "docs",
        fault="none",
        log=log,
        accelerator=options.accelerator,
        limit_seconds=options.limit_seconds,
    )
    timer = threading.Timer(options.limit_seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.daemon = True
    timer.start()
    try:
        run.run()
    except (CommandFailed, RunFailed) as failure:
        print(failure, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"stopped after {time.time() - started:.0f} s; see {options.build}", file=sys.stderr)
        return 1
    finally:
        timer.cancel()
        for store in options.build.glob("cloud/instances/*/instance-store-*.raw"):
            with contextlib.suppress(FileNotFoundError):
                store.unlink()
    unmet = judge(json.loads((options.build / "record.json").read_text()))
    for name in unmet:
        print(f"not met: {name}", file=sys.stderr)
    return 1 if unmet else 0


if __name__ == "__main__":
    sys.exit(main())
