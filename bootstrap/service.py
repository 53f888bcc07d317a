"""The supervisor as a systemd service: started again when it dies, and after a restart of the machine, with its limits.

The boot writes the unit and starts it; what it runs is `python -m bootstrap service`. A node without systemd, or of an
emulated cloud, goes on as the supervisor in the boot's own process.
Source (2026-11): systemd.service(5), systemd.unit(5), systemd.kill(5), systemd.exec(5).
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Mapping
from pathlib import Path

from bootstrap.errors import CommandError, MetadataError
from bootstrap.events import EventLog
from bootstrap.imds import InstanceMetadata
from bootstrap.layout import Layout
from bootstrap.system import System

logger = logging.getLogger(__name__)

UNIT = "trainstack.service"
UNITS = Path("/etc/systemd/system")
RUNNING = Path("/run/systemd/system")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
PROGRAM_SECONDS = 60.0
# Longer than the supervisor takes to end by itself after SIGTERM (20 s), with the trainers' last save.
STOP_SECONDS = 60
# What the shim's environment says of where things are; credentials are the role's, and are in no file.
_KEPT = ("PATH", "LD_LIBRARY_PATH", "S3_ENDPOINT_URL", "LANG")
_KEPT_PREFIXES = ("AWS_", "PYTHON", "TRAINSTACK_")
_SECRET = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")

_TEMPLATE = """\
[Unit]
Description=Trainstack: keeps this node's trainers going
Wants=network-online.target
After=network-online.target remote-fs.target
# Five ends within ten minutes: the machine is given back (its launch template says terminate on shutdown).
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
# SIGTERM is the supervisor's, which lets the trainers save; whatever is left after it is killed.
KillMode=mixed
TimeoutStopSec={stop_seconds}
# A rank that runs out of memory is the supervisor's affair: it ends the generation and starts the next.
OOMPolicy=continue
# EFA and GPUs pin memory; loaders of many shards open many files.
LimitMEMLOCK=infinity
LimitNOFILE=1048576
TasksMax=infinity

[Install]
WantedBy=multi-user.target
"""


def unit_text(*, interpreter: str, directory: Path, root: Path, environment: Mapping[str, str]) -> str:
    """Return the unit.

    Args:
        interpreter: absolute path of the Python that runs the node program.
        directory: that holds the `bootstrap` package.
        root: of everything the node keeps.
        environment: of this process, of which what says where things are is kept.
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


def hand_over(system: System, layout: Layout) -> bool:
    """Write the unit and start it; return whether systemd has taken the supervisor over.

    A systemd that refuses is said in an event, and the node trains without it.
    """
    metadata = InstanceMetadata(system)
    if not metadata.is_of_this_machine or not RUNNING.is_dir():
        return False
    text = unit_text(
        interpreter=sys.executable,
        directory=Path(__file__).resolve().parent.parent,
        root=layout.root,
        environment=system.environment(),
    )
    system.write_atomic(UNITS / UNIT, text)
    (UNITS / UNIT).chmod(0o644)
    try:
        for arguments in (["daemon-reload"], ["enable", "--quiet", UNIT], ["start", UNIT]):
            system.run(["systemctl", *arguments], timeout_seconds=PROGRAM_SECONDS)
    except CommandError as error:
        events = EventLog(system, layout.events)
        with contextlib.suppress(MetadataError):  # then it is an event of an unknown node, in its own file
            events.set_instance(metadata.identity().instance_id)
        events.emit(
            "instance_fault",
            message=f"systemd does not take the supervisor over: {error} {error.output_tail[-200:].strip()}",
            action="continue",
            remedy=f"see systemctl status {UNIT}; the node trains, and nobody starts a supervisor that dies again",
        )
        return False
    return True


def note_boot(system: System, layout: Layout) -> None:
    """Remember that the steps were run since the machine started."""
    system.write_atomic(layout.state / "boot_id", _boot_id(system))


def has_booted(system: System, layout: Layout) -> bool:
    """Return whether the steps were run since the machine started."""
    return system.read(layout.state / "boot_id") == _boot_id(system)


def _boot_id(system: System) -> str:
    return (system.read(BOOT_ID) or "").strip()


def _quoted(value: str) -> str:
    """Escape what systemd reads in a quoted assignment: quotes, backslashes, and % of its specifiers."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
