"""A virtual network: one namespace per node, joined by a bridge, so that nodes can be disconnected. Needs root.

A disconnected link drops packets silently, like a failed machine or network: connections are not reset. The addresses
are reserved for benchmarks by RFC 2544 and are not reachable from outside.
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


def has_namespaces() -> bool:
    """Return True if this process can create network namespaces."""
    return os.geteuid() == 0 and shutil.which("ip") is not None


class Network:
    """The bridge, its namespaces, and `address`, on which the shared services listen.

    Each process has a separate bridge. A new `Network` also removes bridges that killed processes left behind.
    """

    def __init__(self) -> None:
        _remove_leftovers()
        process = os.getpid()
        self._bridge = f"{_BRIDGE}{process}"
        self._prefix = f"198.{18 + process // 256 % 2}.{process % 256}"
        self.address = f"{self._prefix}.254"
        self._namespaces: list[str] = []
        # With an automatic MAC address, the bridge adopts its links' lowest address. When a node joined, the other
        # nodes kept the old address in their ARP caches and could not reach S3 for half a minute.
        _ip("link", "add", self._bridge, "address", _BRIDGE_MAC, "type", "bridge")
        _ip("addr", "add", f"{self.address}/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")

    def join(self, number: int) -> tuple[str, str]:
        """Create a node's namespace; return its name and its address."""
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

    def disconnect(self, name: str) -> None:
        """Drop all packets from and to this node."""
        _ip("link", "set", _link(name), "down")

    def reconnect(self, name: str) -> None:
        """Undo `disconnect`."""
        _ip("link", "set", _link(name), "up")

    def close(self) -> None:
        """Remove the bridge and the namespaces."""
        _remove(self._bridge, self._namespaces)


@contextlib.contextmanager
def inside(namespace: str | None) -> Iterator[None]:
    """Create this thread's sockets in a namespace; None: the current namespace.

    Raises:
        OSError: The namespace does not exist, or entering it is not permitted.
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
        raise OSError(ctypes.get_errno(), "cannot enter the network namespace")


def _link(namespace: str) -> str:
    return f"{namespace}v"


def _remove_leftovers() -> None:
    for bridge in (path.name for path in Path("/sys/class/net").glob(f"{_BRIDGE}*")):
        process = bridge[len(_BRIDGE) :]
        if process.isdigit() and not Path("/proc", process).exists():
            _remove(bridge, [path.name for path in Path("/run/netns").glob(f"{bridge}n*")])


def _remove(bridge: str, namespaces: list[str]) -> None:
    for name in namespaces:
        # Remove the link first: otherwise the namespace and its link would remain until its last connection times out.
        subprocess.run(["ip", "link", "del", _link(name)], check=False, stderr=subprocess.DEVNULL)
        _ip("netns", "del", name)
    _ip("link", "del", bridge)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
