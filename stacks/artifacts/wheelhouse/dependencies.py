"""Determines the user code's dependencies from requirements.txt, imports, or the deployment file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from stacks.artifacts.wheelhouse.imports import distribution_of, imports_of
from stacks.artifacts.wheelhouse.node_lock import pinned_versions
from stacks.artifacts.wheelhouse.wheels import NODE_PACKAGES, is_of_image
from stacks.config import DeploymentConfig
from stacks.errors import Problem

REQUIREMENTS = "requirements.txt"
KEY = "training.dependencies"
TOKENIZING = ("pyarrow", "tiktoken", "tokenizers")
"""Modules that the trainer's data preparation functions import."""
TRACKERS = {"wandb": ("wandb",), "mlflow": ("mlflow-skinny", "mlflow")}
"""Modules of experiment trackers, which are also the names of their settings, and the distributions that have them."""

MODEL_FOLDERS = ("safetensors", "tokenizers")
"""Modules with which the trainer reads a model folder in Hugging Face's layout."""


@dataclass
class Dependencies:
    """The distributions to install, the requirements for the image, and the origin of each."""

    requirements: list[str] = field(default_factory=list)
    image: list[str] = field(default_factory=list)
    explanation: list[tuple[str, str, str]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def explain(self, source: str, distribution: str, why: str) -> None:
        """Record a dependency's origin and distribution, and why it is or is not installed."""
        self.explanation.append((source, distribution, why))


def dependencies_of(config: DeploymentConfig) -> Dependencies:
    """Return the dependencies of the deployment's user code. This function reads only local files."""
    result = Dependencies()
    configured = config.training.dependencies
    if isinstance(configured, list):
        for index, text in enumerate(configured):
            _add(result, text, f"{KEY}.{index}")
    elif configured == "auto" and config.training.code is not None:
        folder = Path(config.training.code)
        if folder.is_dir():
            _add_file(result, folder / REQUIREMENTS)
            _add_imports(result, folder)
        else:
            remedy = "set the folder with your code, as a path from the current folder, or remove the key"
            result.problems.append(Problem("training.code", config.training.code, "is not a folder", remedy))
    if config.training.config.observation.tensorboard:
        _add_tested(result, ["tensorboard"], "training.config.observation.tensorboard")
    if config.training.config.initial_weights is not None:
        _add_tested(result, MODEL_FOLDERS, "training.config.initial_weights")
    prepare = config.training.prepare
    if prepare is not None and prepare.function.startswith("training."):
        _add_tested(result, TOKENIZING, "training.prepare.function")
    result.requirements.sort()
    result.image.sort()
    return result


def tracker_problems(config: DeploymentConfig) -> list[Problem]:
    """Return a problem for each experiment tracker whose package nodes would not have."""
    observation, python = config.training.config.observation, config.node.python
    wanted = [name for name in TRACKERS if getattr(observation, name) and name not in python.packages]
    if not wanted:
        return []
    listed = set() if python.wheelhouse == "off" else set(_names(dependencies_of(config).requirements))
    remedy = "add {0} to training.dependencies, or {1} to node.python.packages if the image contains it"
    return [
        Problem(
            f"training.config.observation.{name}",
            "true",
            f"requires the package {TRACKERS[name][0]}, which nodes do not install",
            remedy.format(TRACKERS[name][0], name),
        )
        for name in wanted
        if not listed & set(TRACKERS[name])
    ]


def _add_tested(result: Dependencies, names: Sequence[str], source: str) -> None:
    """Add the distributions that optional parts of the trainer import, in the tested versions."""
    for name in names:
        if not _has(result, name):
            _add(result, f"{name}=={pinned_versions()[name]}", source)


def _add_file(result: Dependencies, path: Path) -> None:
    if not path.is_file():
        return
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        text = line.partition(" #")[0].strip()
        if text and not text.startswith("#"):
            _add(result, text, f"{path}:{number}")


def _add(result: Dependencies, text: str, source: str) -> None:
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        rule = "must be a requirement such as `name>=1.2`; pip options are not supported"
        result.problems.append(Problem(source, text, rule, "write one requirement per line; the lock adds hashes"))
        return
    name = canonicalize_name(requirement.name)
    if requirement.url is not None:
        rule = "must not have a URL: nodes install only wheels from the package index"
        result.problems.append(Problem(source, text, rule, f"publish it to an index, or add {name} to training.code"))
    elif is_of_image(name):
        if any(one.operator in ("==", "===") and not one.version.endswith(".*") for one in requirement.specifier):
            rule = "would replace the distribution in the image, which is built for the image's CUDA version"
            remedy = f"remove the version, use a range ({name}>=...), or use an image (node.ami) with that version"
            result.problems.append(Problem(source, text, rule, remedy))
            return
        if requirement.specifier and requirement.marker is None:
            result.image.append(f"{name}{requirement.specifier}")
        result.explain(
            source, name, "part of the image" + (f": {requirement.specifier}" if requirement.specifier else "")
        )
    else:
        result.requirements.append(str(requirement))
        result.explain(source, str(requirement), "installed")


def _add_imports(result: Dependencies, folder: Path) -> None:
    found, invalid = imports_of(folder)
    for text in invalid:
        result.problems.append(
            Problem("training.code", str(folder), f"cannot be parsed: {text}", f"correct it, or list {KEY}")
        )
    for one in found:
        mapped = distribution_of(one.module)
        name, source = mapped.distribution, f"import {one.module} ({one.file}:{one.line})"
        if is_of_image(name):
            result.explain(source, name, "part of the image")
        elif name in NODE_PACKAGES:
            result.explain(source, name, "installed on every node")
        elif _has(result, name):
            result.explain(source, name, f"listed in {REQUIREMENTS}")
        elif one.optional:
            result.explain(
                source,
                name,
                f"optional (except ImportError), so not installed; list it in {REQUIREMENTS} to install it",
            )
        else:
            result.requirements.append(name)
            result.explain(source, name, f"installed; {mapped.reason}")


def _has(result: Dependencies, name: str) -> bool:
    return name in set(_names(result.requirements))


def _names(requirements: list[str]) -> Iterator[str]:
    for text in requirements:
        yield canonicalize_name(Requirement(text).name)
