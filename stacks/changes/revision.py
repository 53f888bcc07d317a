"""The tree of a git revision in a folder of its own, and the deployment file in it under the name it had then."""

from __future__ import annotations

import io
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

from stacks.errors import ConfigError, Problem
from stacks.wheelhouse import DIRECTORY

DEADLINE_SECONDS = 60


@dataclass(frozen=True)
class OldTree:
    """An unpacked revision; `config` is the deployment file in it, `renamed_from` its old name if it had another."""

    root: Path
    config: Path
    commit: str
    renamed_from: str | None


def unpack(config: Path, revision: str, folder: Path) -> OldTree:
    """Unpack the revision of the repository that holds a deployment file.

    Raises:
        ConfigError: There is no repository, no such revision, or no such file in it.
    """
    done = _git(config.resolve().parent, "rev-parse", "--show-toplevel")
    if done.returncode:
        rule = "is not in a git repository, and there is no folder of that name"
        raise _refused(revision, f"{config} {rule}", "give `deployed`, or a folder that `make synth` wrote")
    top = Path(done.stdout.decode().strip())
    found = _git(top, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    if found.returncode:
        rule = f"is neither a revision of {top} nor a folder"
        raise _refused(revision, rule, "`git fetch` brings what is missing; `git log --oneline` lists revisions")
    commit = found.stdout.decode().strip()
    path = config.resolve().relative_to(top.resolve()).as_posix()
    old = _name_then(top, commit, path)
    packed = _git(top, "archive", "--format=tar", commit)
    if packed.returncode:
        raise _refused(revision, f"cannot be read: {packed.stderr.decode().strip()}", "`git fsck` says what is missing")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    if (top / DIRECTORY).is_dir():  # built here, and named by digest: what the old tree's lock asks for may be there
        (folder / DIRECTORY).parent.mkdir(exist_ok=True)
        (folder / DIRECTORY).symlink_to((top / DIRECTORY).resolve())
    return OldTree(folder, folder / old, commit, None if old == path else old)


def _name_then(top: Path, commit: str, path: str) -> str:
    """Return the name that a file had at a commit, through renames."""
    if not _git(top, "cat-file", "-e", f"{commit}:{path}").returncode:
        return path
    changes = _git(top, "diff", "--name-status", "--find-renames", "--diff-filter=R", "-z", commit)
    fields = changes.stdout.decode().split("\0")
    for _, old, new in zip(fields[::3], fields[1::3], fields[2::3], strict=False):
        if new == path:
            return old
    folder = path.rpartition("/")[0]
    listed = _git(top, "ls-tree", "--name-only", commit, f"{folder}/" if folder else ".")
    there = ", ".join(name for name in listed.stdout.decode().splitlines() if name.endswith((".yaml", ".yml")))
    rule = f"has no {path}, and no file that git knows to have become it; it has {there or 'no deployment file there'}"
    raise _refused(commit[:12], rule, "compare with a revision that has it, or `git add` a renamed file first")


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, timeout=DEADLINE_SECONDS, check=False
        )
    except FileNotFoundError as error:
        raise _refused("git", "is not installed", "install it, or compare with `deployed` or a folder") from error


def _refused(value: str, rule: str, remedy: str) -> ConfigError:
    return ConfigError("--against", [Problem("revision", value, rule, remedy)])
