"""Gets the two sides of a comparison and reviews what lies between them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stacks.changes.assembly import Assembly, read_assembly
from stacks.changes.causes import Edit, edits
from stacks.changes.review import Review, review
from stacks.changes.revision import unpack
from stacks.changes.synthesis import ROOT, synthesise
from stacks.config import DeploymentConfig, load, read
from stacks.errors import ConfigError

DEPLOYED = "deployed"
Progress = Callable[[str], None]


@dataclass(frozen=True)
class _Side:
    """What a change is compared with; the file is None where only templates are known."""

    assembly: Assembly
    config: DeploymentConfig | None
    resolved: DeploymentConfig | None
    notes: list[str]


def compare(path: Path, against: str, context: Mapping[str, str], progress: Progress) -> Review:
    """Return what a deploy of a file would do to what `against` names.

    Args:
        path: The deployment file.
        against: "deployed", a folder that a synthesis wrote, or a git revision.
        context: Context of the CDK app, such as allow-destroy.
        progress: Told what is being done.

    Raises:
        ConfigError: The file is wrong, or what it is compared with cannot be had.
    """
    resolved = load(path)
    progress(f"synthesising {path}")
    with ThreadPoolExecutor(max_workers=1) as pool:
        synthesis = pool.submit(synthesise, path, context)
        before = _before(path, resolved, against, context, progress, lambda: synthesis.result())
        after = synthesis.result()
    progress("comparing")
    new = read(path)
    changed = None if before.config is None else list(edits(_dump(before.config), _dump(new)))
    if changed is not None and before.resolved is not None:
        changed += _locked_image(changed, before.resolved, resolved)
    hours = _planned_hours(before.config or new), _planned_hours(new)
    return review(before.assembly, after, edits=changed, hours=hours, notes=before.notes)


def _before(
    path: Path,
    config: DeploymentConfig,
    against: str,
    context: Mapping[str, str],
    progress: Progress,
    after: Callable[[], Assembly],
) -> _Side:
    if against == DEPLOYED:
        from stacks.changes.deployed import deployed  # boto3, which the other comparisons do without

        wanted = after()
        progress(f"asking CloudFormation in {config.region}")
        found, notes = deployed(config, wanted)
        return _Side(found, None, None, notes)
    if Path(against).is_dir():
        return _Side(read_assembly(Path(against)), None, None, [])
    return _revision(path, against, context, progress)


def _revision(path: Path, revision: str, context: Mapping[str, str], progress: Progress) -> _Side:
    with tempfile.TemporaryDirectory() as folder:
        tree = unpack(path, revision, Path(folder))
        notes = [] if tree.renamed_from is None else [f"the file was {tree.renamed_from} at {tree.commit[:12]}"]
        root = tree.root
        if not all((root / name).is_file() for name in ("app.py", "cdk.json")):
            root = ROOT
            notes.append(f"{revision} has no app of its own: the old file is synthesised with the present one")
        progress(f"synthesising {revision} ({tree.commit[:12]})")
        assembly = synthesise(tree.config, context, root)
        try:
            return _Side(assembly, read(tree.config), load(tree.config), notes)
        except ConfigError as error:
            notes.append(
                f"the file of {revision} has keys that are not known any more ({len(error.problems)} problems): keys "
                "are named as what decides about a place, not as what changed"
            )
            return _Side(assembly, None, None, notes)


def _planned_hours(config: DeploymentConfig) -> float | None:
    return None if config.capacity.auto is None else config.capacity.auto.hours


def _dump(config: DeploymentConfig) -> dict[str, Any]:
    return config.model_dump(mode="json")


def _locked_image(changed: list[Edit], before: DeploymentConfig, after: DeploymentConfig) -> list[Edit]:
    """Return the image as an edit when the lock beside the file moved it, and not the file."""
    if before.node.ami == after.node.ami or any(one.key == "node.ami" for one in changed):
        return []
    return [Edit("node.ami", before.node.ami, after.node.ami, source="ami.lock.json")]
