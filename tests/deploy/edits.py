"""Edited values of the keys that change in place, and the function that applies them to a configuration."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from stacks.config import DeploymentConfig
from stacks.config.reference import fields

IN_PLACE: dict[str, Any] = {
    "network.existing.cidr": "10.0.0.0/15",
    "network.existing.route_table_ids": None,  # depends on the account, see `accounts.prepare`
    "network.existing.create_endpoints": None,
    "network.nat": True,
    "network.flow_log_retention_days": 14,
    "storage.transfer_acceleration": True,
    "storage.archive_after_days": 60,
    "storage.access_log_days": 45,
    "storage.noncurrent_version_days": 7,
    "storage.node_report_days": 20,
    "storage.checkpoint_volume.gib": 300,
    "storage.checkpoint_volume.iops": 4000,
    "storage.checkpoint_volume.throughput": 300,
    "storage.checkpoint_volume.snapshot_every_hours": 12,
    "storage.checkpoint_volume.snapshots_kept": 6,
    "storage.shared_volume.gib": 200,
    "storage.shared_volume.iops": 12000,
    "storage.lustre.capacity_gib": 4800,
    "storage.lustre.throughput_mib_per_second_per_tib": 500,
    "storage.lustre.compression": "NONE",
    "image.keep_images": 5,
    "image.pull_roles": None,  # the roles must exist
    "capacity.boot_failure_limit": 5,
    "capacity.slots": None,  # adds a stack, see test_edit_effects.py
    "capacity.choose": "cost",
    "capacity.maintenance.max_lifetime_days": 30,
    "capacity.reservation.create.count": None,
    "capacity.reservation.create.end": None,
    "node.session_manager": False,
    "node.extra_policies": ["arn:aws:iam::aws:policy/CloudWatchReadOnlyAccess"],
    "node.permissions_boundary": "arn:aws:iam::aws:policy/PowerUserAccess",
    "observability.log_retention_days": 14,
    "observability.dashboard": False,
    "observability.daily_zombie_search": False,
    "observability.emails": ["team@example.com"],
    "observability.alarms.heartbeat_missing_minutes": 20,
    "observability.alarms.too_few_nodes_minutes": 90,
    "observability.alarms.gpu_utilization_below_percent": 20,
    "observability.alarms.gpu_idle_minutes": 60,
    "observability.alarms.boot_failures": 3,
    "observability.alarms.interruptions_per_hour": 8,
    "observability.alarms.usd_per_hour": 250.0,
    "limits.usd": 9000.0,
    "limits.run_hours": 300.0,
    "limits.deadline_hours": 400.0,
    "limits.training_hours": 250.0,
    "limits.on_deadline_miss": "stop",
    "limits.warn_at_percent": 70,
    "budget.monthly_usd": 900.0,
    "budget.warn_at_percent": [60, 90],
    # The embedded cloud only records clusters, and the examples of pipelines have no deploy test.
    **dict.fromkeys(
        (
            *("eks.addons", "eks.admins", "eks.public_access_cidrs", "eks.version"),
            *("hyperpod.deep_health_checks", "hyperpod.login_instance_type", "hyperpod.node_recovery"),
            *("pcs.accounting", "pcs.always_on", "pcs.idle_minutes", "pcs.login_instance_type", "pcs.slurm_version"),
            *("pipeline.steps.capacity.boot_failure_limit", "pipeline.steps.capacity.choose"),
            *("pipeline.steps.capacity.maintenance.max_lifetime_days", "pipeline.steps.capacity.slots"),
            *("pipeline.steps.capacity.reservation.create.count", "pipeline.steps.capacity.reservation.create.end"),
        )
    ),
}
"""All keys that are documented to change in place, each with a value that no example uses. None: not edited here."""


def in_place_keys() -> set[str]:
    """Return the dotted paths of all keys that are documented to change in place."""
    return {path for path, _, edit in fields(DeploymentConfig) if edit == "in place"}


def edited(config: Mapping[str, Any], edits: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the configuration with the edits, and the edited keys; keys of absent optional sections are skipped."""
    result = copy.deepcopy(dict(config))
    done = []
    for path, value in edits.items():
        if value is None or not _applies(result, path):
            continue
        *parents, last = path.split(".")
        place = result
        for name in parents:
            place = place.setdefault(name, {})
        place[last] = value
        done.append(path)
    return result, done


OPTIONAL = ("network.existing", "storage.checkpoint_volume", "storage.shared_volume", "storage.lustre")


def _applies(config: Mapping[str, Any], path: str) -> bool:
    if path in ("network.nat", "network.flow_log_retention_days") and "existing" in config.get("network", {}):
        return False
    if path == "capacity.maintenance.max_lifetime_days":
        backend: str = config["capacity"].get("backend", "auto_scaling_group")
        return backend == "auto_scaling_group"
    if path == "capacity.choose":
        capacity, storage = config["capacity"], config.get("storage", {})
        uses_one_zone = capacity.get("placement") == "cluster" or capacity.get("zone_policy") == "one_at_a_time"
        has_zone = {"checkpoint_volume", "shared_volume", "lustre"} & set(storage) or "reservation" in capacity
        return uses_one_zone and not has_zone and capacity.get("market", "spot") == "spot"
    if path.startswith("image."):
        return "image" in config
    for optional in OPTIONAL:
        if path.startswith(optional + "."):
            first, second = optional.split(".")
            return second in config.get(first, {})
    return True
