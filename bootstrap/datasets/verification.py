"""Verifies downloaded files against the dataset index while others are still downloading, and renames valid files.

s5cmd writes to a temporary name and then renames the file, so a part file that exists is complete. If this process's
interpreter has blake3, it hashes the files itself. Otherwise, the training interpreter hashes many files per process.
zstd files are always decoded in the training interpreter.
"""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bootstrap.context import Context
from bootstrap.datasets.index import DatasetFile
from bootstrap.errors import CommandError, StepError
from bootstrap.interpreter import find_interpreter

PART = ".part"
DECODED = ".plain"
_READ_BYTES = 1024 * 1024

# Runs in the training interpreter. The command line names a JSON list of [path, path of the decoded file, or null]. It
# hashes each file, after decoding it if a second path is given, and prints a JSON list of hashes, with null for files
# that cannot be decoded.
_HASHER = """
import sys
sys.path.pop(0)  # the working directory
import json, os
from concurrent.futures import ThreadPoolExecutor
from blake3 import blake3
def decode(path, plain):
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
    return decode(path, plain) if plain else blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest()
with ThreadPoolExecutor(os.cpu_count()) as pool:
    print(json.dumps(list(pool.map(hash_of, json.load(open(sys.argv[1]))))))
"""


class Verifier:
    """The expected files in a directory. Verifies files as they arrive, in any order."""

    def __init__(self, context: Context, directory: Path, files: Iterable[DatasetFile]) -> None:
        self._context = context
        self._directory = directory
        self._expected = {part_name(each): each for each in files}
        self.rejected: dict[str, str] = {}
        """Reasons for rejecting and removing files, keyed by file name."""
        self._known: dict[str, str] = {}

    def set_hash(self, object_name: str, digest: str | None) -> None:
        """Record the BLAKE3 hash of a part, computed during the download."""
        if digest is not None:
            self._known[object_name] = digest

    def verify(self, names: Iterable[str] | None = None) -> int:
        """Verify the parts that have arrived, or only the named ones. Return the number of verified parts.

        Raises:
            StepError: The files cannot be read or hashed, or the disk is full.
        """
        present = self._context.system.list_directory(self._directory) if names is None else names
        arrived = [self._expected.pop(name) for name in present if name in self._expected]
        self._verify([each for each in arrived if self._has_stored_size(each)])
        return len(arrived)

    def _has_stored_size(self, each: DatasetFile) -> bool:
        size = self._part(each).stat().st_size
        if each.stored_bytes in (None, size):
            return True
        self._reject(each, f"found {size} bytes, expected {each.stored_bytes}")
        return False

    def _verify(self, files: Sequence[DatasetFile]) -> None:
        hashes: dict[str, str | None] = {each.name: self._known.get(each.object_name) for each in files}
        shards = [each for each in files if each.blake3 is not None and hashes[each.name] is None]
        hashes.update(zip((each.name for each in shards), self._hash(shards), strict=True))
        for each in files:
            path = self._decoded(each) if each.encoding else self._part(each)
            if each.encoding and hashes[each.name] is None:
                self._reject(each, "cannot be decoded: not a complete zstd file")
            elif each.bytes is not None and path.stat().st_size != each.bytes:
                self._reject(each, f"found {path.stat().st_size} bytes, expected {each.bytes}")
            elif each.blake3 is not None and hashes[each.name] != each.blake3:
                self._reject(each, f"found BLAKE3 {hashes[each.name]}, expected {each.blake3}")
            elif each.sha256 is not None and hashlib.sha256(path.read_bytes()).hexdigest() != each.sha256:
                self._reject(each, f"SHA-256 differs from the index, which has {each.sha256}")
            else:
                path.rename(self._directory / each.name)
                if each.encoding:
                    self._part(each).unlink()

    def _reject(self, each: DatasetFile, reason: str) -> None:
        self.rejected[each.name] = reason
        self._part(each).unlink(missing_ok=True)
        self._decoded(each).unlink(missing_ok=True)

    def _part(self, each: DatasetFile) -> Path:
        return self._directory / part_name(each)

    def _decoded(self, each: DatasetFile) -> Path:
        return self._directory / f".{each.name}{DECODED}"

    def _hash(self, shards: Sequence[DatasetFile]) -> Sequence[str | None]:
        if not shards:
            return []
        try:
            from blake3 import blake3
        except ImportError:
            return self._hash_in_training_interpreter(shards)
        if any(each.encoding for each in shards):
            return self._hash_in_training_interpreter(shards)
        try:
            return [_digest(blake3, self._part(each)) for each in shards]
        except OSError as error:
            reason = f"{errno.errorcode.get(error.errno or 0, 'error')}: {error}"
            raise StepError(f"{self._directory}: cannot read the files ({reason})", remedy="check the disk") from error

    def _hash_in_training_interpreter(self, shards: Sequence[DatasetFile]) -> Sequence[str | None]:
        listing = self._directory / ".to-hash.json"
        items = [[str(self._part(each)), str(self._decoded(each)) if each.encoding else None] for each in shards]
        self._context.system.write_atomic(listing, json.dumps(items))
        try:
            output = self._context.system.run(
                [find_interpreter(self._context), "-c", _HASHER, str(listing)],
                timeout_seconds=self._context.node.supervise.boot_timeout_seconds,
            )
        except CommandError as error:
            full = "No space left" in error.output_tail
            raise StepError.from_command(
                error,
                message=f"{self._directory}: the disk is full" if full else "cannot hash the dataset's files",
                remedy="raise node.root_volume.gib, or use a smaller dataset"
                if full
                else "install blake3 and zstandard for the training interpreter, and list them in node.python.packages",
            ) from error
        finally:
            listing.unlink(missing_ok=True)
        hashes: list[str | None] = json.loads(output)
        return hashes


def _digest(blake3: Any, path: Path) -> str:
    """Return a file's hash. Small files are read, not mapped: mapping them and waking other cores would take longer."""
    if path.stat().st_size <= _READ_BYTES:
        digest: str = blake3(path.read_bytes()).hexdigest()
    else:
        digest = blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest()
    return digest


def part_name(each: DatasetFile) -> str:
    """Return the temporary name that a file has until it is verified."""
    return f".{each.object_name}{PART}"
