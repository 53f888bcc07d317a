"""Rules for several slots: the storage and capacity of one fleet cannot be shared, and names have limits."""

from __future__ import annotations

from collections.abc import Iterator

from stacks.config import DeploymentConfig
from stacks.errors import Problem

MAX_NAME = 24
"""Maximum length of a fleet's name, as for `name`."""


def belongs_to_one_fleet(config: DeploymentConfig) -> Iterator[Problem]:
    """Parts of the file that belong to exactly one fleet are not combined with several slots."""
    capacity, storage = config.capacity, config.storage
    if len(config.slot_suffixes) == 1:
        return
    remedy = "remove it, or use one deployment file for each run"
    if storage.checkpoint_volume is not None:
        rule = "attaches to one instance at a time, so the slots cannot share it"
        yield Problem("storage.checkpoint_volume", f"zone {storage.checkpoint_volume.zone}", rule, remedy)
    if storage.dataset_volume is not None and storage.dataset_volume.warm == "fast_snapshot_restore":
        rule = "is enabled for a snapshot, and the slots would disable it for each other"
        yield Problem("storage.dataset_volume.warm", "fast_snapshot_restore", rule, "set warm: blocks")
    if capacity.reservation is not None and capacity.reservation.create is not None:
        rule = "would create, and bill, one reservation for each slot"
        wanted = capacity.reservation.create
        remedy = "create one reservation for all slots yourself, and set capacity.reservation.id"
        yield Problem("capacity.reservation.create", f"{wanted.count} x {wanted.instance_type}", rule, remedy)


def fleet_names(config: DeploymentConfig) -> Iterator[Problem]:
    """The name of each slot's fleet is as short as a deployment name."""
    suffix = max(config.slot_suffixes, key=len)
    name = f"{config.name}-{suffix}"
    if suffix and len(name) > MAX_NAME:
        rule = f"makes fleet names such as {name}, which are longer than {MAX_NAME} characters"
        yield Problem("name", config.name, rule, f"shorten it to {MAX_NAME - len(suffix) - 1} characters")


def requires_fleet(config: DeploymentConfig) -> Iterator[Problem]:
    """Only fleets have slots. Other engines queue any number of runs."""
    if config.engine != "fleet" and config.capacity.slots > 1:
        rule = f"has no effect with engine: {config.engine}"
        yield Problem("capacity.slots", config.capacity.slots, rule, "remove it; submit one file for each run")


RULES = (belongs_to_one_fleet, fleet_names)
OTHER_ENGINES_RULES = (requires_fleet,)
