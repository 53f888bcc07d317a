"""Unpacks each version of a deployment package once. All of a function's processes share the unpacked files."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import stat
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

from localcloud.functions.errors import PackageRefused

UNPACKED_LIMIT_BYTES = 250 * 1024 * 1024
"""Source: https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html (read 2026-11)."""


def unpack(code: bytes, directory: Path) -> Path:
    """Unpack a function's zip file to `directory`/<digest>/, which replaces /var/task, and return that directory.

    Raises:
        PackageRefused: The code is not a zip file, has a member outside the package, or unpacks to more than
            UNPACKED_LIMIT_BYTES.
    """
    try:
        archive = zipfile.ZipFile(io.BytesIO(code))
    except zipfile.BadZipFile as error:
        raise PackageRefused(f"the deployment package is not a zip file ({len(code)} bytes: {error})") from error
    for member in archive.infolist():
        path = PurePosixPath(member.filename)
        if path.is_absolute() or ".." in path.parts:
            raise PackageRefused(f"member {member.filename!r} is outside the package")
    total_bytes = sum(member.file_size for member in archive.infolist())
    if total_bytes > UNPACKED_LIMIT_BYTES:
        raise PackageRefused(
            f"the code unpacks to {total_bytes} bytes, but the maximum is {UNPACKED_LIMIT_BYTES}; reduce its size"
        )
    destination = directory / hashlib.sha256(code).hexdigest()
    if destination.is_dir():
        return destination
    destination.parent.mkdir(parents=True, exist_ok=True)
    # The rename is atomic, so other processes and later starts never see a partial package.
    temporary = Path(tempfile.mkdtemp(prefix=".unpack-", dir=destination.parent))
    temporary.chmod(0o755)
    try:
        for member in archive.infolist():
            _extract(archive, member, temporary)
        temporary.rename(destination)
    except (OSError, PackageRefused):
        shutil.rmtree(temporary, ignore_errors=True)
        if not destination.is_dir():  # otherwise, another process unpacked it first
            raise
    return destination


def _extract(archive: zipfile.ZipFile, member: zipfile.ZipInfo, root: Path) -> None:
    mode = member.external_attr >> 16
    if stat.S_ISLNK(mode):
        path = root / member.filename
        target = os.path.normpath(path.parent / archive.read(member).decode())
        if not Path(target).is_relative_to(root):
            raise PackageRefused(f"{member.filename!r}: the link's target is outside the package")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(os.path.relpath(target, path.parent))
        return
    path = Path(archive.extract(member, root))
    if path.is_file():
        path.chmod(0o755 if mode & stat.S_IXUSR else 0o644)
