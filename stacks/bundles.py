"""Zip archives of the project's own code, byte-equal for equal sources, named by the SHA-256 of their bytes."""

from __future__ import annotations

import hashlib
import json
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from stacks.errors import BundleError

ROOT = Path(__file__).resolve().parent.parent
TIMESTAMP = (1980, 1, 1, 0, 0, 0)  # the earliest that zip knows
MODE = 0o644 << 16
LEFT_OUT = {"__pycache__", ".git", ".venv", "node_modules", ".pytest_cache", ".mypy_cache", ".ruff_cache"}


@dataclass(frozen=True)
class BundleFile:
    """A bundle on this machine."""

    path: Path
    sha256: str


def node_bundle(directory: Path, wheelhouse: Mapping[str, str] | None = None) -> BundleFile:
    """Return the bundle of the node program, which names the wheelhouse {key, sha256} when there is one.

    User data has no room for that; it names this bundle by its digest.
    """
    files: list[tuple[str, Path | bytes]] = [*_files(ROOT / "bootstrap", "bootstrap")]
    if wheelhouse is not None:
        files.append(("wheelhouse.json", json.dumps(wheelhouse, sort_keys=True).encode()))
    return write_archive(files, directory)


def code_bundle(directory: Path, user_code: Path | None = None) -> BundleFile:
    """Return the bundle of the trainer, with the user's own code beside it when there is some.

    Raises:
        BundleError: The user's code holds a file that the trainer has too.
    """
    files = list(_files(ROOT / "training", "training"))
    if user_code is not None:
        own = list(_files(user_code, ""))
        doubled = sorted({name for name, _ in files} & {name for name, _ in own})
        if doubled:
            raise BundleError(f"{user_code}: holds {', '.join(doubled)}, which the trainer has too; rename them")
        files += own
    return write_archive(files, directory)


def function_bundle(name: str, directory: Path) -> BundleFile:
    """Return the bundle of a Lambda function, a package of stacks/functions/ at the root of the archive."""
    return write_archive(_files(ROOT / "stacks" / "functions" / name, name), directory)


def _files(folder: Path, name: str) -> Iterable[tuple[str, Path]]:
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if path.is_file() and not LEFT_OUT & set(relative.parts) and path.suffix != ".pyc":
            yield (Path(name) / relative).as_posix(), path


def write_archive(files: Iterable[tuple[str, Path | bytes]], directory: Path) -> BundleFile:
    """Write a zip archive of files, or of bytes, under their names; the same content is the same archive."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=directory, suffix=".tmp", delete=False) as file:
        temporary = Path(file.name)
        try:
            with zipfile.ZipFile(file, "w") as archive:
                for name, content in files:
                    entry = zipfile.ZipInfo(name, TIMESTAMP)
                    # Stored: compressors differ between versions of zlib, and a different digest replaces nodes.
                    entry.compress_type = zipfile.ZIP_STORED
                    entry.external_attr = MODE
                    entry.create_system = 3  # the same on every system
                    archive.writestr(entry, content if isinstance(content, bytes) else content.read_bytes())
            file.flush()
            with temporary.open("rb") as stream:
                sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
            temporary.chmod(0o644)
            temporary.replace(directory / f"{sha256}.zip")
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    return BundleFile(directory / f"{sha256}.zip", sha256)
