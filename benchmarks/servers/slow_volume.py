"""A disk whose first read of each block is slow, like an EBS volume from a snapshot; uses FUSE and a loop device.

The file system has only one file and implements the kernel's FUSE protocol directly. It runs in a separate process, so
that it does not compete for this process's interpreter lock. Source: linux/fuse.h (protocol 7.31).
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

BLOCK_BYTES = 512 * 1024
NAME = "disk.img"
SERVERS = 160
_IN, _OUT = struct.Struct("=IIQQIIII"), struct.Struct("=IiQ")
_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _STATFS, _RELEASE, _FSYNC = 1, 2, 3, 14, 15, 17, 18, 20
_FLUSH, _INIT, _OPENDIR, _RELEASEDIR, _INTERRUPT, _BATCH_FORGET = 25, 26, 27, 29, 36, 42
_NO_RESPONSE, _EMPTY = (_FORGET, _INTERRUPT, _BATCH_FORGET), (_RELEASE, _FSYNC, _FLUSH, _RELEASEDIR)
_ENOENT, _ENOSYS = 2, 38
_ASYNC_READ, _ASYNC_DIO, _MAX_PAGES = 1 << 0, 1 << 15, 1 << 22
_PAGES_PER_READ = 256


class SlowFile:
    """Serves one read-only file. The first read of a block after a `reset` takes `delay_seconds`."""

    def __init__(self, backing: Path, mount: Path, delay_seconds: float) -> None:
        self._file = os.open(backing, os.O_RDONLY)
        self._size = backing.stat().st_size
        self._delay = delay_seconds
        self._ready: dict[int, float] = {}
        self._fuse = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={self._fuse},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"slow", os.fsencode(mount), b"fuse.slow", ctypes.c_ulong(0), options) != 0:
            raise OSError(ctypes.get_errno(), f"{mount}: {os.strerror(ctypes.get_errno())}")

    def serve(self) -> None:
        """Start serving in daemon threads."""
        for _ in range(SERVERS):
            threading.Thread(target=self._answer, daemon=True).start()

    def reset(self) -> None:
        """Make all blocks slow again."""
        self._ready = {}

    def _answer(self) -> None:
        buffer = bytearray(1024**2 + 4096)
        while True:
            try:
                length = os.readv(self._fuse, [buffer])
            except OSError:  # unmounted
                return
            _, opcode, unique, node, *_ = _IN.unpack_from(buffer)
            if opcode in _NO_RESPONSE:
                continue
            error, body = self._reply(opcode, node, bytes(buffer[_IN.size : min(length, 512)]))
            os.writev(self._fuse, [_OUT.pack(_OUT.size + len(body), -error, unique), body])

    def _reply(self, opcode: int, node: int, request: bytes) -> tuple[int, bytes]:
        if opcode == _READ:
            offset, count = struct.unpack_from("=QI", request, 8)
            self._wait(offset, count)
            return 0, os.pread(self._file, count, offset)
        if opcode == _INIT:
            flags = _ASYNC_READ | _ASYNC_DIO | _MAX_PAGES
            head = struct.pack("=IIIIHHIIHHI", 7, 31, 0, flags, 1024, 1024, 1024**2, 1, _PAGES_PER_READ, 0, 0)
            return 0, head.ljust(64, b"\0")
        if opcode == _LOOKUP:
            if request.split(b"\0")[0] != NAME.encode():
                return _ENOENT, b""
            return 0, struct.pack("=QQQQII", 2, 0, 3600, 3600, 0, 0) + self._attributes(2)
        if opcode == _GETATTR:
            return 0, struct.pack("=QII", 3600, 0, 0) + self._attributes(node)
        if opcode in (_OPEN, _OPENDIR):
            return 0, struct.pack("=QII", 0, 0, 0)
        if opcode == _STATFS:
            return 0, bytes(80)
        return (0, b"") if opcode in _EMPTY else (_ENOSYS, b"")

    def _wait(self, offset: int, count: int) -> None:
        now, ready = time.monotonic(), self._ready
        last = (offset + max(count, 1) - 1) // BLOCK_BYTES
        until = max(ready.setdefault(block, now + self._delay) for block in range(offset // BLOCK_BYTES, last + 1))
        if until > now:
            time.sleep(until - now)  # simulates the slow read

    def _attributes(self, node: int) -> bytes:
        mode, size = (0o040755, 0) if node == 1 else (0o100444, self._size)
        words = (0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)
        return struct.pack("=QQQQQQ10I", node, size, size // 512, 0, 0, 0, *words)


@dataclass
class SlowDisk:
    """A loop device, and the process that serves its file system."""

    device: Path
    _server: subprocess.Popen[str]

    def forget(self) -> None:
        """Make all blocks slow again, and drop this machine's page cache."""
        assert self._server.stdin is not None and self._server.stdout is not None
        subprocess.run(["blockdev", "--flushbufs", str(self.device)], check=True)
        Path("/proc/sys/vm/drop_caches").write_text("3\n", encoding="ascii")
        self._server.stdin.write("reset\n")
        self._server.stdin.flush()
        if self._server.stdout.readline() != "ok\n":
            raise SystemExit("the slow file system exited; see its output above")


@contextmanager
def slow_disk(backing: Path, delay_seconds: float) -> Iterator[SlowDisk]:
    """Yield a read-only disk with the content of `backing`. Requires root."""
    mount = backing.with_suffix(".fuse")
    mount.mkdir()
    command = [sys.executable, "-m", "benchmarks.servers.slow_volume", str(backing), str(mount), str(delay_seconds)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    device = ""
    try:
        assert server.stdout is not None
        if server.stdout.readline() != "ok\n":
            raise SystemExit("the slow file system did not start; it requires root and /dev/fuse")
        loop = ["losetup", "--find", "--show", "--read-only", "--direct-io=on", str(mount / NAME)]
        device = subprocess.run(loop, check=True, capture_output=True, text=True).stdout.strip()
        yield SlowDisk(Path(device), server)
    finally:
        if device:
            subprocess.run(["losetup", "--detach", device], check=False)
        subprocess.run(["umount", "--lazy", str(mount)], check=False)
        server.kill()
        server.wait()


def main(arguments: list[str]) -> int:
    """Serve until standard input ends; each line makes all blocks slow again."""
    backing, mount, delay_seconds = arguments
    file = SlowFile(Path(backing), Path(mount), float(delay_seconds))
    file.serve()
    print("ok", flush=True)
    for _ in sys.stdin:
        file.reset()
        print("ok", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
