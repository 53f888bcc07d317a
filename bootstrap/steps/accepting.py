"""Gives copied files their final names once their bytes are found to be what the index says, while others are copied.

s5cmd writes to a name of its own and renames, so a part that is there is whole. Hashes are made here where this
interpreter has blake3, else, as all expanding of zstd, in a process of the training interpreter for many files at once.
"""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Optional

from bootstrap.dataset_index import DatasetFile
from bootstrap.errors import CommandError, StepError
from bootstrap.plan import Context
from bootstrap.steps.interpreter import find_interpreter

PART = ".part"
PLAIN = ".plain"
_READ_BYTES = 1024 * 1024

# Runs in the training interpreter: hashes each [path, path for its plain bytes, or null] of the JSON list that the
# command line names, and expands it there. Prints a JSON list of a hash, or null where it cannot be expanded.
_HASHER = """
import sys
sys.path.pop(0)  # the working directory
import json, os
from concurrent.futures import ThreadPoolExecutor
from blake3 import blake3
def expand(path, plain):
    import zstandard
    digest = blake3()
    with open(path, "rb") as packed, open(plain, "wb") as target:
        try:
            for chunk in zstandard.ZstdDecompressor().read_to_iter(packed, read_size=1 << 20, write_size=1 << 20):
                digest.update(chunk)
                target.write(chunk)
        except zstandard.ZstdError:
            return None
    return digest.hexdigest()
def hash_of(item):
    path, plain = item
    return expand(path, plain) if plain else blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest()
with ThreadPoolExecutor(os.cpu_count()) as pool:
    print(json.dumps(list(pool.map(hash_of, json.load(open(sys.argv[1]))))))
"""


class Acceptance:
    """The files that are awaited in a directory; those that came are accepted or refused, in any order."""

    def __init__(self, context: Context, directory: Path, files: Iterable[DatasetFile]) -> None:
        self._context = context
        self._directory = directory
        self._awaited = {part_name(each): each for each in files}
        self.wrong: dict[str, str] = {}
        """What is wrong with the files that were refused, and removed, by name."""
        self._known: dict[str, str] = {}

    def learn(self, object_name: str, digest: Optional[str]) -> None:  # noqa: UP045
        """Remember the BLAKE3 of a part that was made while it was copied."""
        if digest is not None:
            self._known[object_name] = digest

    def take(self, names: Iterable[str] | None = None) -> int:
        """Accept or refuse what has come, of these parts only where they are given; return how many.

        Raises:
            StepError: The files cannot be read, or hashed, or there is no room.
        """
        there = self._context.system.list_directory(self._directory) if names is None else names
        came = [self._awaited.pop(name) for name in there if name in self._awaited]
        self._judge([each for each in came if self._has_its_size(each)])
        return len(came)

    def _has_its_size(self, each: DatasetFile) -> bool:
        part = self._part(each)
        size = part.stat().st_size
        if each.stored_bytes in (None, size):
            return True
        self._refuse(each, f"{size} bytes, the index says {each.stored_bytes}")
        return False

    def _judge(self, came: Sequence[DatasetFile]) -> None:
        found: dict[str, str | None] = {each.name: self._known.get(each.object_name) for each in came}
        shards = [each for each in came if each.blake3 is not None and found[each.name] is None]
        found.update(zip((each.name for each in shards), self._hashes(shards)))
        for each in came:
            path = self._plain(each) if each.encoding else self._part(each)
            if each.encoding and found[each.name] is None:
                self._refuse(each, "cannot be expanded: is no whole zstd file")
            elif each.bytes is not None and path.stat().st_size != each.bytes:
                self._refuse(each, f"{path.stat().st_size} bytes, the index says {each.bytes}")
            elif each.blake3 is not None and found[each.name] != each.blake3:
                self._refuse(each, f"BLAKE3 {found[each.name]}, the index says {each.blake3}")
            elif each.sha256 is not None and hashlib.sha256(path.read_bytes()).hexdigest() != each.sha256:
                self._refuse(each, f"has not the SHA-256 of the index, {each.sha256}")
            else:
                path.rename(self._directory / each.name)
                if each.encoding:
                    self._part(each).unlink()

    def _refuse(self, each: DatasetFile, why: str) -> None:
        self.wrong[each.name] = why
        self._remove(each)

    def _remove(self, each: DatasetFile) -> None:
        self._part(each).unlink(missing_ok=True)
        self._plain(each).unlink(missing_ok=True)

    def _part(self, each: DatasetFile) -> Path:
        return self._directory / part_name(each)

    def _plain(self, each: DatasetFile) -> Path:
        return self._directory / f".{each.name}{PLAIN}"

    def _hashes(self, shards: Sequence[DatasetFile]) -> Sequence[Optional[str]]:  # noqa: UP045
        if not shards:
            return []
        try:
            from blake3 import blake3
        except ImportError:
            return self._hashes_elsewhere(shards)
        if any(each.encoding for each in shards):
            return self._hashes_elsewhere(shards)
        try:
            return [_digest(blake3, self._part(each)) for each in shards]
        except OSError as error:
            reason = f"{errno.errorcode.get(error.errno or 0, 'error')}: {error}"
            raise StepError(f"{self._directory}: cannot be read ({reason})", remedy="check the disk") from error

    def _hashes_elsewhere(self, shards: Sequence[DatasetFile]) -> Sequence[Optional[str]]:  # noqa: UP045
        listing = self._directory / ".to-hash.json"
        items = [[str(self._part(each)), str(self._plain(each)) if each.encoding else None] for each in shards]
        self._context.system.write_atomic(listing, json.dumps(items))
        try:
            answer = self._context.system.run(
                [find_interpreter(self._context), "-c", _HASHER, str(listing)],
                timeout_seconds=self._context.node.supervise.boot_timeout_seconds,
            )
        except CommandError as error:
            full = "No space left" in error.output_tail
            raise StepError.from_command(
                error,
                message=f"{self._directory}: the disk is full" if full else "the dataset's hashes cannot be computed",
                remedy="raise node.root_volume.gib, or use a smaller dataset"
                if full
                else "install blake3 and zstandard for the training interpreter, and name them in node.python.packages",
            ) from error
        finally:
            listing.unlink(missing_ok=True)
        hashes: list[Optional[str]] = json.loads(answer)  # noqa: UP045
        return hashes


def _digest(blake3: Any, path: Path) -> str:
    """Return the hash of a file; a small one is read, for to map it, and to wake other cores, takes longer."""
    if path.stat().st_size <= _READ_BYTES:
        digest: str = blake3(path.read_bytes()).hexdigest()
    else:
        digest = blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest()
    return digest


def part_name(each: DatasetFile) -> str:
    """Return the name under which a file is copied."""
    return f".{each.object_name}{PART}"
