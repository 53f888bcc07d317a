"""`image.lock.json`, which pins an image's base and wheels, so that the same file always makes the same image.

The file is next to the deployment files; commit it. Format: {deployment file: {inputs, base, wheels}}.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from stacks.artifacts.bundles import ROOT
from stacks.artifacts.wheelhouse.dependencies import dependencies_of
from stacks.artifacts.wheelhouse.node_lock import pinned_versions
from stacks.artifacts.wheelhouse.resolving import WheelhouseError, resolve
from stacks.artifacts.wheelhouse.wheels import NODE_PACKAGES, Wheel, from_json, is_of_image, to_json, write_json
from stacks.config import DeploymentConfig
from stacks.config.image import ImageConfig
from trainstack.session import FAILED, INVALID, CommandError

LOCK_NAME = "image.lock.json"
PINS = {"cuda": ("requirements.txt", "requirements-cuda.txt"), "cpu": ("requirements.txt", "requirements-cpu.lock")}
"""Files with the tested versions, by source of torch. A later file has precedence."""
TORCH = ("numpy", "torch")
EPOCH_SECONDS = 315532800
"""Default of SOURCE_DATE_EPOCH: 1980-01-01, the time of the files in bundles."""


def epoch_seconds() -> int:
    """Return SOURCE_DATE_EPOCH, the time of all files of an image, in Unix seconds. Raises CommandError.

    Source (2026-11): https://reproducible-builds.org/docs/source-date-epoch/
    """
    text = os.environ.get("SOURCE_DATE_EPOCH", str(EPOCH_SECONDS))
    if not text.isdecimal():
        raise CommandError(INVALID, f"SOURCE_DATE_EPOCH: {text!r}: must be Unix seconds; correct it, or unset it")
    return int(text)


@dataclass(frozen=True)
class ImageLock:
    """The lock of a deployment file's image.

    Attributes:
        inputs: Digest of the keys, requirements and versions that the lock was made for.
        base: Base image as NAME@sha256:DIGEST.
        wheels: The image's wheels by normalized distribution name.
    """

    inputs: str
    base: str
    wheels: Mapping[str, Wheel]

    def requirements(self) -> str:
        """Return the text of a requirements file with the hash of each wheel."""
        return "".join(
            f"{name}=={wheel.version} --hash=sha256:{wheel.sha256}\n" for name, wheel in sorted(self.wheels.items())
        )


def lock_path(config_path: Path) -> Path:
    """Return the path of the lock file for a deployment file."""
    return config_path.with_name(LOCK_NAME)


def section_of(config: DeploymentConfig, file: Path) -> ImageConfig:
    """Return the image section. Raises CommandError if there is none."""
    if config.image is None:
        raise CommandError(
            INVALID, f"{file}: image: None: is missing; add image.base, such as python:3.11-slim-bookworm"
        )
    return config.image


def requirements_of(config: DeploymentConfig, section: ImageConfig) -> tuple[list[str], list[str]]:
    """Return an image's requirements, and the versions to use for all distributions (tested ones).

    Raises:
        CommandError: The user code's dependencies are invalid.
    """
    found = dependencies_of(config)
    if found.problems:
        raise CommandError(INVALID, "\n".join(str(problem) for problem in found.problems))
    pins: dict[str, str] = {}
    for name in PINS.get(section.torch, ("requirements.txt",)):
        pins |= pinned_versions(ROOT / name)
    if section.torch == "base":
        pins = {name: version for name, version in pins.items() if not is_of_image(name)}
    own = [*NODE_PACKAGES, *(() if section.torch == "base" else TORCH)]
    tested = [f"{name}=={pins[name]}" if name in pins else name for name in own]
    ranges = [] if section.torch == "base" else found.image
    return sorted([*tested, *found.requirements, *ranges]), [f"{name}=={each}" for name, each in sorted(pins.items())]


def inputs_digest(config: DeploymentConfig, section: ImageConfig) -> str:
    """Return the digest of the inputs of a lock. Raises CommandError."""
    requirements, _ = requirements_of(config, section)
    inputs = [section.base, section.python, section.torch, requirements]
    return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()


def make_lock(config: DeploymentConfig, section: ImageConfig, base: str) -> ImageLock:
    """Resolve the wheels of an image on a base.

    Raises:
        CommandError: No set of wheels satisfies the requirements, or the package index is not reachable.
    """
    requirements, versions = requirements_of(config, section)
    listed = {canonicalize_name(Requirement(text).name) for text in requirements}
    constraints = [text for text in versions if canonicalize_name(Requirement(text).name) not in listed]
    try:
        omits = is_of_image if section.torch == "base" else _none
        wheels = resolve(requirements, section.python, constraints, omits)
    except WheelhouseError as error:
        raise CommandError(FAILED, f"{error}; change training.dependencies, image.python or image.torch") from error
    return ImageLock(inputs_digest(config, section), base, wheels)


def _none(name: str) -> bool:
    return False


def read_lock(config: DeploymentConfig, file: Path) -> ImageLock:
    """Return the lock of a deployment file.

    Raises:
        CommandError: The file is not locked, or the lock is damaged or outdated.
    """
    section, path = section_of(config, file), lock_path(file)
    remedy = f"run `trainstack image lock {file}`, and commit {LOCK_NAME}"
    try:
        entry = _entries(path).get(file.name)
        if entry is None:
            raise CommandError(INVALID, f"{file}: image: {section.base!r}: is not locked; {remedy}")
        (wheels,) = from_json({section.python: entry["wheels"]}).values()
        lock = ImageLock(str(entry["inputs"]), str(entry["base"]), wheels)
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise CommandError(
            INVALID, f"{path}: is not a valid image lock ({error!r}); remove it, and {remedy}"
        ) from error
    if lock.inputs != inputs_digest(config, section):
        rule = "is outdated: the image section, dependencies of your code, or tested versions have changed"
        raise CommandError(INVALID, f"{file}: {LOCK_NAME}: {lock.inputs[:12]!r}: {rule}; {remedy}")
    return lock


def write_lock(file: Path, lock: ImageLock) -> bool:
    """Write the lock of a deployment file. Return whether it has changed. Locks of other files stay unchanged.

    Raises:
        CommandError: The lock file is damaged.
    """
    path = lock_path(file)
    try:
        entries = _entries(path)
    except (OSError, ValueError, TypeError) as error:
        raise CommandError(INVALID, f"{path}: is not a valid image lock ({error!r}); remove it") from error
    wheels = to_json({"": lock.wheels})[""]
    entry = {"inputs": lock.inputs, "base": lock.base, "wheels": wheels}
    if entries.get(file.name) == entry:
        return False
    write_json(path, dict(sorted({**entries, file.name: entry}.items())))
    return True


def _entries(path: Path) -> dict[str, Any]:
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    if not isinstance(loaded, dict):
        raise TypeError("not an object")
    return loaded
