"""The TCP connections of a process group, and how to break them.

When a machine disappears, its peers' collectives wait for their timeout: `abort`, `shutdown`,
`destroy_process_group` and a shorter timeout from another thread do not release them with gloo
(https://github.com/pytorch/pytorch/issues/130345). Shutting down the sockets does, within milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass
from pathlib import Path

import torch.distributed

SILENCE_LIMIT_SECONDS = 10
"""A connection ends if the other machine's kernel does not respond for this time. The kernel responds even if the
process is slow or stopped. Supervisors detect a lost machine earlier, unless its heartbeats arrive."""
PROBE_SECONDS = 2


@dataclass(frozen=True)
class Connection:
    """An open socket of this process. The inode identifies the socket after a descriptor has been reused."""

    descriptor: int
    inode: str


def tcp_connections() -> frozenset[Connection]:
    """Return this process's connected TCP sockets."""
    found = set()
    for name in [entry.name for entry in os.scandir("/proc/self/fd")]:
        inode = _inode(int(name))
        if inode is not None:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as each:
                if each.family in (socket.AF_INET, socket.AF_INET6) and each.type == socket.SOCK_STREAM:
                    each.getpeername()  # raises OSError if it is not connected
                    found.add(Connection(int(name), inode))
    return frozenset(found)


def shut_down(connections: frozenset[Connection]) -> None:
    """Shut down the sockets. Their owners notice the end of the stream, and close them."""
    for each in connections:
        if _inode(each.descriptor) == each.inode:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(each.descriptor)) as own:
                own.shutdown(socket.SHUT_RDWR)


def limit_silence(connections: frozenset[Connection]) -> None:
    """Make the kernel end these connections if the other machine does not answer.

    Otherwise, a rank that waits for data from a machine that has been cut off waits for the collective's timeout. With
    `TCP_USER_TIMEOUT`, the kernel ignores the number of probes.
    Source (2026-11): https://man7.org/linux/man-pages/man7/tcp.7.html
    """
    for each in connections:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(each.descriptor)) as own:
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_SECONDS)
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_SECONDS)
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_LIMIT_SECONDS * 1000)
            own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def are_open(connections: frozenset[Connection]) -> bool:
    """Return False if their owner has closed one of the connections."""
    return all(_inode(each.descriptor) == each.inode for each in connections)


def _inode(descriptor: int) -> str | None:
    try:
        target = str(Path("/proc/self/fd", str(descriptor)).readlink())
    except OSError:  # closed since the listing
        return None
    return target if target.startswith("socket:") else None


def is_broken_collective(error: Exception) -> bool:
    """Return True if the cause of an exception is a lost connection or a timeout of a process group."""
    if isinstance(error, torch.distributed.DistError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in ("gloo", "nccl"))
