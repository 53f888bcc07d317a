"""Replaces interrupted instances, and mixes spot instances with On-Demand Instances.

This module imports only the standard library because it is part of the run controller's Lambda asset.
"""

from __future__ import annotations

from dataclasses import replace

from .deadlines.goals import Outlook
from .situation import Action, ControllerState, Decision, Detach, FleetState, Release, Resize, Situation, Surplus


def bought(state: ControllerState) -> int:
    """Return the number of On-Demand nodes to buy to meet the deadline."""
    return 0 if state.outlook is None else state.outlook.on_demand_nodes


def mix(
    situation: Situation, state: ControllerState, outlook: Outlook, actions: tuple[Action, ...], target: int
) -> Decision:
    """Buy On-Demand nodes, or replace them with spot instances, which launch while the On-Demand nodes are training."""
    fleet, wanted = situation.fleet, outlook.on_demand_nodes
    desired = target + wanted if outlook.is_leaving else target
    booting = tuple(sorted(set(fleet.present()) - situation.heard_from - set(lost_instances(situation, state))))
    reason = f"{wanted} of {target} nodes are On-Demand: {outlook.reason}"
    state = replace(state, phase="running", booting=booting, reason=reason)
    if fleet.surplus is not None and not outlook.is_leaving and len(fleet.bought) > wanted:
        return Decision((Release(target, wanted, fleet.bought[wanted:]),), replace(state, booting=()))
    if (fleet.requested, fleet.on_demand) == (desired, wanted):
        return Decision(actions, state)
    subnets = (outlook.leaving_subnet,) if outlook.is_leaving else None
    moved = Resize(desired, None if subnets is None or subnets == fleet.subnets else subnets, wanted)
    kept = tuple(each for each in actions if isinstance(each, Detach))
    # Nodes that leave because others replace them are not boot failures.
    return Decision((*kept, moved), replace(state, booting=(), since_unix_seconds=situation.now_unix_seconds))


def needs_mix(fleet: FleetState, outlook: Outlook) -> bool:
    """Return True if the On-Demand nodes differ from those that the deadline needs, or are being replaced."""
    wanted = outlook.on_demand_nodes
    if outlook.is_leaving or wanted != fleet.on_demand:
        return True
    # A maintained fleet keeps instances that exceed its target, and still requests spot capacity after a refusal.
    return fleet.surplus is not None and (len(fleet.bought) > wanted or (fleet.surplus > 0 and fleet.on_demand > 0))


def lost_instances(situation: Situation, state: ControllerState) -> list[str]:
    """Return the instances that this notice names, and previously interrupted instances that could not be detached."""
    known = situation.interrupted if situation.fleet.surplus is None else situation.interrupted | set(state.excused)
    return sorted(name for name in situation.fleet.in_service() if name in known)


def replacements(fleet: FleetState, lost: list[str], target: int) -> tuple[Action, ...]:
    """Return the actions that replace interrupted instances while they still run, and then remove the surplus.

    A maintained fleet keeps all instances while an interrupted one runs. If that instance ends before the surplus is
    removed, the fleet has launched one instance too many, which it then terminates.
    """
    if fleet.surplus is None:
        return tuple(Detach(name) for name in lost)
    if fleet.on_demand:  # missing nodes are bought on demand
        return ()
    staying = len(set(fleet.present()) - set(lost))
    wanted = min(len(lost), max(0, target - staying))
    if fleet.desired != target or wanted == fleet.surplus:
        return ()
    if lost:
        return (Surplus(target, wanted),)
    return (Resize(target),)
