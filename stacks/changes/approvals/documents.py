"""The keys of the node and run documents that can change without approval. docs/architecture.md lists all keys."""

from __future__ import annotations

import re
from collections.abc import Mapping

from stacks.changes.approvals.rules import Change, Rule, asks, bounded_growth, numbers, passes
from stacks.changes.templates.values import mapping, number, text_of
from stacks.changes.updates.differences import MISSING

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


def prepared_source(change: Change) -> str | None:
    """Accept a preparation that reads the same raw objects as before, with any function from the repository."""
    old, new = (mapping(one).get("source") for one in (change.before, change.after))
    if change.after is MISSING or old == new:
        return None
    return "reads different raw objects, and the review does not inspect their content"


_TRAINING = (
    "seed", "steps", "global_batch_size", "micro_batch_size", "model", "data", "optimizer", "schedule", "parallel",
    "execution", "precision", "compile", "checkpoint", "validation", "early_stopping", "recovery", "observation",
    "log_interval_steps", "threads", "determinism", "entrypoint", "arguments",
)  # fmt: skip
RUN_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("run", "dataset", "min_nodes", "processes_per_node"), passes),
    "prepare": prepared_source,
    "nodes": bounded_growth,
    "code": code_of_the_repository,
    **{f"training/{name}": passes for name in _TRAINING},
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
