"""What a deployment's own code needs on a node: from its requirements.txt, its imports, or the deployment file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from stacks.config import DeploymentConfig
from stacks.errors import Problem
from stacks.wheelhouse.imports import TRAINER, distribution_of, imports_of
from stacks.wheelhouse.node_lock import pinned_versions
from stacks.wheelhouse.wheels import NODE_PACKAGES, is_of_image

REQUIREMENTS = "requirements.txt"
KEY = "training.dependencies"
TOKENIZING = ("pyarrow", "tiktoken", "tokenizers")
"""What the trainer's own functions that prepare data import."""


@dataclass
class Dependencies:
    """What is installed, what the image must have, and how both came about, a line each."""

    requirements: list[str] = field(default_factory=list)
    image: list[str] = field(default_factory=list)
    explanation: list[tuple[str, str, str]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def explain(self, source: str, distribution: str, why: str) -> None:
        """Note where a dependency comes from: what names it, its distribution, and why it is installed or not."""
        self.explanation.append((source, distribution, why))


def dependencies_of(config: DeploymentConfig) -> Dependencies:
    """Return what the deployment's code needs; looks at files, asks nobody."""
    result = Dependencies()
    said = config.training.dependencies
    if isinstance(said, list):
        for index, text in enumerate(said):
            _add(result, text, f"{KEY}.{index}")
    elif said == "auto" and config.training.code is not None:
        folder = Path(config.training.code)
        if folder.is_dir():
            _add_file(result, folder / REQUIREMENTS)
            _add_imports(result, folder)
    if config.training.config.observation.tensorboard:
        _add_tested(result, ["tensorboard"], "training.config.observation.tensorboard")
    prepare = config.training.prepare
    if prepare is not None and prepare.function.startswith(f"{TRAINER}."):
        _add_tested(result, TOKENIZING, "training.prepare.function")
    result.requirements.sort()
    result.image.sort()
    return result


def _add_tested(result: Dependencies, names: Sequence[str], source: str) -> None:
    """Add what a part of the trainer imports that not every run needs, at the versions with which it is tested."""
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
        rule = "is not a requirement such as `name>=1.2`; options of pip are not taken"
        result.problems.append(
            Problem(source, text, rule, "write each requirement on a line; hashes come from the lock")
        )
        return
    name = canonicalize_name(requirement.name)
    if requirement.url is not None:
        rule = "is fetched from a URL, and nodes get wheels of the package index only"
        result.problems.append(Problem(source, text, rule, f"publish it to an index, or put {name} into training.code"))
    elif is_of_image(name):
        if any(one.operator in ("==", "===") and not one.version.endswith(".*") for one in requirement.specifier):
            rule = "would replace the image's own, which is built for its CUDA"
            remedy = f"drop the version, give a range ({name}>=...), or take an image (node.ami) that has it"
            result.problems.append(Problem(source, text, rule, remedy))
            return
        if requirement.specifier and requirement.marker is None:
            result.image.append(f"{name}{requirement.specifier}")
        result.explain(
            source, name, "the image brings it" + (f": {requirement.specifier}" if requirement.specifier else "")
        )
    else:
        result.requirements.append(str(requirement))
        result.explain(source, str(requirement), "is installed")


def _add_imports(result: Dependencies, folder: Path) -> None:
    found, wrong = imports_of(folder)
    for text in wrong:
        result.problems.append(
            Problem("training.code", str(folder), f"cannot be parsed: {text}", f"correct it, or list {KEY}")
        )
    for one in found:
        mapped = distribution_of(one.module)
        name, source = mapped.distribution, f"import {one.module} ({one.file}:{one.line})"
        if is_of_image(name):
            result.explain(source, name, "the image brings it")
        elif name in NODE_PACKAGES:
            result.explain(source, name, "every node gets it")
        elif _has(result, name):
            result.explain(source, name, f"{REQUIREMENTS} names it")
        elif one.optional:
            result.explain(
                source, name, f"is tried only (except ImportError): not installed; name it in {REQUIREMENTS}"
            )
        else:
            result.requirements.append(name)
            result.explain(source, name, f"is installed; {mapped.why}")


def _has(result: Dependencies, name: str) -> bool:
    return name in set(_names(result.requirements))


def _names(requirements: list[str]) -> Iterator[str]:
    for text in requirements:
        yield canonicalize_name(Requirement(text).name)
