"""A network of the machines' own: one namespace each, joined by a bridge, so that one can be cut off. Needs root.

What a cut link drops is dropped without a word, as it is when a real machine or its network goes: nobody's connection
is reset. The addresses are those that RFC 2544 sets aside for benchmarks; nothing outside this machine reaches them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

# Source: linux/sched.h
_CLONE_NEWNET = 0x40000000
_BRIDGE = "tsb"
_BRIDGE_MAC = "02:00:00:00:00:01"


def can_cut() -> bool:
    """Whether this machine lets us make namespaces."""
    return os.geteuid() == 0 and shutil.which("ip") is not None


class Network:
    """The bridge, with `address` for what all machines talk to, and the namespaces on it.

    Two processes have different ones. What a process left that was killed is removed by the next.
    """

    def __init__(self) -> None:
        _remove_left_over()
        process = os.getpid()
        self._bridge = f"{_BRIDGE}{process}"
        self._prefix = f"198.{18 + process // 256 % 2}.{process % 256}"
        self.address = f"{self._prefix}.254"
        self._namespaces: list[str] = []
        # One that nobody chose changes when a machine with a lower one joins, and what the others send is then lost for
        # as long as they remember the old one: all of them were without S3 for half a minute.
        _ip("link", "add", self._bridge, "address", _BRIDGE_MAC, "type", "bridge")
        _ip("addr", "add", f"{self.address}/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")

    def join(self, number: int) -> tuple[str, str]:
        """Make a machine's namespace; return its name and its address."""
        name, address = f"{self._bridge}n{number}", f"{self._prefix}.{number % 250 + 1}"
        _ip("netns", "add", name)
        self._namespaces.append(name)
        _ip("link", "add", _link(name), "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", _link(name), "master", self._bridge, "up")
        for command in (
            ("addr", "add", f"{address}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
        ):
            _ip("-n", name, *command)
        return name, address

    def cut(self, name: str) -> None:
        """Drop all that this machine sends, and all that is sent to it."""
        _ip("link", "set", _link(name), "down")

    def mend(self, name: str) -> None:
        """Connect it again."""
        _ip("link", "set", _link(name), "up")

    def close(self) -> None:
        """Remove everything."""
        _remove(self._bridge, self._namespaces)


@contextlib.contextmanager
def inside(namespace: str | None) -> Iterator[None]:
    """Let this thread make its sockets in a namespace; None: where it is.

    Raises:
        OSError: There is no such namespace, or it may not be entered.
    """
    if namespace is None:
        yield
        return
    with Path("/proc/thread-self/ns/net").open("rb") as own, Path("/run/netns", namespace).open("rb") as other:
        _enter(other.fileno())
        try:
            yield
        finally:
            _enter(own.fileno())


def _enter(descriptor: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.setns(descriptor, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "the network namespace cannot be entered")


def _link(namespace: str) -> str:
    return f"{namespace}v"


def _remove_left_over() -> None:
    for bridge in (path.name for path in Path("/sys/class/net").glob(f"{_BRIDGE}*")):
        process = bridge[len(_BRIDGE) :]
        if process.isdigit() and not Path("/proc", process).exists():
            _remove(bridge, [path.name for path in Path("/run/netns").glob(f"{bridge}n*")])


def _remove(bridge: str, namespaces: list[str]) -> None:
    for name in namespaces:
        # By itself it goes with the namespace, which stays until the last of its connections has timed out.
        subprocess.run(["ip", "link", "del", _link(name)], check=False, stderr=subprocess.DEVNULL)
        _ip("netns", "del", name)
    _ip("link", "del", bridge)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
