"""Builds images with `docker buildx` or `buildah`, whichever is installed.

Sources (2026-11): https://docs.docker.com/reference/cli/docker/buildx/build/,
https://docs.docker.com/build/ci/github-actions/reproducible-builds/ (SOURCE_DATE_EPOCH, rewrite-timestamp) and
https://github.com/containers/buildah/blob/main/docs/buildah-build.1.md (--timestamp, --layers)
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trainstack.image.lock import epoch_seconds
from trainstack.session import FAILED, CommandError

DIGEST = re.compile(r"^sha256:[0-9a-f]{64}$")


@dataclass(frozen=True)
class Build:
    """One build of a target.

    Attributes:
        context: Folder with the Dockerfile and its files.
        environment: Name of the image of the target `environment`, REPOSITORY:TAG.
        run: Name of the image of the target `run`; None: only the environment is built.
        pip_config: File with pip's configuration, which may contain credentials: a secret of the build.
        push: Push the image to its repository after the build.
    """

    context: Path
    environment: str
    run: str | None = None
    pip_config: Path | None = None
    push: bool = False

    @property
    def reference(self) -> str:
        """Name of the image to build."""
        return self.run or self.environment


class Builder:
    """A program that builds images."""

    def __init__(self, kind: Literal["docker", "buildah"]) -> None:
        self.kind = kind

    def commands(self, build: Build) -> list[list[str]]:
        """Return the commands of a build."""
        epoch = str(epoch_seconds())
        secret = [] if build.pip_config is None else ["--secret", f"id=pip,src={build.pip_config}"]
        if self.kind == "docker":
            target = "environment" if build.run is None else "run"
            common = ["--file", str(build.context / "Dockerfile"), "--target", target, *secret]
            # Only pushes and archives keep the rewritten times: the classic image store does not.
            output = (
                f"type=image,name={build.reference},push=true" if build.push else f"type=docker,name={build.reference}"
            )
            options = ["--build-arg", f"SOURCE_DATE_EPOCH={epoch}", "--provenance=false"]
            return [
                ["docker", "buildx", "build", *options, "--output", f"{output},rewrite-timestamp=true", *common]
                + [str(build.context)]
            ]  # fmt: skip
        options = ["buildah", "build", "--layers", "--timestamp", epoch, "--pull=never"]
        commands = []
        if not self._exists(build.environment):  # the tag follows from the contents
            file = ["--file", str(build.context / "Dockerfile"), "--target", "environment", *secret]
            commands.append([*options, "--tag", build.environment, *file, str(build.context)])
        if build.run is not None:
            file = ["--file", str(build.context / "Dockerfile.run")]
            commands.append([*options, "--tag", build.run, *file, str(build.context)])
        if build.push:
            commands.append(["buildah", "push", build.reference, f"docker://{build.reference}"])
        return commands

    def _exists(self, reference: str) -> bool:
        return shutil.which("buildah") is not None and _succeeds(["buildah", "inspect", "--type", "image", reference])

    def run(self, build: Build) -> str:
        """Build a target. Return the digest of its configuration, which identifies its layers.

        Raises:
            CommandError: A command failed. It has printed its own errors.
        """
        for command in self.commands(build):
            code = subprocess.run(command).returncode
            if code != 0:
                raise CommandError(
                    FAILED, f"`{' '.join(command[:3])}` failed with exit code {code}; see its output above"
                )
        if self.kind == "docker":
            inspect = ["docker", "image", "inspect", "--format", "{{.Id}}", build.reference]
            return "" if build.push else _output(inspect).strip()
        return (
            f"sha256:{json.loads(_output(['buildah', 'inspect', '--type', 'image', build.reference]))['FromImageID']}"
        )

    def digest(self, reference: str) -> str:
        """Return the manifest digest that an image's name refers to now.

        Raises:
            CommandError: The image does not exist, or its registry is not reachable.
        """
        if "@" in reference:
            return reference.partition("@")[2]
        if self.kind == "docker":
            command = ["docker", "buildx", "imagetools", "inspect", "--format", "{{.Manifest.Digest}}", reference]
            found = _output(command).strip()
        else:
            if not reference.startswith("localhost/"):
                _output(["buildah", "pull", "--policy=always", reference])
            found = str(json.loads(_output(["buildah", "inspect", "--type", "image", reference]))["FromImageDigest"])
        if not DIGEST.match(found):
            raise CommandError(FAILED, f"{reference}: {found!r}: is not a digest; update {self.kind}")
        return found


def find_builder() -> Builder:
    """Return the installed builder. Raises CommandError if there is none."""
    if shutil.which("docker") and _succeeds(["docker", "buildx", "version"]):
        return Builder("docker")
    if shutil.which("buildah"):
        return Builder("buildah")
    raise CommandError(
        FAILED, "neither `docker buildx` nor `buildah` is installed; install one of them, or use --dry-run"
    )


def _succeeds(command: Sequence[str]) -> bool:
    return subprocess.run(command, capture_output=True).returncode == 0


def _output(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise CommandError(FAILED, f"`{' '.join(command)}` failed: {done.stderr.strip()[-500:]}")
    return done.stdout
