"""A program that computes the BLAKE3 hashes of files while they download, reading from the page cache.

Standard input: lines of JSON with the file's `path`, its final `size`, and the number of leading bytes that are
`ready`. Standard output: one line for each complete file, with `path` and either `hash` or `problem`. The program exits
when its input ends. It runs in the training interpreter, which has blake3.
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
"""Bytes per call; enough to keep all cores busy."""


class GrowingFile:
    """A growing file and the thread that hashes it."""

    def __init__(self, path: str, size: int) -> None:
        self._path = path
        self._size = size
        self._ready = 0
        self._grown = threading.Condition()
        threading.Thread(target=self._hash, daemon=True).start()

    def grow(self, ready: int) -> None:
        """Set the number of leading bytes that are on disk."""
        with self._grown:
            self._ready = ready
            self._grown.notify()

    def _wait_for_more_than(self, done: int) -> int:
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
                ready = self._wait_for_more_than(done)
                while done < ready:
                    end = min(ready, done + STRIDE_BYTES)
                    digest.update(view[done:end])
                    done = end
        found: str = digest.hexdigest()
        return found


def main() -> None:
    """Serve requests until the input ends."""
    files: dict[str, GrowingFile] = {}
    for line in sys.stdin:
        message: dict[str, Any] = json.loads(line)
        path = message["path"]
        if path not in files:
            files[path] = GrowingFile(path, message["size"])
        files[path].grow(message["ready"])
        if message["ready"] == message["size"]:
            del files[path]
    os._exit(0)


if __name__ == "__main__":
    main()
