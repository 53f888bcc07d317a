"""Reproducible zip archives of the project's code. Each file is named after its SHA-256 digest."""

from __future__ import annotations

import hashlib
import json
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stacks.errors import BundleError

ROOT = Path(__file__).resolve().parents[2]
BUNDLES = Path("build/bundles")
"""The folder for the archives that synthesis publishes."""
TRAINER = ("hardware", "training")
"""The packages in the code bundle. The node bundle also contains `hardware`."""
GATE_PACKAGES = ("bootstrap/documents", "hardware", "stacks", "training/config")
GATE_FILES = (
    "bootstrap/__init__.py", "bootstrap/errors.py", "cdk.json", "requirements.lock", "training/__init__.py",
    "training/errors.py",
)  # fmt: skip
"""The packages and files that a review of synthesized templates imports and reads."""
TIMESTAMP = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip archive can store
MODE = 0o644 << 16
EXCLUDED = {"__pycache__", ".git", ".venv", "node_modules", ".pytest_cache", ".mypy_cache", ".ruff_cache"}


@dataclass(frozen=True)
class BundleFile:
    """A bundle in the local file system."""

    path: Path
    sha256: str


def node_bundle(directory: Path, wheelhouse: Mapping[str, str] | None = None) -> BundleFile:
    """Return the node program's bundle. If there is a wheelhouse, `wheelhouse.json` holds its key and SHA-256.

    User data contains only this bundle's digest because it does not have enough space for the wheelhouse's key and
    digest.
    """
    files: list[tuple[str, Path | bytes]] = [*_packages(("bootstrap", "hardware"))]
    if wheelhouse is not None:
        files.append(("wheelhouse.json", json.dumps(wheelhouse, sort_keys=True).encode()))
    return write_archive(files, directory)


def code_bundle(directory: Path, user_code: Path | None = None) -> BundleFile:
    """Return the trainer's bundle, with the user code at its root.

    Raises:
        BundleError: The user code contains a file or module with the same name as one in the trainer.
    """
    return write_archive(_with_user_code(TRAINER, user_code), directory)


def job_bundle(directory: Path, user_code: Path | None = None) -> BundleFile:
    """Return the bundle for the jobs of a batch system: the trainer and the node program, with the user code.

    Raises:
        BundleError: The user code contains a file or module with the same name as one of them.
    """
    return write_archive(_with_user_code(("bootstrap", *TRAINER), user_code), directory)


def _with_user_code(packages: Sequence[str], user_code: Path | None) -> list[tuple[str, Path]]:
    files = list(_packages(packages))
    if user_code is not None:
        added = list(_files(user_code, ""))
        taken = {name for name, _ in files} | {f"{name}.py" for name in packages}
        if clashes := sorted(taken & {name for name, _ in added}):
            raise BundleError(f"{user_code}: {', '.join(clashes)} would replace or hide trainer files; rename them")
        files += added
    return files


def gate_bundle(directory: Path) -> BundleFile:
    """Return the code that reviews a merge in the pipeline (`python -m stacks deliver gate --templates`)."""
    files = list(_packages(GATE_PACKAGES))
    files += [(name, ROOT / name) for name in GATE_FILES]
    return write_archive(sorted(files), directory)


def function_bundle(name: str, directory: Path) -> BundleFile:
    """Return a Lambda function's bundle, with a package from stacks/functions/ at its root."""
    return write_archive(_files(ROOT / "stacks" / "functions" / name, name), directory)


def _packages(names: Iterable[str]) -> Iterable[tuple[str, Path]]:
    for name in names:
        yield from _files(ROOT / name, name)


def _files(folder: Path, name: str) -> Iterable[tuple[str, Path]]:
    """Yield a folder's regular files with their names in the archive.

    Raises:
        BundleError: A symbolic link points outside the folder, to a folder, or to a file that the archive omits, or the
            folder contains a device, a pipe or a socket.
    """
    inside = folder.resolve()
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if EXCLUDED & set(relative.parts) or path.suffix == ".pyc":
            continue
        if path.is_symlink():
            _check_link(path, inside)
        if path.is_file():
            yield (Path(name) / relative).as_posix(), path
        elif not path.is_dir():
            raise BundleError(f"{path}: neither a file nor a folder; remove it, or move it out of {folder}")


def _check_link(path: Path, inside: Path) -> None:
    # The process may have credentials in its environment and home folder, such as /proc/self/environ and ~/.aws.
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:  # a dangling link or a loop
        raise BundleError(f"{path}: a symbolic link that cannot be followed ({error}); remove it") from error
    if not target.is_relative_to(inside):
        raise BundleError(
            f"{path}: a symbolic link to {target}, outside {inside}; copy the file there, or remove the link"
        )
    if target.is_dir():
        # rglob does not descend into linked folders, so the files would be missing on the nodes.
        raise BundleError(f"{path}: a symbolic link to a folder; copy the folder, or remove the link")
    if EXCLUDED & set(target.relative_to(inside).parts):
        raise BundleError(f"{path}: a symbolic link to {target}, which bundles omit; remove the link")


def write_archive(files: Iterable[tuple[str, Path | bytes]], directory: Path) -> BundleFile:
    """Write a zip archive of named files or bytes. The same content always produces the same archive."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=directory, suffix=".tmp", delete=False) as file:
        temporary = Path(file.name)
        try:
            with zipfile.ZipFile(file, "w") as archive:
                for name, content in files:
                    entry = zipfile.ZipInfo(name, TIMESTAMP)
                    # Entries are stored uncompressed: compressed output differs between zlib versions, and a different
                    # digest would replace nodes.
                    entry.compress_type = zipfile.ZIP_STORED
                    entry.external_attr = MODE
                    entry.create_system = 3  # Unix, regardless of the build machine
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
