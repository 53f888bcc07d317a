"""What happens to running nodes, by back end.

Sources (2026-11): https://docs.aws.amazon.com/AWSCloudFormation/latest/TemplateReference/aws-attribute-updatepolicy.html,
https://docs.aws.amazon.com/autoscaling/ec2/userguide/asg-instance-refresh-skip-matching.html (an instance whose launch
template and type are still those of the group stays),
https://docs.aws.amazon.com/autoscaling/ec2/userguide/auto-scaling-benefits.html (a group whose zones change moves) and
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_ModifySpotFleetRequest.html (the target is a part of it).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from stacks.changes.assembly import Assembly
from stacks.changes.differences import ATTRIBUTES, METADATA, Difference
from stacks.changes.fleet_facts import FleetFacts, fleet_facts
from stacks.changes.resources import Key, ResourceChange
from stacks.changes.texts import RUN_DOCUMENT

Fate = Literal["nothing", "trainer_restarts", "rolling_replacement", "fleet_rebuilt"]
SUBNETS = "VPCZoneIdentifier"
REPLACING: tuple[Fate, ...] = ("rolling_replacement", "fleet_rebuilt")
SHORT_WORDS: Mapping[Fate, str] = {
    "nothing": "nodes untouched",
    "trainer_restarts": "trainer restarts in place",
    "rolling_replacement": "nodes replaced",
    "fleet_rebuilt": "fleet rebuilt",
}


@dataclass(frozen=True)
class NodeVerdict:
    """What becomes of the nodes, why, and what that risks; `causes` are the differences behind it, by resource."""

    fate: Fate
    reason: str
    risk: str | None
    causes: tuple[tuple[Key, Difference | None], ...]
    replaced_types: tuple[str, ...] = ()

    @property
    def replaces(self) -> bool:
        """Whether machines go."""
        return self.fate in REPLACING


def node_verdict(before: Assembly, after: Assembly, changes: Sequence[ResourceChange]) -> NodeVerdict:
    """Return what a deploy does to the nodes that run meanwhile."""
    old, new = fleet_facts(before), fleet_facts(after)
    if old is None:
        return NodeVerdict("nothing", "no fleet is there yet: no node runs", None, ())
    by_key = {change.key: change for change in changes}
    fleet = by_key.get((old.stack, old.logical_id))
    if fleet is not None and (fleet.action in ("removed", "replaced") or new is None or new.backend != old.backend):
        return _rebuilt(old, new, fleet)
    assert new is not None, "a fleet that is gone was removed"
    if new.backend == "auto_scaling_group" and fleet is not None:
        verdict = _refreshed(old, new, fleet, by_key)
        if verdict is not None:
            return verdict
    if fleet is not None and new.backend != "auto_scaling_group":
        verdict = _emptied(old, new, fleet)
        if verdict is not None:
            return verdict
    return _trainer(old, new, changes)


def _rebuilt(old: FleetFacts, new: FleetFacts | None, fleet: ResourceChange) -> NodeVerdict:
    causes = tuple((fleet.key, one) for one in fleet.differences if one.effect != "in place")
    if new is None or fleet.action == "removed":
        reason = f"the fleet goes with {fleet.logical_id}: its {old.nodes} nodes are shut down and none come"
        return NodeVerdict("fleet_rebuilt", reason, None, causes or ((fleet.key, None),), old.instance_types)
    if new.backend != old.backend:
        reason = f"the fleet becomes one of another kind ({old.backend} to {new.backend}): all nodes are shut down"
    else:
        reason = (
            "a second fleet is made empty, then the first one goes: its nodes are shut down, without a hook to wait"
        )
    risk = f"what a node has not saved at the shutdown signal is trained again. {capacity_risk(new)}"
    return NodeVerdict("fleet_rebuilt", reason, risk, causes or ((fleet.key, None),), old.instance_types)


def _emptied(old: FleetFacts, new: FleetFacts, fleet: ResourceChange) -> NodeVerdict | None:
    """Return what an update in place of a maintained fleet does: it writes the target of the template too, zero."""
    written = [one for one in fleet.differences if one.path[0] not in (*ATTRIBUTES, *METADATA, "Tags")]
    if not written:
        return None
    reason = "the update sets the fleet to the target in its template, 0: its nodes are shut down, then asked for again"
    risk = f"what a node has not saved at the shutdown signal is trained again. {capacity_risk(new)}"
    causes = tuple((fleet.key, one) for one in written)
    return NodeVerdict("fleet_rebuilt", reason, risk, causes, old.instance_types)


def _refreshed(
    old: FleetFacts, new: FleetFacts, fleet: ResourceChange, by_key: Mapping[Key, ResourceChange]
) -> NodeVerdict | None:
    """Return what an instance refresh replaces; None when every running node is still what the group launches."""
    moved = {one.via.logical_id for one in fleet.differences if one.via is not None and one.via.attribute}
    moved |= {key[1] for key, change in by_key.items() if key[0] == fleet.stack and change.action == "replaced"}
    gone = tuple(name for name in old.instance_types if name not in new.templates)
    outdated = tuple(
        name
        for name, template in old.templates.items()
        if name in new.templates and (new.templates[name] != template or template in moved)
    )
    policy = (fleet.after or {}).get("UpdatePolicy", {})
    if not gone and not outdated:
        return _moved(old, new, fleet)
    causes = _behind(fleet, by_key)
    if not ({"AutoScalingInstanceRefresh", "AutoScalingRollingUpdate"} & set(policy)):
        reason = "the group has no update policy: running nodes stay as they are, new ones follow the new template"
        return NodeVerdict("nothing", reason, None, causes)
    replaced = tuple(name for name in old.instance_types if name in (*gone, *outdated))
    which = "all nodes" if len(replaced) == len(old.templates) else f"nodes of type {', '.join(replaced)}"
    why = "a new launch template version" if outdated else "their type is no longer listed"
    reason = f"{which} save a checkpoint, leave and are replaced at once: {why}"
    return NodeVerdict("rolling_replacement", reason, capacity_risk(new), causes, replaced)


def _moved(old: FleetFacts, new: FleetFacts, fleet: ResourceChange) -> NodeVerdict | None:
    """Return what a group does that leaves subnets: it balances itself over those that it has. None: it stays."""
    causes = tuple((fleet.key, one) for one in fleet.differences if one.path[0] == SUBNETS)
    before, after = (
        {json.dumps(one) for one in fleet.properties(side).get(SUBNETS, [])} for side in ("before", "after")
    )
    if not before - after and not any(one.via is not None for _, one in causes):
        return None
    reason = "nodes in subnets that the group leaves save a checkpoint, leave and are replaced in those that it has"
    return NodeVerdict("rolling_replacement", reason, capacity_risk(new), causes, old.instance_types)


def _behind(fleet: ResourceChange, by_key: Mapping[Key, ResourceChange]) -> tuple[tuple[Key, Difference | None], ...]:
    """Return the differences that started it: those of the launch templates, else of the group's own types."""
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


def _trainer(old: FleetFacts, new: FleetFacts, changes: Sequence[ResourceChange]) -> NodeVerdict:
    for change in changes:
        read = [one for one in change.differences if RUN_DOCUMENT in one.path]
        if change.action in ("changed in place", "replaced") and read:
            reason = "the run document changes: trainers save a checkpoint and start again on the same nodes"
            risk = None
            if new.nodes < old.nodes:
                reason += f"; {old.nodes - new.nodes} of {old.nodes} leave"
            elif new.nodes > old.nodes:
                reason += f"; {old.nodes} nodes become {new.nodes}"
                risk = _capacity_of_growth(old, new)
            return NodeVerdict("trainer_restarts", reason, risk, tuple((change.key, one) for one in read))
    if any(change.key == (new.stack, new.logical_id) for change in changes):
        return NodeVerdict("nothing", "those that run stay as they are, machines to come follow the fleet", None, ())
    return NodeVerdict("nothing", "nothing that they read changes", None, ())


def _capacity_of_growth(old: FleetFacts, new: FleetFacts) -> str:
    wanted, types = new.nodes - old.nodes, ", ".join(new.instance_types)
    kind = f"{new.market} " if new.market in ("spot", "reserved") else ""
    more = f"{_machines(wanted, f'more {kind}')} ({types}) must be found"
    if new.min_nodes <= old.nodes:
        return f"{more}: the nodes that are there train on meanwhile"
    return f"{more}: training stands still until then"


def capacity_risk(fleet: FleetFacts) -> str:
    """Say what it takes to get the machines back, once they have been given away."""
    types = ", ".join(fleet.instance_types)
    enough = f"until {fleet.min_nodes} of {fleet.nodes} are there" if fleet.min_nodes < fleet.nodes else "until then"
    if fleet.spot_nodes:
        return (
            f"{_machines(fleet.spot_nodes, 'spot ')} ({types}) must be found again: training stands still {enough}, "
            f"and an attempt is given up after {fleet.gang_timeout_seconds} s"
        )
    if fleet.is_reserved or fleet.market_type is not None:
        return f"{_machines(fleet.nodes)} ({types}) to come back from the reservation"
    return f"{_machines(fleet.nodes, 'on-demand ')} ({types}) must be found again: training stands still {enough}"


def _machines(number: int, kind: str = "") -> str:
    return f"{number} {kind}machine{'' if number == 1 else 's'}"
