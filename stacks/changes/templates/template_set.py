"""A deployment's templates: newly synthesized, deployed, or read from a folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stacks.errors import ConfigError, Problem
from stacks.functions.zombie_watch.stack_names import NODE_STACKS

PropertyPath = tuple[str, ...]
"""Property names from outermost to innermost, without list positions: ("LustreConfiguration", "DeploymentType")."""


@dataclass(frozen=True)
class StackTemplate:
    """One stack, with its construct id, stack name and template."""

    id: str
    name: str
    template: Mapping[str, Any]
    environment: str = ""
    is_protected: bool | None = None
    """Whether the stack has termination protection, or None if unknown."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """The deployed parameter values, or an empty mapping if the template has not been deployed."""

    @property
    def resources(self) -> Mapping[str, Mapping[str, Any]]:
        """The resources, keyed by logical id."""
        resources: Mapping[str, Mapping[str, Any]] = self.template.get("Resources", {})
        return resources


TemplateSet = Mapping[str, StackTemplate]
"""Stacks, keyed by construct id, such as `TrainingStack`."""


def resources_of_type(templates: TemplateSet, *types: str) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield the stack id, logical id and definition of every resource that has one of the given types."""
    for stack in templates.values():
        for logical_id, definition in stack.resources.items():
            if definition["Type"] in types:
                yield stack.id, logical_id, definition


def read_cloud_assembly(folder: Path) -> dict[str, StackTemplate]:
    """Read the cloud assembly from a folder (`cdk.out`).

    Raises:
        ConfigError: The folder is not a Trainstack cloud assembly.
    """
    manifest = folder / "manifest.json"
    if not manifest.is_file():
        rule = "does not contain manifest.json, so it is not a cloud assembly"
        raise _error(folder, rule, "use the folder that `make synth` writes, such as build/cdk.out")
    found: dict[str, StackTemplate] = {}
    for stack_id, artifact in _json(manifest).get("artifacts", {}).items():
        if artifact.get("type") != "aws:cloudformation:stack":
            continue
        properties = artifact["properties"]
        found[stack_id] = StackTemplate(
            id=stack_id,
            name=properties.get("stackName", stack_id),
            template=_json(folder / properties["templateFile"]),
            environment=artifact.get("environment", ""),
            is_protected=properties.get("terminationProtection"),
        )
    _validate(found, str(folder))
    return found


def _validate(templates: TemplateSet, source: str) -> None:
    """Check that templates belong to a Trainstack deployment.

    Raises:
        ConfigError: The templates belong to other stacks, or do not contain resources.
    """
    problems = []
    remedy = "use the templates that `make synth` wrote"
    for stack in templates.values():
        if not isinstance(stack.template.get("Resources"), Mapping):
            problems.append(
                Problem(stack.id, stack.name, "has no Resources, so it is not a CloudFormation template", remedy)
            )
        elif any("Type" not in one for one in stack.resources.values() if isinstance(one, Mapping)):
            problems.append(Problem(stack.id, stack.name, "has resources without a Type", remedy))
    if not problems and templates.keys().isdisjoint(NODE_STACKS):
        names = ", ".join(templates) or "no stack"
        rule = f"contains none of {', '.join(sorted(NODE_STACKS))}: not Trainstack templates"
        problems.append(Problem("stacks", names, rule, remedy))
    if problems:
        raise ConfigError(source, problems)


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _error(path, f"cannot be read as JSON: {error}", "run `make synth` again") from error


def _error(path: Path, rule: str, remedy: str) -> ConfigError:
    return ConfigError(str(path), [Problem("--against", str(path), rule, remedy)])
