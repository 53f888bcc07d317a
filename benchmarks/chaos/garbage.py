"""During training, adds objects that no part of this project writes to the records of a supervised run.

Anyone who controls a node can write these objects with the node's permissions. The run must continue.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

PAUSE_SECONDS = 0.2
CONTENTS = (
    b"", b"\xff", b"[]", b"null", b"[" * 50_000, b'{"a":' * 5_000, b'{"sequence": 1e999}', b"9" * 50_000,
    b"x" * 2_000_000,
    b'{"schema_version": 2, "instance_id": "i-0", "address": "10.0.0.1\x00", "sequence": -1}',
)  # fmt: skip
NAMES = (
    "control/heartbeats/{unique}.json", "control/heartbeats/AROACHAOS:i-{unique}.json",
    "control/heartbeats/i-{unique}.json", "control/heartbeats/i-{unique}/x.json",
    "control/generations/zz-{unique}", "control/generations/99999999.json", "control/generations/{unique}.json",
    "control/{unique}", "control/controller.json", "checkpoints/log/99999999.json", "checkpoints/log/{unique}.json",
    "checkpoints/log/00000001.json.{unique}", "checkpoints/tags/{unique}.json", "checkpoints/dropped/{unique}",
    "checkpoints/parts/{unique}", "checkpoints/parts/00000000/000001/00001.json",
    "checkpoints/parts/00000001/000001/00001.json",
)  # fmt: skip


class Garbage:
    """Writes up to `count` objects from a thread, and counts them.

    Args:
        s3: client for S3.
        bucket: bucket of the run.
        prefix: prefix of the run, such as `runs/FLEET/NAME/`.
        count: number of objects.
        seed: seed for names and contents.
    """

    def __init__(self, s3: Any, bucket: str, prefix: str, count: int, seed: str) -> None:
        self.done = 0
        self._s3, self._bucket, self._prefix = s3, bucket, prefix
        self._objects = objects(count, seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._put, name="garbage", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread."""
        self._stop.set()
        self._thread.join()

    def _put(self) -> None:
        for name, content in self._objects:
            if self._stop.wait(PAUSE_SECONDS):
                return
            self._s3.put_object(Bucket=self._bucket, Key=self._prefix + name, Body=content)
            self.done += 1


def objects(count: int, seed: str) -> Iterator[tuple[str, bytes]]:
    """Yield names, relative to a run's prefix, and contents. Each name occurs once before any name is repeated."""
    choice = random.Random(seed)  # noqa: S311 (not a secret)
    for number in range(count):
        unique = f"{choice.getrandbits(68):017x}"
        yield NAMES[number % len(NAMES)].format(unique=unique), choice.choice(CONTENTS)
