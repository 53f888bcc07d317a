"""A program that hashes files while they grow: BLAKE3 of each, read from the page cache behind the part that is there.

Each line of standard input is a JSON object: `path`, its whole `size`, and how many of its first bytes are `ready`.
A line of standard output, `path` and `hash`, comes when all of a file was ready. It ends when its input does. It runs
in the interpreter that trains, for that has blake3.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import threading
from pathlib import Path
from typing import Any

STRIDE_BYTES = 16 * 1024 * 1024
"""Hashed in one call, by all cores: enough of it that they are worth waking."""


class Growing:
    """A file that grows, and the thread that hashes it."""

    def __init__(self, path: str, size: int) -> None:
        self._path = path
        self._size = size
        self._ready = 0
        self._grown = threading.Condition()
        threading.Thread(target=self._hash, daemon=True).start()

    def grow(self, ready: int) -> None:
        """Say how many of the first bytes are there."""
        with self._grown:
            self._ready = ready
            self._grown.notify()

    def _more_than(self, done: int) -> int:
        with self._grown:
            while self._ready <= done:
                self._grown.wait()
            return self._ready

    def _hash(self) -> None:
        try:
            answer = {"path": self._path, "hash": self._digest()}
        except (OSError, ImportError) as error:
            answer = {"path": self._path, "problem": f"{type(error).__name__}: {error}"}
        os.write(1, (json.dumps(answer) + "\n").encode())

    def _digest(self) -> str:
        from blake3 import blake3

        digest, done = blake3(max_threads=blake3.AUTO), 0
        with (
            Path(self._path).open("rb") as stream,
            mmap.mmap(stream.fileno(), self._size, prot=mmap.PROT_READ) as mapped,
            memoryview(mapped) as view,
        ):
            while done < self._size:
                ready = self._more_than(done)
                while done < ready:
                    end = min(ready, done + STRIDE_BYTES)
                    digest.update(view[done:end])
                    done = end
        found: str = digest.hexdigest()
        return found


def main() -> None:
    """Serve until the input ends."""
    files: dict[str, Growing] = {}
    for line in sys.stdin:
        told: dict[str, Any] = json.loads(line)
        path = told["path"]
        if path not in files:
            files[path] = Growing(path, told["size"])
        files[path].grow(told["ready"])
        if told["ready"] == told["size"]:
            del files[path]
    os._exit(0)


if __name__ == "__main__":
    main()
