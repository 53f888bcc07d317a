"""Calls the Slurm commands that a job needs."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Mapping, Sequence

COMMAND_SECONDS = 60
CONNECT_SECONDS = 3.0
SLURMD_PORT, KILL_WAIT_SECONDS = 6818, 30
"""Slurm's defaults. Source (2026-11): https://slurm.schedmd.com/slurm.conf.html"""
# States of a node that does not run its part of a job. Source (2026-11): https://slurm.schedmd.com/sinfo.html
_LOST = ("down", "fail", "power")
KEPT_VARIABLES = ("SLURM_CONF",)


class SlurmError(Exception):
    """A Slurm command failed or timed out."""


def call(*command: str, variables: Mapping[str, str] | None = None) -> str:
    """Run a command and return its output.

    The job's own SLURM_ variables are removed, because sbatch would read some of them as options.

    Raises:
        SlurmError: The command failed.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name in KEPT_VARIABLES or not name.startswith(("SLURM_", "SBATCH_", "TRAINSTACK_"))
    }
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMMAND_SECONDS, env={**inherited, **(variables or {})}
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmError(f"{command[0]}: {error}") from error
    if done.returncode:
        raise SlurmError(f"{' '.join(command)}: code {done.returncode}: {(done.stderr or done.stdout).strip()[-400:]}")
    return done.stdout.strip()


def job_attributes(number: str) -> dict[str, str]:
    """Return a job's attributes, such as JobState; empty if the controller no longer has a record of the job.

    Raises:
        SlurmError: The controller does not respond.
    """
    try:
        text = call("scontrol", "--oneliner", "show", "job", number)
    except SlurmError as error:
        if "Invalid job id" in str(error):
            return {}
        raise
    return dict(word.split("=", 1) for word in text.split() if "=" in word)


def is_alive(number: str) -> bool:
    """Return whether a job is pending or running. Raises SlurmError."""
    return job_attributes(number).get("JobState", "") in ("PENDING", "RUNNING", "CONFIGURING", "REQUEUED", "SUSPENDED")


def hosts(nodes: str) -> list[str]:
    """Return the names in a node list such as `n[1-2]`. Raises SlurmError."""
    return call("scontrol", "show", "hostnames", nodes).split()


def lost_nodes(nodes: Sequence[str]) -> frozenset[str]:
    """Return the nodes that are down, and the nodes that neither the controller nor this node can reach.

    Immediately after a restart, the controller does not know which nodes respond. Raises SlurmError.
    """
    text = call("sinfo", "--noheader", "--Node", "--nodes", ",".join(nodes), "--format", "%N %T")
    found, silent = set(), set()
    for line in text.splitlines():
        name, _, state = line.strip().partition(" ")
        if state.lower().startswith(_LOST):
            found.add(name)
        elif state.endswith("*") or state.lower().startswith("unk"):
            silent.add(name)
    return frozenset(found) | (unreachable_nodes(sorted(silent)) if silent else frozenset())


def usable_nodes(partition: str) -> frozenset[str]:
    """Return the nodes of a partition (empty: all) that are not lost, drained or reserved. Raises SlurmError."""
    command = ["sinfo", "--noheader", "--Node", "--format", "%N %T", *(["--partition", partition] if partition else [])]
    usable = set()
    for line in call(*command).splitlines():
        name, _, state = line.partition(" ")
        if state.strip().lower() in ("idle", "mixed", "allocated", "completing"):
            usable.add(name)
    return frozenset(usable)


def unreachable_nodes(nodes: Sequence[str]) -> frozenset[str]:
    """Return the nodes whose daemon refuses a connection or does not respond.

    The controller reports a dead node only after SlurmdTimeout, usually five minutes. Raises SlurmError.
    """
    text = call("scontrol", "--oneliner", "show", "node", ",".join(nodes))
    default = _slurmd_port()
    found = set()
    for line in text.splitlines():
        values = dict(word.split("=", 1) for word in line.split() if "=" in word)
        address = (values.get("NodeAddr") or values["NodeName"], int(values.get("Port") or default))
        try:
            socket.create_connection(address, timeout=CONNECT_SECONDS).close()
        except OSError:
            found.add(values["NodeName"])
    return frozenset(found)


def grace_seconds(partition: str) -> int:
    """Return the time between SIGTERM and SIGKILL at a preemption in a partition, in seconds. Raises SlurmError.

    The time is the partition's GraceTime, or KillWait if that is longer. Source (2026-11):
    https://slurm.schedmd.com/preempt.html
    """
    text = call("scontrol", "--oneliner", "show", "partition", partition) if partition else ""
    grace = next((word.partition("=")[2] for word in text.split() if word.startswith("GraceTime=")), "0")
    return max(int(grace) if grace.isdecimal() else 0, _number("KillWait", KILL_WAIT_SECONDS))


def _slurmd_port() -> int:
    """Return the port of the daemons, which can be a range on nodes that share a machine."""
    return _number("SlurmdPort", SLURMD_PORT)


def _number(setting: str, default: int) -> int:
    """Return the number at the start of a cluster setting, such as `30 sec`. Raises SlurmError."""
    for line in call("scontrol", "show", "config").splitlines():
        name, _, value = line.partition("=")
        found = re.match(r"\d+", value.strip())
        if name.strip() == setting and found is not None:
            return int(found[0])
    return default
