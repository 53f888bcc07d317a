"""The keys of the node and run documents that can change without approval. docs/architecture.md lists all keys."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stacks.changes.approvals.rules import MAX_GROWTH, Change, Rule, asks, bounded_growth, numbers, passes
from stacks.changes.templates.values import mapping, number, text_of
from stacks.changes.updates.differences import MISSING
from training.config import CheckpointConfig

_ASSET = re.compile(r"cdk-[a-z0-9]+-assets-(\$\{AWS::AccountId\}|\d{12})-(\$\{AWS::Region\}|[a-z0-9-]+)")
"""The CDK's asset bucket. Only deploys from the repository write to it. Source (2026-11):
https://docs.aws.amazon.com/cdk/v2/guide/bootstrapping-env.html"""
_DIGEST = re.compile(r"[0-9a-f]{64}\.zip")


def code_of_the_repository(change: Change) -> str | None:
    """Accept a code bundle that the CDK published under its digest, because the repository contains its files.

    The pull request shows the code, and the code runs under the unchanged node role.
    """
    code, old = mapping(change.after), mapping(change.before)
    if code.keys() != {"bucket", "key", "sha256"}:
        return "is incomplete"
    is_asset = _ASSET.fullmatch(text_of(code["bucket"])) and _DIGEST.fullmatch(text_of(code["key"]))
    if not is_asset or (old and code["bucket"] != old.get("bucket")):
        return "is not an asset of this repository"
    return None


def kept_checkpoints(change: Change) -> str | None:
    """Accept settings that do not delete more checkpoints. An unset setting keeps no additional checkpoints."""
    was, becomes = (0.0 if one is MISSING or one is None else number(one) for one in (change.before, change.after))
    if was is None or becomes is None:
        return "cannot be compared"
    return None if becomes >= was else "deletes checkpoints that the old setting keeps"


def saved_work(change: Change) -> str | None:
    """Accept settings that at most double the work lost with a node, and that keep the hourly checkpoints.

    `interval_minutes` limits the loss. Without it, `interval_steps` does.
    """
    old, new = (_Saves.of(mapping(one)) for one in (change.before, change.after))
    if old is None or new is None:
        return "cannot be compared"
    if new.kept_hours > old.kept_hours:
        return "deletes checkpoints that the old setting keeps"
    has_limit = math.isfinite(new.minutes) or math.isfinite(old.minutes)
    was, becomes = (old.minutes, new.minutes) if has_limit else (old.steps, new.steps)
    return None if becomes <= was * MAX_GROWTH else f"saves less often, by a factor of more than {MAX_GROWTH:g}"


@dataclass(frozen=True)
class _Saves:
    """How often a run saves, and the interval in hours of the checkpoints that it keeps. Infinity means never."""

    steps: float
    minutes: float
    kept_hours: float

    @classmethod
    def of(cls, checkpoint: Mapping[str, Any]) -> _Saves | None:
        """Return the settings in a run document, or None if one is not a number."""
        fields = CheckpointConfig.model_fields
        steps = checkpoint.get("interval_steps")
        found = [
            number(_DEFAULT_STEPS if steps in (None, "auto") else steps),
            *(
                math.inf if value is None else number(value)
                for value in (checkpoint.get(name, fields[name].default) for name in _NEVER_IF_NULL)
            ),
        ]
        known = [one for one in found if one is not None]
        return cls(*known) if len(known) == len(found) else None


_NEVER_IF_NULL = ("interval_minutes", "keep_every_hours")
_DEFAULT_STEPS = 500.0
"""The default of `interval_steps` for a long run, also used for `auto`."""


def prepared_source(change: Change) -> str | None:
    """Accept a preparation that reads the same raw objects as before, with any function from the repository.

    Its time limit, which limits the cost of a hang, may at most double.
    """
    old, new = (mapping(one) for one in (change.before, change.after))
    if change.after is MISSING:
        return None
    if old.get("source") != new.get("source"):
        return "reads different raw objects, and the review does not inspect their content"
    was, becomes = (number(one.get("timeout_minutes")) for one in (old, new))
    if was is None or becomes is None or becomes > was * MAX_GROWTH:
        return f"has a time limit that grows by a factor of more than {MAX_GROWTH:g}, or that cannot be compared"
    return None


_TRAINING = (
    "seed", "steps", "global_batch_size", "micro_batch_size", "model", "data", "optimizer", "schedule", "parallel",
    "execution", "precision", "compile", "validation", "early_stopping", "recovery", "observation",
    "log_interval_steps", "threads", "determinism", "entrypoint", "arguments",
)  # fmt: skip
RUN_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("run", "dataset", "min_nodes", "processes_per_node"), passes),
    "prepare": prepared_source,
    "nodes": bounded_growth,
    "code": code_of_the_repository,
    **{f"training/{name}": passes for name in _TRAINING},
    "training/checkpoint": saved_work,
    "training/checkpoint/keep_last": kept_checkpoints,
    "training/checkpoint/keep_best": kept_checkpoints,
    "training/initial_weights": asks("is content that the review does not inspect"),
}
NODE_RULES: Mapping[str, Rule] = {
    "gpus": numbers,
    "fabric": passes,
    **{f"volumes/{name}": passes for name in ("warm", "initialization", "warm_limit_mib_per_second")},
    **{f"supervise/{name}": numbers for name in ("poll_seconds", "heartbeat_seconds")},
    **{f"supervise/{name}": bounded_growth for name in (
        "heartbeat_timeout_seconds", "gang_timeout_seconds", "boot_timeout_seconds",
    )},
}  # fmt: skip
