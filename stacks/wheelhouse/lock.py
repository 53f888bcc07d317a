"""`wheelhouse.lock.json`: which wheels a deployment's nodes get, so that no deploy installs others unasked.

One file beside the deployment files, to be committed: {deployment file: {inputs, sha256, image, wheels}}. `wheels` are
those of the deployment's own code; those that every node gets are locked by the project (`node.lock.json`).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stacks.config import DeploymentConfig
from stacks.errors import ConfigError, Problem
from stacks.wheelhouse import KEY, LOCK_NAME, REMEDY
from stacks.wheelhouse.dependencies import Dependencies, dependencies_of
from stacks.wheelhouse.wheels import Wheels, from_json, node_wheels, to_json, write_json

AUTO = "auto"


@dataclass(frozen=True)
class Locked:
    """What is locked of a deployment file.

    `inputs` is the digest of what the choice of wheels depended on, `sha256` that of the archive, `image` what the
    code requires of the image's own packages.
    """

    inputs: str
    sha256: str
    image: tuple[str, ...]
    wheels: Wheels

    def all_wheels(self) -> Wheels:
        """Return the wheels of the archive: those of every node, and those of the deployment's code."""
        every = node_wheels()
        return {python: every.get(python, {}) | of_one for python, of_one in self.wheels.items()}


def lock_path(config_path: Path) -> Path:
    """Return where the lock of a deployment file is."""
    return config_path.with_name(LOCK_NAME)


def inputs_digest(config: DeploymentConfig, dependencies: Dependencies) -> str:
    """Return the digest of what the choice of wheels depends on."""
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
    """Return what is locked of a deployment file; None: nothing is.

    Raises:
        ConfigError: The lock is not one.
    """
    entry = _entries(lock_path(config_path)).get(config_path.name)
    if entry is None:
        return None
    try:
        return Locked(entry["inputs"], entry["sha256"], tuple(entry["image"]), from_json(entry["wheels"]))
    except (TypeError, AttributeError, KeyError) as error:
        raise _not_a_lock(lock_path(config_path), error) from error


def write_lock(config_path: Path, locked: Locked) -> None:
    """Lock a deployment file's wheels; other files' stay."""
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
    """Return what `node.python.wheelhouse: auto` comes to: a digest, or `auto` still when nothing is locked.

    With it the problems when what is locked is not what the deployment file and its code ask for now.

    Raises:
        ConfigError: The lock is not one.
    """
    locked = read_lock(config_path)
    if locked is None:
        return AUTO, []
    dependencies = dependencies_of(config)
    if dependencies.problems:
        return locked.sha256, dependencies.problems
    if inputs_digest(config, dependencies) != locked.inputs:
        rule = (
            f"{LOCK_NAME} is of other inputs: node.python.versions, training.dependencies, requirements.txt or imports "
            "of your code, or the wheels of every node (node.lock.json) changed since"
        )
        return locked.sha256, [Problem(KEY, locked.sha256, rule, f"lock anew: {REMEDY}, and commit it")]
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
    problem = Problem(str(path), None, f"is not a lock of wheels: {error!r}", f"remove it, and write it anew: {REMEDY}")
    return ConfigError(str(path), [problem])
