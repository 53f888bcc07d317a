"""Programs that `image build` and `image lint` call: cyclonedx-py and hadolint."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from stacks.artifacts.bundles import ROOT
from trainstack.session import FAILED, CommandError

VENV = Path("build/image-venv/bin")
"""Folder into which `make image-tools` installs the programs."""
SBOM_VERSION = "1.6"


def program(name: str) -> str:
    """Return the path of a program. Raises CommandError if it is not installed."""
    found = shutil.which(name) or shutil.which(name, path=str(ROOT / VENV))
    if found is None:
        raise CommandError(FAILED, f"{name} is not installed; run `make image-tools`, or add it to PATH")
    return found


def sbom(requirements: str) -> bytes:
    """Return the bill of materials of locked requirements as CycloneDX JSON. Equal requirements have equal bytes.

    Source (2026-11): https://cyclonedx-bom-tool.readthedocs.io/en/latest/usage.html

    Raises:
        CommandError: The generator is not installed, or rejects the requirements.
    """
    options = ["requirements", "--output-reproducible", "--of", "JSON", "--sv", SBOM_VERSION]
    with tempfile.TemporaryDirectory() as folder:
        listing = Path(folder, "requirements.txt")
        listing.write_text(requirements, encoding="utf-8")
        done = _run([program("cyclonedx-py"), *options, listing.name], folder)
    if done.returncode != 0:
        raise CommandError(FAILED, f"cyclonedx-py failed: {done.stderr.strip()[-500:]}")
    return done.stdout.encode()


def hadolint(dockerfile: Path) -> list[str]:
    """Return hadolint's findings in a Dockerfile, as lines.

    Source (2026-11): https://github.com/hadolint/hadolint#cli

    Raises:
        CommandError: hadolint is not installed, or cannot read the file.
    """
    done = _run([program("hadolint"), "--no-color", "--format", "gnu", "--", str(dockerfile)])
    findings = done.stdout.splitlines()
    if done.returncode not in (0, 1) or (done.returncode == 1 and not findings):
        raise CommandError(FAILED, f"hadolint failed: {done.stderr.strip()[-500:]}")
    return findings


def _run(command: Sequence[str], folder: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, cwd=folder)
