"""Deployment packages and layers on disk: unpacked once for each digest, shared by all processes of a function."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from localcloud.functions.errors import PackageRefused

UNPACKED_LIMIT_BYTES = 250 * 1024 * 1024
"""Function and layers together, unpacked.

Source: https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html (read 2026-11).
"""


@dataclass(frozen=True)
class Package:
    """An unpacked function: `task_root` stands for /var/task, `layers_root` for /opt (None without layers)."""

    task_root: Path
    layers_root: Path | None

    def python_path(self) -> list[Path]:
        """Return the directories that layers add to the module search path, in Lambda's order."""
        if self.layers_root is None:
            return []
        packages = sorted((self.layers_root / "python" / "lib").glob("python3*/site-packages"))
        return [path for path in (self.layers_root / "python", *packages) if path.is_dir()]


def unpack(code: bytes, layers: Sequence[bytes], directory: Path) -> Package:
    """Unpack a function's zip file, and its layers in order, under `directory`/<digest>/.

    Raises:
        PackageRefused: no zip file, a member outside the package, or more than UNPACKED_LIMIT_BYTES in all.
    """
    archives = [_open(code, "the deployment package")]
    archives += [_open(layer, f"layer {number}") for number, layer in enumerate(layers, start=1)]
    total_bytes = sum(member.file_size for archive in archives for member in archive.infolist())
    if total_bytes > UNPACKED_LIMIT_BYTES:
        raise PackageRefused(
            f"code and layers unpack to {total_bytes} bytes; at most {UNPACKED_LIMIT_BYTES} are allowed: make the "
            "package smaller"
        )
    task_root = _unpack_once(archives[:1], directory / hashlib.sha256(code).hexdigest())
    if not layers:
        return Package(task_root, None)
    digest = hashlib.sha256(b"".join(hashlib.sha256(layer).digest() for layer in layers)).hexdigest()
    return Package(task_root, _unpack_once(archives[1:], directory / f"layers-{digest}"))


def _open(content: bytes, name: str) -> zipfile.ZipFile:
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
    except zipfile.BadZipFile as error:
        raise PackageRefused(f"{name} is not a zip file ({len(content)} bytes: {error})") from error
    for member in archive.infolist():
        path = PurePosixPath(member.filename)
        if path.is_absolute() or ".." in path.parts:
            raise PackageRefused(f"{name} holds {member.filename!r}, which lies outside the package")
    return archive


def _unpack_once(archives: Sequence[zipfile.ZipFile], destination: Path) -> Path:
    if destination.is_dir():
        return destination
    destination.parent.mkdir(parents=True, exist_ok=True)
    # Rename makes it appear whole: a second process, or a later start, never sees half a package.
    temporary = Path(tempfile.mkdtemp(prefix=".unpack-", dir=destination.parent))
    temporary.chmod(0o755)
    try:
        for archive in archives:
            for member in archive.infolist():
                _extract(archive, member, temporary)
        temporary.rename(destination)
    except (OSError, PackageRefused):
        shutil.rmtree(temporary, ignore_errors=True)
        if not destination.is_dir():  # else another process was first
            raise
    return destination


def _extract(archive: zipfile.ZipFile, member: zipfile.ZipInfo, root: Path) -> None:
    mode = member.external_attr >> 16
    if stat.S_ISLNK(mode):
        path = root / member.filename
        target = os.path.normpath(path.parent / archive.read(member).decode())
        if not Path(target).is_relative_to(root):
            raise PackageRefused(f"{member.filename!r} is a link that leaves the package")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(os.path.relpath(target, path.parent))
        return
    path = Path(archive.extract(member, root))
    if path.is_file():
        path.chmod(0o755 if mode & stat.S_IXUSR else 0o644)
