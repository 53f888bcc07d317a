"""The recipe of an image: its Dockerfile, the files of the build context, and the tags that follow from them.

An image has two targets. `environment` contains the base, the wheels and the node program; Slurm and Kubernetes run it,
because their jobs and pods take the code from a shared folder or a bucket. `run` adds one layer with the trainer and
your code. The Dockerfile's instructions (2026-11): https://docs.docker.com/reference/dockerfile/
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from stacks.artifacts.bundles import code_bundle, node_bundle
from stacks.config import DeploymentConfig
from stacks.errors import BundleError
from trainstack.image.lock import EPOCH_SECONDS, ImageLock, epoch_seconds, read_lock, section_of
from trainstack.session import INVALID, CommandError

USER = 10001
"""User of the image's processes. Pyxis and Apptainer run them as the user of the job instead."""
PROGRAM = PurePosixPath("/usr/lib/trainstack")
"""Folder of the node program, `node/SHA256`, and of the code, `code`, in the image."""
TARGETS = ("environment", "run")

ENVIRONMENT_STAGES = """\
# The image of {name}. `trainstack image build FILE` has written this file; edit the deployment file instead.
ARG BASE={base}

# The environment of {interpreter}: locked wheels, checked by hash. pip's cache and configuration stay outside.
# Files of torch for newer versions of Python cannot be compiled, and are not imported.
FROM ${{BASE}} AS wheels
COPY environment/ /environment/
RUN --mount=type=cache,id=trainstack-pip,target=/var/cache/pip,sharing=locked \\
    --mount=type=secret,id=pip,target=/run/secrets/pip.conf \\
    export PIP_CONFIG_FILE=/run/secrets/pip.conf PIP_CACHE_DIR=/var/cache/pip PYTHONHASHSEED=0 \\
    && {host} -m venv --without-pip {packages}{prefix} \\
    && {interpreter} -B /environment/{pip}/pip install --quiet --disable-pip-version-check --no-input \\
       --require-hashes --no-deps --only-binary=:all: --no-compile --requirement /environment/requirements.txt \\
    && {interpreter} -B -m pip --disable-pip-version-check check \\
    && {{ {interpreter} -B -m compileall -qq --invalidation-mode unchecked-hash {prefix}/lib || true; }}

# Layers that all runs with these wheels share.
FROM ${{BASE}} AS environment
LABEL org.opencontainers.image.title="trainstack {name}" \\
      org.opencontainers.image.base.name="{base_name}" \\
      org.opencontainers.image.base.digest="{base_digest}"
COPY --from=wheels {prefix} {prefix}
COPY sbom.cdx.json {program}/sbom.cdx.json
COPY node/ {program}/node/
ENV PATH={prefix}/bin:$PATH
USER {user}:{user}
"""
RUN_STAGE = """\

# The layer that changes with the code.
FROM {environment} AS run
COPY code/ {program}/code/
ENV PYTHONPATH={program}/code
ENTRYPOINT ["{interpreter}", "-m", "training"]
CMD ["train", "--help"]
"""


@dataclass(frozen=True)
class Recipe:
    """Everything that determines an image.

    Attributes:
        dockerfile: All stages.
        run_stage: The last stage alone, on the name of the image with the others. buildah calculates the hash of a
            copied environment at each build, which takes longer than all other steps of a build after a code edit.
        files: Contents of the build context by path.
        pip: Name of the wheel of pip, which the build context needs at `environment/`.
    """

    name: str
    repository: str
    dockerfile: str
    run_stage: str
    files: Mapping[str, bytes]
    lock: ImageLock
    pip: str

    def tag(self, target: str) -> str:
        """Return the tag of a target, TARGET-DIGEST: equal inputs have the same tag."""
        files = {path: each for path, each in self.files.items() if target == "run" or not path.startswith("code/")}
        return f"{target}-{_digest(self.dockerfile, files)}"

    def reference(self, target: str) -> str:
        """Return the name of a target, REPOSITORY:TAG."""
        return f"{self.repository}:{self.tag(target)}"


def recipe_of(config: DeploymentConfig, file: Path) -> Recipe:
    """Return the recipe of a valid deployment file with a locked image.

    Raises:
        CommandError: The file has no image, the lock is outdated, or the user code cannot be bundled.
    """
    section, lock = section_of(config, file), read_lock(config, file)
    interpreter = PurePosixPath(config.node.python.interpreter)
    base_name, _, base_digest = lock.base.partition("@")
    pip = lock.wheels["pip"].file
    values = {
        "name": config.name,
        "base": lock.base,
        "base_name": base_name,
        "base_digest": base_digest,
        "interpreter": interpreter,
        "prefix": interpreter.parent.parent,
        "host": section.interpreter,
        "packages": "--system-site-packages " if section.torch == "base" else "",
        "pip": pip,
        "program": PROGRAM,
        "user": USER,
    }
    text = ENVIRONMENT_STAGES.format(**values) + RUN_STAGE.format(environment="environment", **values)
    files = {"environment/requirements.txt": lock.requirements().encode(), **_code(config)}
    repository = section.repository or f"localhost/trainstack/{config.name}"
    recipe = Recipe(config.name, repository, text, "", files, lock, pip)
    return replace(recipe, run_stage=RUN_STAGE.format(environment=recipe.reference("environment"), **values).lstrip())


def _digest(dockerfile: str, files: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256(f"{epoch_seconds()}\0{dockerfile}".encode())
    for path, content in sorted(files.items()):
        digest.update(f"\0{path}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:12]


def _code(config: DeploymentConfig) -> dict[str, bytes]:
    code = config.training.code
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            node = node_bundle(folder)
            run = code_bundle(folder, None if code is None else Path(code))
        except BundleError as error:
            raise CommandError(INVALID, str(error)) from error
        found: dict[str, bytes] = {}
        for prefix, bundle in ((f"node/{node.sha256}", node), ("code", run)):
            with zipfile.ZipFile(bundle.path) as archive:
                found |= {f"{prefix}/{each}": archive.read(each) for each in archive.namelist()}
    return found


def write_context(recipe: Recipe, folder: Path, sbom: bytes, pip_wheel: Path) -> None:
    """Write the build context: files with equal modes and times, so that the layers depend only on the contents."""
    shutil.rmtree(folder, ignore_errors=True)
    wheel = {f"environment/{recipe.pip}": pip_wheel.read_bytes()}
    contents = {**recipe.files, **wheel, "sbom.cdx.json": sbom, "Dockerfile": recipe.dockerfile.encode()}
    contents["Dockerfile.run"] = recipe.run_stage.encode()
    for path, content in sorted(contents.items()):
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    for written in sorted(folder.rglob("*"), reverse=True):
        written.chmod(0o755 if written.is_dir() else 0o644)
        os.utime(written, (EPOCH_SECONDS, EPOCH_SECONDS))
