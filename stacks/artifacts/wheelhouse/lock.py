"""`wheelhouse.lock.json`, which pins the wheels for a deployment's nodes so that every deploy installs the same ones.

The file is next to the deployment files; commit it. Format: {deployment file: {inputs, sha256, image, wheels}}.
`wheels` are the user code's wheels. `node.lock.json` locks the wheels that every node needs.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stacks.artifacts.wheelhouse import KEY, LOCK_NAME, REMEDY
from stacks.artifacts.wheelhouse.dependencies import Dependencies, dependencies_of
from stacks.artifacts.wheelhouse.wheels import Wheels, from_json, node_wheels, to_json, write_json
from stacks.config import DeploymentConfig
from stacks.errors import ConfigError, Problem

AUTO = "auto"


@dataclass(frozen=True)
class Locked:
    """The lock for a deployment file.

    Attributes:
        inputs: Digest of the resolution's inputs.
        sha256: Digest of the archive.
        image: The code's requirements for packages that the image provides.
        wheels: The user code's wheels.
    """

    inputs: str
    sha256: str
    image: tuple[str, ...]
    wheels: Wheels

    def all_wheels(self) -> Wheels:
        """Return all wheels in the archive: the wheels that every node needs, and the user code's wheels."""
        every = node_wheels()
        return {python: every.get(python, {}) | of_one for python, of_one in self.wheels.items()}


def lock_path(config_path: Path) -> Path:
    """Return the path of the lock file for a deployment file."""
    return config_path.with_name(LOCK_NAME)


def inputs_digest(config: DeploymentConfig, dependencies: Dependencies) -> str:
    """Return the digest of the resolution's inputs."""
    every = node_wheels()
    pythons = config.node.python.versions
    inputs = {
        "node": to_json({python: every[python] for python in pythons if python in every}),
        "pythons": sorted(pythons),
        "requirements": dependencies.requirements,
        "image": dependencies.image,
    }
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def read_lock(config_path: Path) -> Locked | None:
    """Return the lock for a deployment file, or None if the file is not locked.

    Raises:
        ConfigError: The lock file is not valid.
    """
    entry = _entries(lock_path(config_path)).get(config_path.name)
    if entry is None:
        return None
    try:
        return Locked(entry["inputs"], entry["sha256"], tuple(entry["image"]), from_json(entry["wheels"]))
    except (TypeError, AttributeError, KeyError) as error:
        raise _not_a_lock(lock_path(config_path), error) from error


def write_lock(config_path: Path, locked: Locked) -> None:
    """Write the lock for a deployment file. The entries for other files stay unchanged."""
    path = lock_path(config_path)
    entries = _entries(path)
    entries[config_path.name] = {
        "inputs": locked.inputs,
        "sha256": locked.sha256,
        "image": list(locked.image),
        "wheels": to_json(locked.wheels),
    }
    write_json(path, dict(sorted(entries.items())))


def locked_wheelhouse(config: DeploymentConfig, config_path: Path) -> tuple[str, list[Problem]]:
    """Return the digest for `node.python.wheelhouse: auto`, or `auto` if there is no lock.

    Also return a problem if the lock does not match the deployment file and its code.

    Raises:
        ConfigError: The lock file is not valid.
    """
    locked = read_lock(config_path)
    if locked is None:
        return AUTO, []
    dependencies = dependencies_of(config)
    if dependencies.problems:
        return locked.sha256, dependencies.problems
    if inputs_digest(config, dependencies) != locked.inputs:
        rule = (
            f"{LOCK_NAME} is outdated: node.python.versions, training.dependencies, your code's requirements.txt or "
            "imports, or the wheels that every node needs (node.lock.json) have changed"
        )
        return locked.sha256, [Problem(KEY, locked.sha256, rule, f"run {REMEDY}, and commit the lock")]
    return locked.sha256, []


def _entries(path: Path) -> dict[str, Any]:
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise _not_a_lock(path, error) from error
    if not isinstance(loaded, dict):
        raise _not_a_lock(path, TypeError("not an object"))
    return loaded


def _not_a_lock(path: Path, error: Exception) -> ConfigError:
    problem = Problem(str(path), None, f"is not a valid wheel lock: {error!r}", f"remove it, and run {REMEDY}")
    return ConfigError(str(path), [problem])
