"""Templates of every deployment in config/, each synthesized once because the CDK starts slowly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import pytest
import yaml

from stacks.deployment import synthesise
from stacks.policy import nag
from stacks.policy.cloud_assembly import CheckedApp
from stacks.policy.explained import explained_rules
from stacks.policy.lint import cfn_lint

ROOT = Path(__file__).resolve().parents[2]
STACKS = ("NetworkStack", "StorageStack", "TrainingStack", "ObservabilityStack")
CLUSTERS = tuple(sorted(f"clusters/{path.stem}" for path in (ROOT / "config" / "clusters").glob("*.yaml")))
CONFIGS = tuple(sorted(path.stem for path in (ROOT / "config").glob("*.yaml")))


def cdk_context(config: Path, **context: str) -> dict[str, Any]:
    """Return the context that the CDK command line passes to the app."""
    settings: dict[str, Any] = json.loads((ROOT / "cdk.json").read_text())["context"]
    return {**settings, "config": str(config), **context}


def findings(made: Assembly, region: str = "us-east-1") -> list[str]:
    """Return the findings of cfn-lint and cdk-nag that no page explains."""
    assert made.app is not None
    checked = CheckedApp(made.directory.name, made.app, made.directory)
    verdicts = [*cfn_lint(checked, region), *nag.solutions(checked, 1), *nag.nist(checked, 1, explained_rules())]
    return [str(finding) for verdict in verdicts for finding in verdict.findings]


@dataclass(frozen=True)
class Assembly:
    """The output of one synthesis."""

    directory: Path
    app: cdk.App | None = None

    def text(self, stack: str) -> str:
        return (self.directory / f"{stack}.template.json").read_text()

    def resources(self, stack: str) -> dict[str, dict[str, Any]]:
        loaded: dict[str, dict[str, Any]] = json.loads(self.text(stack))["Resources"]
        return loaded

    def of_type(self, stack: str, kind: str) -> dict[str, dict[str, Any]]:
        return {name: item for name, item in self.resources(stack).items() if item["Type"] == kind}

    def one(self, stack: str, kind: str) -> dict[str, Any]:
        found = self.of_type(stack, kind)
        assert len(found) == 1, f"{kind}: {sorted(found)}"
        return next(iter(found.values()))

    def statements(self, stack: str, role: str) -> dict[str, dict[str, Any]]:
        """Return a role's policy statements by Sid."""
        found: dict[str, dict[str, Any]] = {}
        for item in self.of_type(stack, "AWS::IAM::Policy").values():
            if {"Ref": role} in item["Properties"]["Roles"]:
                found |= {each["Sid"]: each for each in item["Properties"]["PolicyDocument"]["Statement"]}
        return found


class Synthesis:
    """Synthesizes deployments like app.py, and caches the results."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._done: dict[str, Assembly] = {}

    def of(self, name: str) -> Assembly:
        """Return the assembly of a deployment in config/."""
        if name not in self._done:
            self._done[name] = self.run(ROOT / "config" / f"{name}.yaml", name)
        return self._done[name]

    def run(self, config: Path, label: str, **context: str) -> Assembly:
        out = self._directory / label
        app = cdk.App(
            outdir=str(out),
            context=cdk_context(config, **context),
            builtin_cloud_formation_validation=False,
        )
        synthesise(app)
        return Assembly(out, app)

    def variant(self, label: str, changes: dict[str, Any], *, base: str = "demo", **context: str) -> Assembly:
        """Return the assembly of a deployment with some keys changed; keys are dotted paths."""
        document = yaml.safe_load((ROOT / "config" / f"{base}.yaml").read_text())
        for path, value in changes.items():
            *parents, last = path.split(".")
            section = document
            for name in parents:
                section = section.setdefault(name, {})
            section[last] = value
        self._directory.mkdir(parents=True, exist_ok=True)
        config = self._directory / f"{label}.yaml"
        config.write_text(yaml.safe_dump(document))
        return self.run(config, f"variant-{label}", **context)  # never the folder of an example


@pytest.fixture(scope="session")
def synthesis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Synthesis]:
    yield Synthesis(tmp_path_factory.mktemp("assemblies"))


@pytest.fixture(scope="session")
def demo(synthesis: Synthesis) -> Assembly:
    return synthesis.of("demo")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all tests that use the CDK in one worker, because the CDK takes longer to start than the tests to run."""
    for item in items:
        if {"synthesis", "demo"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.xdist_group("cdk"))
