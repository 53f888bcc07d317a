"""A deployment's construct tree and templates, which the checkers read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import aws_cdk as cdk

from stacks.deployment import synthesise


@dataclass(frozen=True)
class CheckedApp:
    """A synthesized app. `label` is the deployment file's name without its extension."""

    label: str
    app: cdk.App
    directory: Path

    @cached_property
    def templates(self) -> Mapping[str, Path]:
        """The templates by stack id."""
        paths = sorted(self.directory.glob("*.template.json"))
        return {path.name.removesuffix(".template.json"): path for path in paths}

    @cached_property
    def resources(self) -> Mapping[str, Mapping[str, Any]]:
        """The resources in each template by logical id."""
        return {stack: json.loads(path.read_text())["Resources"] for stack, path in self.templates.items()}

    def locate(self, construct_path: str) -> tuple[str, str]:
        """Return the stack id and logical id of the resource at a construct path."""
        node = self.app.node
        for name in construct_path.split("/"):
            node = node.find_child(name).node
        resource = node.scope.node.find_child(node.id) if node.scope is not None else None
        assert isinstance(resource, cdk.CfnElement), construct_path
        stack = cdk.Stack.of(resource)
        return stack.node.id, str(stack.resolve(resource.logical_id))


def synthesise_for_check(config: Path, directory: Path) -> CheckedApp:
    """Synthesize a deployment file as `cdk synth` would.

    Raises:
        ConfigError: The file is invalid.
    """
    context = json.loads(Path("cdk.json").read_text())["context"]
    app = cdk.App(outdir=str(directory), context={**context, "config": str(config)})
    synthesise(app)
    return CheckedApp(config.stem, app, directory)
