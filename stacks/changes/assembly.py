"""The templates of one deployment, as synthesised, as deployed, or as found in a folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stacks.errors import ConfigError, Problem

FLEET_TYPES = ("AWS::AutoScaling::AutoScalingGroup", "AWS::EC2::EC2Fleet", "AWS::EC2::SpotFleet")


@dataclass(frozen=True)
class StackTemplate:
    """One stack: its construct id, the name that it is deployed under, and its template."""

    id: str
    name: str
    template: Mapping[str, Any]
    environment: str = ""
    is_protected: bool | None = None
    """Whether the stack refuses to be deleted; None: not known."""

    @property
    def resources(self) -> Mapping[str, Mapping[str, Any]]:
        """The resources by logical id."""
        resources: Mapping[str, Mapping[str, Any]] = self.template.get("Resources", {})
        return resources


Assembly = Mapping[str, StackTemplate]
"""Stacks by construct id, such as `TrainingStack`."""


def resources_of_type(assembly: Assembly, *types: str) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield stack id, logical id and definition of every resource of these types."""
    for stack in assembly.values():
        for logical_id, definition in stack.resources.items():
            if definition["Type"] in types:
                yield stack.id, logical_id, definition


def read_assembly(folder: Path) -> dict[str, StackTemplate]:
    """Read what a synthesis wrote to a folder (`cdk.out`).

    Raises:
        ConfigError: It is not a folder of Trainstack's templates.
    """
    manifest = folder / "manifest.json"
    if not manifest.is_file():
        rule = "has no manifest.json, so it is not what a synthesis wrote"
        raise _refused(folder, rule, "give a folder such as build/cdk.out, written by `make synth`")
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
    require_ours(found, str(folder))
    return found


def require_ours(assembly: Assembly, source: str) -> None:
    """Refuse templates that describe something else than a deployment of Trainstack.

    Raises:
        ConfigError: They are of other stacks, or of no resources.
    """
    problems = []
    for stack in assembly.values():
        if not isinstance(stack.template.get("Resources"), Mapping):
            remedy = "give templates that `make synth` wrote"
            problems.append(Problem(stack.id, stack.name, "has no Resources: not a template of stacks", remedy))
        elif any("Type" not in one for one in stack.resources.values() if isinstance(one, Mapping)):
            remedy = "give templates that `make synth` wrote"
            problems.append(Problem(stack.id, stack.name, "has resources without a Type", remedy))
    if not problems and "TrainingStack" not in assembly:
        found = ", ".join(assembly) or "no stack"
        remedy = "give templates that `make synth` wrote"
        problems.append(Problem("stacks", found, "no TrainingStack among them: not Trainstack's templates", remedy))
    if problems:
        raise ConfigError(source, problems)


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _refused(path, f"cannot be read as JSON: {error}", "synthesise anew") from error


def _refused(path: Path, rule: str, remedy: str) -> ConfigError:
    return ConfigError(str(path), [Problem("--against", str(path), rule, remedy)])
