"""Determines how a deploy affects running nodes, by back end.

Sources (2026-11): https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-attribute-updatepolicy.html,
https://docs.aws.amazon.com/autoscaling/ec2/userguide/asg-instance-refresh-skip-matching.html (instances that match the
group's current launch template and types are kept),
https://docs.aws.amazon.com/autoscaling/ec2/userguide/auto-scaling-benefits.html (a group rebalances when its zones
change) and https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_ModifySpotFleetRequest.html (an update also sets
the target capacity).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from stacks.changes.effects.fleet_summary import FleetSummary, fleet_summaries
from stacks.changes.templates.template_set import PropertyPath, TemplateSet
from stacks.changes.templates.values import RUN_DOCUMENT, listed, mapping
from stacks.changes.updates.differences import ATTRIBUTES, METADATA, Difference
from stacks.changes.updates.resources import Key, ResourceChange
from stacks.config import DeploymentConfig
from stacks.config.reference import fields
from stacks.functions.run_controller.fleet_back_ends import BACK_ENDS

Impact = Literal["nothing", "trainer_restarts", "rolling_replacement", "fleet_rebuilt"]
SUBNETS = "VPCZoneIdentifier"
IMPACTS: tuple[Impact, ...] = get_args(Impact)
REPLACING: tuple[Impact, ...] = ("rolling_replacement", "fleet_rebuilt")
IMPACT_TEXTS: Mapping[Impact, str] = {
    "nothing": "nodes unchanged",
    "trainer_restarts": "trainer restarts in place",
    "rolling_replacement": "nodes replaced",
    "fleet_rebuilt": "fleet rebuilt",
}


NEW_RUN = tuple(path for path, _, edit in fields(DeploymentConfig) if edit == "requires a new run")
"""The keys that checkpoints must match. After a change to one of them, the run cannot resume."""
STREAMED = "training.config.data.stream_cache_gib"
REJECTED = "a run rejects checkpoints with a different seed, dataset or model size, and fails: also change training.run"
_UNSAVED = "a node saves when it receives the shutdown signal; steps after that save are repeated"


@dataclass(frozen=True)
class NodeVerdict:
    """The impact on nodes, with the reason and the risk. `causes` lists the differences that cause it, by resource."""

    impact: Impact
    reason: str
    risk: str | None
    causes: tuple[tuple[Key, Difference | None], ...]
    replaced_types: tuple[str, ...] = ()

    @property
    def replaces(self) -> bool:
        """Whether running nodes are terminated."""
        return self.impact in REPLACING


def node_verdict(before: TemplateSet, after: TemplateSet, changes: Sequence[ResourceChange]) -> NodeVerdict:
    """Return how a deploy affects running nodes.

    The nodes can be in any of a fleet's groups, so the group with the greatest impact determines the verdict.
    """
    olds, news = fleet_summaries(before), fleet_summaries(after)
    if not olds:
        return NodeVerdict("nothing", "no fleet exists yet, so no nodes are running", None, ())
    by_id = {(one.stack, one.logical_id): one for one in news}
    any_new = news[0] if news else None
    verdicts = [_group_verdict(old, by_id.get((old.stack, old.logical_id), any_new), changes) for old in olds]
    return max(verdicts, key=lambda verdict: IMPACTS.index(verdict.impact))


def _group_verdict(old: FleetSummary, new: FleetSummary | None, changes: Sequence[ResourceChange]) -> NodeVerdict:
    by_key = {change.key: change for change in changes}
    fleet = by_key.get((old.stack, old.logical_id))
    if fleet is not None and (fleet.action in ("removed", "replaced") or new is None or new.backend != old.backend):
        return _rebuilt(old, new, fleet)
    assert new is not None, "a missing fleet was removed"
    if fleet is not None:
        refreshes = BACK_ENDS[new.backend].has_instance_refresh
        verdict = _refreshed(old, new, fleet, by_key) if refreshes else _emptied(old, new, fleet)
        if verdict is not None:
            return verdict
    return _trainer(old, new, changes)


def _rebuilt(old: FleetSummary, new: FleetSummary | None, fleet: ResourceChange) -> NodeVerdict:
    causes = tuple((fleet.key, one) for one in fleet.differences if one.effect != "in place")
    if new is not None and fleet.action == "removed" and new.backend == old.backend:
        nodes = "nodes in this group save a checkpoint, terminate and are replaced in another group"
        reason = f"{fleet.logical_id} is removed: {nodes}"
        return NodeVerdict(
            "fleet_rebuilt", reason, capacity_risk(new), causes or ((fleet.key, None),), old.instance_types
        )
    if new is None:
        reason = f"{fleet.logical_id} is removed: its {old.nodes} nodes are shut down and not replaced"
        return NodeVerdict("fleet_rebuilt", reason, None, causes or ((fleet.key, None),), old.instance_types)
    if new.backend != old.backend:
        reason = f"the back end changes ({old.backend} -> {new.backend}): all nodes are shut down"
    else:
        reason = "a second, empty fleet is created, and the first is deleted: its nodes are shut down without a hook"
    risk = f"{_UNSAVED}. {capacity_risk(new)}"
    return NodeVerdict("fleet_rebuilt", reason, risk, causes or ((fleet.key, None),), old.instance_types)


def _emptied(old: FleetSummary, new: FleetSummary, fleet: ResourceChange) -> NodeVerdict | None:
    """Return the impact of updating a maintained fleet in place, which resets the target capacity to 0."""
    written = [one for one in fleet.differences if one.path[0] not in (*ATTRIBUTES, *METADATA, "Tags")]
    if not written:
        return None
    reason = "the update resets the target capacity to 0: all nodes are shut down, then requested again"
    risk = f"{_UNSAVED}. {capacity_risk(new)}"
    causes = tuple((fleet.key, one) for one in written)
    return NodeVerdict("fleet_rebuilt", reason, risk, causes, old.instance_types)


def _refreshed(
    old: FleetSummary, new: FleetSummary, fleet: ResourceChange, by_key: Mapping[Key, ResourceChange]
) -> NodeVerdict | None:
    """Return the impact of an instance refresh, or None if all running nodes match the group's launch templates."""
    moved = {one.via.logical_id for one in fleet.differences if one.via is not None and one.via.attribute}
    moved |= {key[1] for key, change in by_key.items() if key[0] == fleet.stack and change.action == "replaced"}
    gone = tuple(name for name in old.instance_types if name not in new.templates)
    outdated = tuple(
        name
        for name, template in old.templates.items()
        if name in new.templates and (new.templates[name] != template or template in moved)
    )
    policy = mapping((fleet.after or {}).get("UpdatePolicy"))
    if not gone and not outdated:
        return _moved(old, new, fleet)
    causes = _behind(fleet, by_key)
    if not ({"AutoScalingInstanceRefresh", "AutoScalingRollingUpdate"} & set(policy)):
        reason = "the group has no update policy: running nodes stay unchanged, and new nodes use the new template"
        return NodeVerdict("nothing", reason, None, causes)
    replaced = tuple(name for name in old.instance_types if name in (*gone, *outdated))
    nodes = "all nodes" if len(replaced) == len(old.templates) else f"nodes of type {', '.join(replaced)}"
    trigger = "new launch template version" if outdated else "the type is no longer listed"
    reason = f"{nodes} save a checkpoint, terminate and are replaced at once: {trigger}"
    return NodeVerdict("rolling_replacement", reason, capacity_risk(new), causes, replaced)


def _moved(old: FleetSummary, new: FleetSummary, fleet: ResourceChange) -> NodeVerdict | None:
    """Return the impact of removing subnets, or None if none are removed. The group rebalances across the others."""
    causes = tuple((fleet.key, one) for one in fleet.differences if one.path[0] == SUBNETS)
    before, after = (
        {json.dumps(one) for one in listed(fleet.properties(side).get(SUBNETS))} for side in ("before", "after")
    )
    if not before - after and not any(one.via is not None for _, one in causes):
        return None
    reason = "nodes in removed subnets save a checkpoint, terminate and are replaced in the group's other subnets"
    return NodeVerdict("rolling_replacement", reason, capacity_risk(new), causes, old.instance_types)


def _behind(fleet: ResourceChange, by_key: Mapping[Key, ResourceChange]) -> tuple[tuple[Key, Difference | None], ...]:
    """Return the differences that trigger the refresh, either in the launch templates or in the group's types."""
    found: list[tuple[Key, Difference | None]] = []
    for one in fleet.differences:
        if one.path[0] not in ("MixedInstancesPolicy", "LaunchTemplate"):
            continue
        source = None if one.via is None else by_key.get((one.via.stack, one.via.logical_id))
        if source is None:
            if "InstancesDistribution" not in one.path:
                found.append((fleet.key, one))
        else:
            found += [(source.key, each) for each in source.differences if not each.is_metadata]
    return tuple(one for place, one in enumerate(found) if one not in found[:place])


def _trainer(old: FleetSummary, new: FleetSummary, changes: Sequence[ResourceChange]) -> NodeVerdict:
    for change in changes:
        read = [one for one in change.differences if RUN_DOCUMENT in one.path]
        if change.action in ("changed in place", "replaced") and read:
            reason = "the run document changes: trainers save a checkpoint and restart on the same nodes"
            if needs_new_run(read):
                reason += f", but {REJECTED}"
            risk = None
            if new.nodes < old.nodes:
                reason += f"; {old.nodes - new.nodes} of {old.nodes} nodes terminate"
            elif new.nodes > old.nodes:
                reason += f"; the gang grows from {old.nodes} to {new.nodes} nodes"
                risk = _capacity_of_growth(old, new)
            return NodeVerdict("trainer_restarts", reason, risk, tuple((change.key, one) for one in read))
    if any(change.key == (new.stack, new.logical_id) for change in changes):
        return NodeVerdict("nothing", "running nodes stay unchanged; new nodes use the fleet's new settings", None, ())
    return NodeVerdict("nothing", "node settings do not change", None, ())


def needs_new_run(differences: Sequence[Difference]) -> bool:
    """Return True if the run keeps its name, but its checkpoints no longer match it."""
    changed = {_config_key(one.path[one.path.index(RUN_DOCUMENT) + 1 :]): one for one in differences}
    if "training.run" in changed:
        return False
    return any(
        key == path or key.startswith(f"{path}.")
        for key, one in changed.items()
        for path in NEW_RUN
        if not (path == STREAMED and one.before is not None and one.after is not None)
    )


def _config_key(path: PropertyPath) -> str:
    """Return the deployment file's key for a path in the run document."""
    section = ("training", "config") if path[:1] == ("training",) else ("training", *path[:1])
    return ".".join(map(str, (*section, *path[1:])))


def _capacity_of_growth(old: FleetSummary, new: FleetSummary) -> str:
    wanted, types = new.nodes - old.nodes, ", ".join(new.instance_types)
    kind = f"{new.market} " if new.market in ("spot", "reserved") else ""
    more = f"AWS must provide {_instances(wanted, f'more {kind}')} ({types})"
    if new.min_nodes <= old.nodes:
        return f"{more}; the existing nodes keep training"
    return f"{more}; training pauses until then"


def capacity_risk(fleet: FleetSummary) -> str:
    """Return the capacity that AWS must provide to relaunch the fleet after its instances have been terminated."""
    types = ", ".join(fleet.instance_types)
    gang = f"until {fleet.min_nodes} of {fleet.nodes} run" if fleet.min_nodes < fleet.nodes else "until then"
    if fleet.spot_nodes:
        return (
            f"AWS must provide {_instances(fleet.spot_nodes, 'spot ')} ({types}) again; training pauses {gang}, and "
            f"each attempt is abandoned after {fleet.gang_timeout_seconds} s"
        )
    if fleet.is_reserved or fleet.market_type is not None:
        return f"{_instances(fleet.nodes)} ({types}) launch again from the reservation"
    return f"AWS must provide {_instances(fleet.nodes, 'on-demand ')} ({types}) again; training pauses {gang}"


def _instances(number: int, kind: str = "") -> str:
    return f"{number} {kind}instance{'' if number == 1 else 's'}"
