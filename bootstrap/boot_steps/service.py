"""Runs the supervisor as a systemd service, so that systemd restarts it after a crash and after a machine restart.

`boot` writes and enables the unit, and starts it after the boot steps. The unit runs `python -m bootstrap service`. On
a node without systemd or in an embedded cloud, the boot process itself becomes the supervisor.
Source (2026-11): systemd.service(5), systemd.unit(5), systemd.kill(5), systemd.exec(5).
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Mapping
from pathlib import Path

from bootstrap.errors import CommandError, MetadataError
from bootstrap.events.log import EventLog
from bootstrap.events.schema import InstanceFault
from bootstrap.imds import InstanceMetadata
from bootstrap.layout import Layout
from bootstrap.system import System

logger = logging.getLogger(__name__)

UNIT = "trainstack.service"
UNITS = Path("/etc/systemd/system")
RUNNING = Path("/run/systemd/system")
PROGRAM_SECONDS = 60.0
# Longer than the supervisor needs to exit after SIGTERM (20 s), including the trainers' final save.
STOP_SECONDS = 60
# Variables that the unit inherits from the shim's environment. Credentials come from the role and are never written to
# a file.
_KEPT = ("PATH", "LD_LIBRARY_PATH", "S3_ENDPOINT_URL", "LANG")
_KEPT_PREFIXES = ("AWS_", "PYTHON", "TRAINSTACK_")
_SECRET = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")

_TEMPLATE = """\
[Unit]
Description=Trainstack supervisor: manages the trainers of this node
Wants=network-online.target
After=network-online.target remote-fs.target
# After five exits within ten minutes, power off, which terminates the instance (see its launch template).
StartLimitIntervalSec=600
StartLimitBurst=5
StartLimitAction=poweroff

[Service]
Type=exec
WorkingDirectory={directory}
{environment}
ExecStart={interpreter} -m bootstrap service --root {root}
Restart=on-failure
RestartSec=1
# Only the supervisor receives SIGTERM. It lets the trainers save, and systemd then kills remaining processes.
KillMode=mixed
TimeoutStopSec={stop_seconds}
# If a rank runs out of memory, the supervisor ends the generation and starts the next one.
OOMPolicy=continue
# EFA and GPUs pin memory; data loaders open many files.
LimitMEMLOCK=infinity
LimitNOFILE=1048576
TasksMax=infinity

[Install]
WantedBy=multi-user.target
"""


def unit_text(*, interpreter: str, directory: Path, root: Path, environment: Mapping[str, str]) -> str:
    """Return the text of the unit file.

    Args:
        interpreter: Absolute path of the Python that runs the node program.
        directory: Directory of the `bootstrap` package.
        root: Root directory of the node's files.
        environment: This process's environment. The unit inherits part of it.
    """
    kept = {
        name: value
        for name, value in sorted(environment.items())
        if (name in _KEPT or name.startswith(_KEPT_PREFIXES)) and name not in _SECRET
    }
    lines = [f'Environment="{name}={_quoted(value)}"' for name, value in kept.items()]
    return _TEMPLATE.format(
        interpreter=interpreter,
        directory=directory,
        root=root,
        environment="\n".join(lines),
        stop_seconds=STOP_SECONDS,
    ).replace("\n\n\nExec", "\nExec")


def install_service(system: System, layout: Layout) -> bool:
    """Write and enable the unit. Return True if systemd can run the supervisor.

    `boot` calls this function before the boot steps, because cloud-init runs user data only at an instance's first
    boot. If a service in the image or a patch policy restarts the machine during the boot steps, systemd runs them
    again.
    """
    if not InstanceMetadata(system).is_of_this_machine or not RUNNING.is_dir():
        return False
    text = unit_text(
        interpreter=sys.executable,
        directory=Path(__file__).resolve().parent.parent,
        root=layout.root,
        environment=system.environment(),
    )
    system.write_atomic(UNITS / UNIT, text)
    (UNITS / UNIT).chmod(0o644)
    return _systemctl(system, layout, "daemon-reload") and _systemctl(system, layout, "enable", "--quiet", UNIT)


def start_service(system: System, layout: Layout) -> bool:
    """Start the installed unit. Return True if systemd runs the supervisor."""
    return _systemctl(system, layout, "start", UNIT)


def _systemctl(system: System, layout: Layout, *arguments: str) -> bool:
    """Run systemctl. A failure is reported as an event, and the node then trains without systemd."""
    try:
        system.run(["systemctl", *arguments], timeout_seconds=PROGRAM_SECONDS)
    except CommandError as error:
        events = EventLog(system, layout.events)
        with contextlib.suppress(MetadataError):  # without an instance id, the event is only in the node's file
            events.set_instance(InstanceMetadata(system).identity().instance_id)
        events.emit(
            InstanceFault(
                f"cannot start {UNIT}: {error} {error.output_tail[-200:].strip()}",
                "continue",
                f"see systemctl status {UNIT}; the node trains, but its supervisor is not restarted after a crash",
            )
        )
        return False
    return True


def record_boot(system: System, layout: Layout) -> None:
    """Record that the boot steps have run since the machine started."""
    system.write_atomic(layout.state / "boot_id", system.boot_id())


def has_booted(system: System, layout: Layout) -> bool:
    """Return True if the boot steps have run since the machine last started."""
    return system.read(layout.state / "boot_id") == system.boot_id()


def _quoted(value: str) -> str:
    """Escape quotes, backslashes and % (specifiers) for a quoted assignment in a unit file."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
