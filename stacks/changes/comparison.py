"""Loads the two sides of a comparison and reviews the changes between them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stacks.capacity.simulation.expected import NotEstimable, expected
from stacks.capacity.simulation.spread import Spread
from stacks.capacity.training_time import TrainingTime
from stacks.changes.causes import Edit, edits
from stacks.changes.review import Review, review
from stacks.changes.templates.revision import unpack
from stacks.changes.templates.synthesis import ROOT, synthesise
from stacks.changes.templates.template_set import TemplateSet, read_cloud_assembly
from stacks.config import DeploymentConfig
from stacks.errors import ConfigError, Problem
from stacks.loading import load, read

DEPLOYED = "deployed"
REVIEW_RUNS = 50
"""Number of simulated runs from which a review derives the expected cost."""
Progress = Callable[[str], None]


@dataclass(frozen=True)
class _Side:
    """The old side of a comparison. The configuration is None if only the templates are available."""

    templates: TemplateSet
    config: DeploymentConfig | None
    resolved: DeploymentConfig | None
    notes: list[str]


def compare(
    path: Path,
    against: str,
    context: Mapping[str, str],
    progress: Progress,
    templates: Path | None = None,
    only: str | None = None,
) -> Review:
    """Review the changes that deploying a file would make.

    Args:
        path: The deployment file.
        against: "deployed", a synthesis output folder, or a git revision.
        context: Context values for the CDK app, such as allow-destroy.
        progress: Function that receives a message before each step.
        templates: The file's cloud assembly; None to synthesize it.
        only: The stack to review; None for all stacks.

    Raises:
        ConfigError: The file is invalid, or the other side is not available, or neither side has the stack.
    """
    resolved = load(path)
    progress(f"synthesizing {path}" if templates is None else f"reading {templates}")
    with ThreadPoolExecutor(max_workers=1) as pool:
        synthesis = pool.submit(
            lambda: _only(synthesise(path, context) if templates is None else read_cloud_assembly(templates), only)
        )
        before = _before(path, resolved, against, context, progress, lambda: synthesis.result())
        after = synthesis.result()
    progress("comparing")
    new = read(path)
    changed = None if before.config is None else list(edits(_dump(before.config), _dump(new)))
    if changed is not None and before.resolved is not None:
        changed += _locked_image(changed, before.resolved, resolved)
    hours = _planned_hours(before.config or new), _planned_hours(new)
    old = _only(before.templates, only)
    if only is not None and not old and not after:
        rule = f"{path} does not have this stack"
        raise ConfigError("--stack", [Problem("--stack", only, rule, "use the name of one of its stacks")])
    expected_usd = _expected_usd(before.resolved or resolved, hours[0]), _expected_usd(resolved, hours[1])
    return review(old, after, edits=changed, hours=hours, expected_usd=expected_usd, notes=before.notes)


def _only(templates: TemplateSet, stack: str | None) -> TemplateSet:
    return templates if stack is None else {name: one for name, one in templates.items() if name == stack}


def _before(
    path: Path,
    config: DeploymentConfig,
    against: str,
    context: Mapping[str, str],
    progress: Progress,
    after: Callable[[], TemplateSet],
) -> _Side:
    if against == DEPLOYED:
        from stacks.changes.templates.deployed import deployed  # imports boto3, which the other comparisons do not need

        wanted = after()
        progress(f"reading the deployed templates from CloudFormation in {config.region}")
        found, notes = deployed(config, wanted)
        return _Side(found, None, None, notes)
    if Path(against).is_dir():
        return _Side(read_cloud_assembly(Path(against)), None, None, [])
    return _revision(path, against, context, progress)


def _revision(path: Path, revision: str, context: Mapping[str, str], progress: Progress) -> _Side:
    with tempfile.TemporaryDirectory() as folder:
        tree = unpack(path, revision, Path(folder))
        notes = [] if tree.renamed_from is None else [f"the file was named {tree.renamed_from} at {tree.commit[:12]}"]
        root = tree.root
        if not all((root / name).is_file() for name in ("app.py", "cdk.json")):
            root = ROOT
            notes.append(f"{revision} does not contain a CDK app; the current app synthesized its deployment file")
        progress(f"synthesizing {revision} ({tree.commit[:12]})")
        templates = synthesise(tree.config, context, root)
        try:
            return _Side(templates, read(tree.config), load(tree.config), notes)
        except ConfigError as error:
            notes.append(
                f"the deployment file of {revision} is not valid for this version ({len(error.problems)} problems): "
                "keys in brackets are possible causes, not known edits"
            )
            return _Side(templates, None, None, notes)


def _expected_usd(config: DeploymentConfig, hours: float | None) -> Spread | None:
    """Return the distribution of the cost of a run of the given duration, or None if it cannot be estimated."""
    if hours is None:
        return None
    planned = TrainingTime(hours, None, "planned hours", is_stated=True)
    try:
        return expected(config, planned, runs=REVIEW_RUNS).usd
    except NotEstimable:
        return None


def _planned_hours(config: DeploymentConfig) -> float | None:
    """Return the expected training time in hours, or None if the deployment file does not determine it."""
    if config.limits.training_hours is not None or config.capacity.auto is None:
        return config.limits.training_hours
    return config.capacity.auto.hours


def _dump(config: DeploymentConfig) -> dict[str, Any]:
    return config.model_dump(mode="json")


def _locked_image(changed: list[Edit], before: DeploymentConfig, after: DeploymentConfig) -> list[Edit]:
    """Return the image as an additional edit if it changed in the image lock but not in the deployment file."""
    if before.node.ami == after.node.ami or any(one.key == "node.ami" for one in changed):
        return []
    return [Edit("node.ami", before.node.ami, after.node.ami, source="ami.lock.json")]
