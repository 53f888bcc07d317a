"""The S3 objects with the members of a pipeline's steps, which Map states read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bootstrap.documents import Bundle
from bootstrap.documents.decoding import canonical_digest
from stacks.artifacts.documents import run_document
from stacks.config import DeploymentConfig
from stacks.config.pipeline.members import step_members
from stacks.config.pipeline.steps import Step
from stacks.config.run import training_document

DIRECTORY = Path("build/pipelines")


def step_items(config: DeploymentConfig, step: Step, code_sha256: str) -> list[dict[str, Any]]:
    """Return the members of a step.

    Each has an index, its settings, the run document without the keys that the function adds at run time, and the
    digest of its configuration, code and image.
    """
    base = _base(config, step)
    python = config.node.python
    code = {"code": code_sha256, "image": [config.node.ami, python.interpreter, python.wheelhouse]}
    items = []
    for index, member in enumerate(step_members(config.training.config, step.config)):
        document = {**base, "training": training_document(member.config)}
        digest = canonical_digest({"document": document, **code, "metrics": list(step.metrics)})
        items.append({"index": index, "settings": dict(member.settings), "digest": digest, "document": document})
    return items


def _base(config: DeploymentConfig, step: Step) -> dict[str, Any]:
    """Return the part of the run document that a step's members share."""
    capacity = step.config.capacity or config.capacity
    is_training = step.config.kind == "train"
    # A step that does not train uses one process, which reads the weights itself.
    nodes = {} if is_training else {"nodes": 1, "min_nodes": None}
    training = config.training.model_copy(update={} if is_training else {"processes_per_node": 1})
    own = config.model_copy(update={"capacity": capacity.model_copy(update=nodes), "training": training})
    document = run_document(own, Bundle("", "", "")).to_json()
    return {key: value for key, value in document.items() if key not in ("code", "deployment", "run", "training")}


def write_items(items: Sequence[dict[str, Any]], directory: Path = DIRECTORY) -> Path:
    """Write a step's members to a file named after its content, and return the file."""
    content = json.dumps(items, separators=(",", ":"), sort_keys=True)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{hashlib.sha256(content.encode()).hexdigest()}.json"
    path.write_text(content)
    return path
