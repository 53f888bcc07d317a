"""Unpacks a git revision into a folder and finds the deployment file in it, even under a former name."""

from __future__ import annotations

import io
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

from stacks.artifacts.wheelhouse import DIRECTORY
from stacks.errors import ConfigError, Problem

DEADLINE_SECONDS = 60


@dataclass(frozen=True)
class OldTree:
    """An unpacked revision. `config` is its deployment file. `renamed_from` is the file's former name if it differs."""

    root: Path
    config: Path
    commit: str
    renamed_from: str | None


def unpack(config: Path, revision: str, folder: Path) -> OldTree:
    """Unpack a revision of the repository that contains a deployment file.

    Raises:
        ConfigError: The file is not in a repository, the revision does not exist, or it does not contain the file.
    """
    done = _git(config.resolve().parent, "rev-parse", "--show-toplevel")
    if done.returncode:
        rule = "is not in a git repository, and there is no folder with that name"
        raise _error(revision, f"{config} {rule}", "use `deployed`, or the folder that `make synth` writes")
    top = Path(done.stdout.decode().strip())
    found = _git(top, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    if found.returncode:
        rule = f"is neither a revision of {top} nor a folder"
        raise _error(revision, rule, "run `git fetch`, or choose a revision from `git log --oneline`")
    commit = found.stdout.decode().strip()
    path = config.resolve().relative_to(top.resolve()).as_posix()
    old = _former_name(top, commit, path)
    packed = _git(top, "archive", "--format=tar", commit)
    if packed.returncode:
        raise _error(revision, f"cannot be read: {packed.stderr.decode().strip()}", "run `git fsck`")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    if (top / DIRECTORY).is_dir():  # wheelhouses are named by digest, so the old tree can share them
        (folder / DIRECTORY).parent.mkdir(exist_ok=True)
        (folder / DIRECTORY).symlink_to((top / DIRECTORY).resolve())
    return OldTree(folder, folder / old, commit, None if old == path else old)


def _former_name(top: Path, commit: str, path: str) -> str:
    """Return a file's name at a commit, following renames."""
    if not _git(top, "cat-file", "-e", f"{commit}:{path}").returncode:
        return path
    changes = _git(top, "diff", "--name-status", "--find-renames", "--diff-filter=R", "-z", commit)
    fields = changes.stdout.decode().split("\0")
    for _, old, new in zip(fields[::3], fields[1::3], fields[2::3], strict=False):
        if new == path:
            return old
    folder = path.rpartition("/")[0]
    listed = _git(top, "ls-tree", "--name-only", commit, f"{folder}/" if folder else ".")
    files = ", ".join(name for name in listed.stdout.decode().splitlines() if name.endswith((".yaml", ".yml")))
    rule = f"does not contain {path}, even under a former name; found {files or 'no deployment file in the folder'}"
    raise _error(commit[:12], rule, "compare with a revision that contains the file, or `git add` a renamed file first")


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, timeout=DEADLINE_SECONDS, check=False
        )
    except FileNotFoundError as error:
        raise _error("git", "is not installed", "install it, or compare with `deployed` or a folder") from error


def _error(value: str, rule: str, remedy: str) -> ConfigError:
    return ConfigError("--against", [Problem("revision", value, rule, remedy)])
