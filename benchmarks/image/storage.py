"""A storage of buildah that is independent of the machine's own, and the debootstrap base in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SUITE = "bookworm"
PACKAGES = "ca-certificates,python3,python3-venv"


def run(command: Sequence[str | Path], environment: dict[str, str] | None = None, cwd: Path = ROOT) -> str:
    """Run a command and return its output.

    Raises:
        SystemExit: The command failed; the message includes its output.
    """
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env={**os.environ, **(environment or {})}, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)} exited with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


@dataclass(frozen=True)
class Storage:
    """Images, build cache and cache mounts below one folder."""

    folder: Path

    def __post_init__(self) -> None:
        """Write the configuration (source, 2026-11: containers-storage.conf(5))."""
        for name in ("graph", "run", "temporary"):
            (self.folder / name).mkdir(parents=True)
        text = f'[storage]\ndriver = "overlay"\ngraphroot = "{self.folder}/graph"\nrunroot = "{self.folder}/run"\n'
        (self.folder / "storage.conf").write_text(text)

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which buildah uses this storage. It keeps cache mounts in its folder for temporary files."""
        return {
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
            "BUILDAH_ISOLATION": "chroot",
            "TMPDIR": str(self.folder / "temporary"),
        }

    def buildah(self, *arguments: str | Path) -> str:
        """Run buildah in this storage and return its output."""
        return run(["buildah", *arguments], self.environment)

    def add_base(self, archive: Path, name: str) -> None:
        """Make the base image from an archive of its root file system."""
        container = self.buildah("from", "scratch").strip()
        self.buildah("add", "--quiet", container, archive, "/")
        self.buildah("commit", "--quiet", "--timestamp", "0", container, name)
        self.buildah("rm", container)

    def layers(self, reference: str) -> list[str]:
        """Return the digests of an image's layers, from the base up."""
        found: dict[str, Any] = json.loads(self.buildah("inspect", "--type", "image", reference))
        return list(found["OCIv1"]["rootfs"]["diff_ids"])

    def manifest_digest(self, reference: str) -> str:
        """Return the digest of an image's manifest with uncompressed layers, which takes less time to write."""
        place = self.folder / "pushed"
        self.buildah(
            "push",
            "--quiet",
            "--disable-compression",
            "--digestfile",
            self.folder / "digest",
            reference,
            f"oci:{place}",
        )
        return (self.folder / "digest").read_text().strip()

    def close(self) -> None:
        """Unmount the storage, so that its folder can be removed."""
        subprocess.run(["buildah", "rm", "--all"], env={**os.environ, **self.environment}, capture_output=True)
        subprocess.run(["umount", "--lazy", self.folder / "graph" / "overlay"], capture_output=True)


def base_archive(path: Path) -> Path:
    """Return an archive of a Debian root file system with Python, which debootstrap makes once."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".making.tar")
        folder = path.with_suffix(".root")
        run(["debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, folder])
        options = ["--numeric-owner", "--one-file-system", f"--file={temporary}", f"--directory={folder}"]
        left_out = ("./var/cache/apt/*", "./var/lib/apt/lists/*", "./dev/*")
        run(["tar", "--create", *options, *(f"--exclude={each}" for each in left_out), "."])
        run(["rm", "-rf", "--one-file-system", folder])
        temporary.replace(path)
    return path
