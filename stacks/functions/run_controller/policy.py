"""Determines the fleet's size and the response to interruptions, as a pure function of an observation.

`handler` collects a Situation, applies the actions and stores the ControllerState until the next invocation. Decisions
depend on the observed state, not on the event that triggered the invocation. A lost, late or duplicate event
therefore only affects when a decision is made. This module imports only the standard library because the Lambda asset
contains only this package, and because simulations with spot traces import it unchanged.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from . import replacement, zone_choice
from .causes import REMEDIES, Cause
from .current_cause import cause_of, is_gang
from .deadlines import planning
from .market import moving
from .situation import (
    PHASES,
    Action,
    CompleteTermination,
    ControllerState,
    Decision,
    Detach,
    FleetState,
    Instance,
    LaunchFailure,
    LiftOutcome,
    Outcome,
    Phase,
    Release,
    Resize,
    Run,
    Settings,
    Situation,
    Surplus,
)

__all__ = [
    "Action",
    "CompleteTermination",
    "ControllerState",
    "Decision",
    "Detach",
    "FleetState",
    "Instance",
    "LaunchFailure",
    "LiftOutcome",
    "Outcome",
    "PHASES",
    "Phase",
    "Release",
    "Resize",
    "Run",
    "Settings",
    "Situation",
    "Surplus",
    "console_command",
    "decide",
    "recovered_state",
    "utc",
    "vanished",
    "LONGEST_WAIT_SECONDS",
    "PROBE_WAITS_SECONDS",
]

LONGEST_WAIT_SECONDS = 1800.0
STOP_SECONDS = 360.0
"""Time that nodes have to save and shut down after a stop. Supervisors wait 300 s for the last save."""
PROBE_WAITS_SECONDS = (900.0, 3600.0, 21600.0)
"""Waits before each probe of a protected fleet. If the last probe fails, only a change or a retry starts the fleet."""


def decide(situation: Situation) -> Decision:
    """Return the actions for a situation, and the controller's next state."""
    if situation.spending is None:  # the ledger could not be read in this step
        situation = replace(situation, spending=situation.state.spending)
    is_lifted = _lifts_outcome(situation)
    if is_lifted:
        situation = replace(situation, outcome=None)
    decision = _decide(situation)
    cause, problem = cause_of(situation, decision.state)
    completions = tuple(CompleteTermination(name) for name in situation.fleet.held_after_termination)
    state = replace(decision.state, cause=cause, problem=problem, spending=situation.spending)
    lifts = (LiftOutcome(),) if is_lifted else ()
    return replace(decision, actions=(*lifts, *completions, *decision.actions), state=state)


def _lifts_outcome(situation: Situation) -> bool:
    """Return True if a user requested a retry of a run that has failed. A stopped run has to be resumed first."""
    run, outcome = situation.run, situation.outcome
    if not situation.retry_requested or situation.stop or run is None or outcome is None:
        return False
    return outcome.run_digest == run.digest and outcome.outcome != "finished"


def _decide(situation: Situation) -> Decision:
    run = situation.run
    if run is None:
        return _rest(situation, replace(situation.state, phase="idle", reason="no run document"))
    state = zone_choice.observed(situation, _count_boot_failures(situation, _state_of_run(situation, run)))
    outcome = situation.outcome
    if outcome is not None and outcome.run_digest == run.digest:
        return _rest(situation, replace(state, phase="ended", reason=f"the run ended: {outcome.outcome}"))
    if situation.stop:
        return _stop(situation, state)
    if state.phase == "stopped":  # resumed
        state = replace(state, phase="running", attempt=0, had_instances=False, since_unix_seconds=None)
    state = planning.looked(situation, run, state)
    if limit := situation.settings.limits.reached(situation.spending) or planning.stop_reason(situation, state):
        reason = f"saved and stopped: {limit}. Remedy: {REMEDIES[Cause.SPEND_LIMIT]}"
        return _rest(situation, replace(state, phase="limited", reason=reason))
    if state.phase == "limited":
        state = replace(state, phase="running")
    if situation.retry_requested:
        state = replace(state, phase="running", boot_failures=0, probes=0, retry_unix_seconds=None)
    if situation.missing_dataset and _needs_dataset(situation, state):
        return _wait_for_dataset(situation, state)
    if state.phase == "no_dataset":  # boots failed because of the dataset, which exists now
        state = replace(state, phase="running", boot_failures=0, probes=0, last_failure="")
    if state.boot_failures >= situation.settings.boot_failure_limit:
        return _protect(situation, state)
    if state.phase in ("protected", "probing"):  # a node has booted
        state = replace(state, phase="running", probes=0, retry_unix_seconds=None)
    if state.phase == "giving_up":
        return _finish_giving_up(situation, run, state)
    if state.phase == "waiting":
        return _wait(situation, run, state)
    return _keep_gang(situation, run, state)


def _state_of_run(situation: Situation, run: Run) -> ControllerState:
    """Return the stored state, or a new state if it belongs to another run document or other launch templates."""
    state, template = situation.state, situation.fleet.template
    if (state.run_digest, state.template) == (run.digest, template):
        return state
    kept = ControllerState(run_digest=run.digest, template=template, subnets=state.subnets)
    return replace(
        kept,
        places=state.places,
        in_place=state.in_place,
        started_unix_seconds=state.started_unix_seconds,
        outlook=state.outlook,
        scores=state.scores,
        scored_unix_seconds=state.scored_unix_seconds,
        placed_unix_seconds=state.placed_unix_seconds,
    )


def recovered_state(run: Run, fleet: FleetState, settings: Settings) -> ControllerState:
    """Return the state to continue with if the stored state is unreadable.

    The number of boot failures is unknown, so the next failed boot stops the fleet.
    """
    return ControllerState(
        run_digest=run.digest,
        template=fleet.template,
        phase="running",
        boot_failures=settings.boot_failure_limit - 1,
        last_failure="the stored state was unreadable, so earlier failures are unknown",
    )


def _count_boot_failures(situation: Situation, state: ControllerState) -> ControllerState:
    """Count the nodes that disappeared before their first heartbeat, unless AWS reports that their launch failed."""
    present = set(situation.fleet.present())
    excused = set(state.excused) | situation.interrupted
    excused |= {failure.instance_id for failure in situation.launch_failures if failure.instance_id}
    heard = situation.heard_from
    failed = [name for name in state.booting if name not in present and name not in heard and name not in excused]
    last_failure = state.last_failure
    for name in failed:
        last_failure = situation.failures.get(name, f"{name} did not upload a report; see {console_command(name)}")
    has_booted = state.phase == "running" and is_gang(situation, present & heard)
    has_booted |= state.phase == "probing" and bool(present & heard)
    return replace(
        state,
        boot_failures=0 if has_booted else state.boot_failures + len(failed),
        booting=tuple(name for name in state.booting if name in present and name not in heard),
        excused=tuple(sorted(excused & {item.instance_id for item in situation.fleet.instances})),
        last_failure="" if has_booted else last_failure,
    )


def _needs_dataset(situation: Situation, state: ControllerState) -> bool:
    """Return True if the next node to boot would fail without the dataset. A training gang already has a copy."""
    fleet = situation.fleet
    is_empty = fleet.desired == 0 and not fleet.instances
    return is_empty or state.phase in ("idle", "no_dataset") or state.boot_failures > 0


def _wait_for_dataset(situation: Situation, state: ControllerState) -> Decision:
    """Keep the fleet at zero nodes, which costs nothing, until the dataset exists."""
    folder, _, name = situation.missing_dataset.removesuffix("/dataset.json").rpartition("/")
    reason = (
        f"the dataset {situation.missing_dataset} does not exist. Remedy: {REMEDIES[Cause.DATASET_MISSING]}. Use "
        f"`python -m training tokenize` or `python -m training publish` with `--name {name} --output {folder}`"
    )
    return _rest(situation, replace(state, phase="no_dataset", reason=reason))


def _protect(situation: Situation, state: ControllerState) -> Decision:
    """Stop the fleet after boot failures. After each wait, one probe node tests whether nodes boot again."""
    settings, fleet, now = situation.settings, situation.fleet, situation.now_unix_seconds
    if state.phase == "probing" and state.boot_failures == settings.boot_failure_limit:
        since = _since(state, now) if fleet.instances else None
        if since is None or now - since < settings.boot_timeout_seconds:
            booting = tuple(sorted(set(fleet.present()) - situation.heard_from))
            actions = () if fleet.desired == 1 else (Resize(1),)
            return Decision(actions, replace(state, booting=booting, since_unix_seconds=since))
        names = " ".join(state.booting)
        failure = f"{names} sent no heartbeat in {now - since:.0f} s; see {console_command(names)}"
        state = replace(state, last_failure=failure)
    retry = state.retry_unix_seconds
    if state.phase != "protected":
        retry = now + PROBE_WAITS_SECONDS[state.probes] if state.probes < len(PROBE_WAITS_SECONDS) else None
    if retry is not None and now >= retry and fleet.desired == 0 and not fleet.instances:
        return _probe(situation, state)
    when = "no further probe" if retry is None else f"the next probe starts at {utc(retry)}"
    reason = (
        f"stopped: {settings.boot_failure_limit} nodes terminated before their first heartbeat, and {state.probes} "
        f"probes failed; {when}. A new run document, image or launch template starts the fleet at once, as does "
        f"`{settings.retry_command}`. Last failure: {state.last_failure}"
    )
    state = replace(state, phase="protected", boot_failures=settings.boot_failure_limit, reason=reason)
    decision = _rest(situation, state)
    return replace(decision, state=replace(decision.state, retry_unix_seconds=retry))


def _probe(situation: Situation, state: ControllerState) -> Decision:
    """Start one node. The phase ends with the node's first heartbeat, its termination, or the boot timeout."""
    number, chosen = state.probes + 1, zone_choice.first_subnets(situation, state)
    subnets = chosen.subnets
    state = replace(
        state,
        phase="probing",
        subnets=subnets,
        probes=number,
        retry_unix_seconds=None,
        since_unix_seconds=None,
        reason=f"probe {number} of {len(PROBE_WAITS_SECONDS)} tests whether nodes boot. "
        f"Last failure: {state.last_failure}",
    )
    return Decision((Resize(1, None if subnets == situation.fleet.subnets else subnets),), state)


def utc(unix_seconds: float) -> str:
    """Return a Unix time as a date and time in UTC, to the minute."""
    return datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def console_command(instance_id: str) -> str:
    """Return the command that prints an instance's console output. EC2 keeps it for an hour after termination."""
    return f"`aws ec2 get-console-output --latest --instance-id {instance_id}`"


def vanished(state: ControllerState, fleet: FleetState) -> tuple[str, ...]:
    """Return the instances that were booting at the last invocation but no longer exist."""
    present = fleet.present()
    return tuple(name for name in state.booting if name not in present)


def _rest(situation: Situation, state: ControllerState) -> Decision:
    """Scale the fleet to zero, or keep it at zero."""
    actions = () if situation.fleet.desired == 0 else (Resize(0),)
    quiet = replace(state, since_unix_seconds=None, retry_unix_seconds=None, booting=(), excused=())
    return Decision(actions, quiet)


def _stop(situation: Situation, state: ControllerState) -> Decision:
    """Keep the fleet at zero. A maintained fleet does not have a hook, so its nodes get time to save first."""
    fleet, now = situation.fleet, situation.now_unix_seconds
    since = _since(state, now) if state.phase == "stopped" else now
    left = f"; {len(fleet.instances)} nodes save and shut down" if fleet.instances else ""
    state = replace(state, phase="stopped", reason=f"{situation.stop}{left}")
    decision = _rest(situation, state)
    if fleet.surplus is None or not fleet.instances:
        return decision
    state = replace(decision.state, since_unix_seconds=since)
    if now - since >= STOP_SECONDS:
        return Decision((Resize(0),), state)
    return Decision((Surplus(0, 0),) if fleet.desired or fleet.surplus else (), state)


def _keep_gang(situation: Situation, run: Run, state: ControllerState) -> Decision:
    """Start the gang, replace lost instances, or abandon the attempt after the gang timeout."""
    fleet, now = situation.fleet, situation.now_unix_seconds
    target, bought = min(run.nodes, fleet.maximum), replacement.bought(state)
    if fleet.desired == 0 and not fleet.instances:
        chosen = zone_choice.first_subnets(situation, state, in_turn=bought >= target)
        return _start(situation, run, state, chosen)
    lost = replacement.lost_instances(situation, state)
    actions = replacement.replacements(fleet, lost, target)
    if _has_moved(situation, state):
        state = replace(state, phase="running", reason=f"moving the fleet back to {', '.join(state.subnets)}")
        return Decision((Resize(target, state.subnets, bought),), state)
    if state.outlook is not None and replacement.needs_mix(fleet, state.outlook):
        return replacement.mix(situation, state, state.outlook, actions, target)
    if move := moving.wanted(situation, run, state):
        return moving.leave(state, move, actions)
    if fleet.desired != target:
        # Nodes that leave because the gang shrinks are not boot failures, so instances are tracked from the next step
        # on.
        state = replace(state, phase="running", booting=(), since_unix_seconds=now, reason=f"resizing to {target}")
        return Decision((*actions, Resize(target, None, bought)), state)
    serving = set(fleet.in_service()) - set(lost)
    since = None if is_gang(situation, serving) else _since(state, now)
    if not fleet.instances and _placements(situation) == 1:
        # Nothing is billed, so keep requesting. The gang timeout starts with the gang's first instance.
        reason = "no nodes yet: still requesting"
        state = replace(state, phase="running", since_unix_seconds=now, booting=(), reason=reason)
        return Decision(actions, state)
    is_refused = since is not None and zone_choice.is_refused(situation, since)
    if since is not None and (is_refused or now - since >= situation.settings.gang_timeout_seconds):
        reason = f"fewer than {run.min_nodes} nodes for {now - since:.0f} s: abandoned attempt {state.attempt + 1}"
        state = replace(state, phase="giving_up", attempt=state.attempt + 1, since_unix_seconds=None, reason=reason)
        billed = state.had_instances or bool(fleet.instances)
        state = zone_choice.abandoned(situation, replace(state, booting=(), had_instances=billed))
        return Decision((*actions, Resize(0)), state)
    is_resized = any(isinstance(action, Resize) for action in actions)  # nodes that leave now are not boot failures
    booting = set() if is_resized else set(fleet.present()) - situation.heard_from - set(lost)
    reason = f"{len(serving)} of {run.nodes} nodes in service"
    state = replace(state, phase="running", since_unix_seconds=since, booting=tuple(sorted(booting)), reason=reason)
    return Decision(actions, state)


def _since(state: ControllerState, now_unix_seconds: float) -> float:
    return now_unix_seconds if state.since_unix_seconds is None else state.since_unix_seconds


def _placements(situation: Situation) -> int:
    """Return the number of placements that are tried in turn."""
    return len(situation.settings.subnets) if situation.settings.one_subnet_at_a_time else 1


def _finish_giving_up(situation: Situation, run: Run, state: ControllerState) -> Decision:
    """At zero nodes, try the next subnet. If the round cost money without training, wait first."""
    fleet, settings = situation.fleet, situation.settings
    if fleet.desired != 0:
        return Decision((Resize(0),), state)
    if fleet.instances:
        return Decision((), state)
    if state.moving_to in settings.subnets:
        return _start(situation, run, state, zone_choice.Chosen((state.moving_to,), reason=state.choice))
    placements = _placements(situation)
    if state.attempt % placements or not state.had_instances or replacement.bought(state):
        in_turn = replacement.bought(state) >= min(run.nodes, fleet.maximum)
        return _start(situation, run, state, zone_choice.next_subnets(situation, state, in_turn=in_turn))
    rounds = state.attempt // placements
    wait_seconds = min(settings.gang_timeout_seconds * 2 ** min(rounds - 1, 16), LONGEST_WAIT_SECONDS)
    retry = situation.now_unix_seconds + wait_seconds
    reason = f"no gang in {state.attempt} attempts: the next attempt starts at {utc(retry)}"
    return Decision((), replace(state, phase="waiting", retry_unix_seconds=retry, reason=reason))


def _wait(situation: Situation, run: Run, state: ControllerState) -> Decision:
    is_early = situation.now_unix_seconds < (state.retry_unix_seconds or 0.0) and not replacement.bought(state)
    if is_early or situation.fleet.instances:
        return Decision(() if situation.fleet.desired == 0 else (Resize(0),), state)
    in_turn = replacement.bought(state) >= min(run.nodes, situation.fleet.maximum)
    return _start(situation, run, state, zone_choice.next_subnets(situation, state, in_turn=in_turn))


def _start(situation: Situation, run: Run, state: ControllerState, chosen: zone_choice.Chosen) -> Decision:
    target, subnets, bought = min(run.nodes, situation.fleet.maximum), chosen.subnets, replacement.bought(state)
    started = state.started_unix_seconds
    if situation.settings.deadline is not None and started is None:
        started = situation.now_unix_seconds
    on_demand = "" if state.outlook is None or not bought else f", {bought} of them On-Demand: {state.outlook.reason}"
    state = replace(
        state,
        phase="running",
        subnets=subnets,
        since_unix_seconds=situation.now_unix_seconds,
        retry_unix_seconds=None,
        booting=(),
        choice=chosen.reason,
        started_unix_seconds=started,
        had_instances=state.had_instances and state.attempt % _placements(situation) != 0,
        placed_unix_seconds=situation.now_unix_seconds,
        moving_to="",
        reason=f"starting attempt {state.attempt + 1} with {target} nodes in {', '.join(subnets)}{on_demand}",
    )
    resize = Resize(target, None if subnets == situation.fleet.subnets else subnets, bought)
    return Decision((resize,), state, chosen.ranking)


def _has_moved(situation: Situation, state: ControllerState) -> bool:
    """Return True if a deploy has moved a maintained fleet's overrides to a subnet without the fleet's nodes."""
    fleet, settings = situation.fleet, situation.settings
    is_candidate = len(state.subnets) == 1 and state.subnets[0] in settings.subnets
    if state.outlook is not None and state.outlook.is_leaving:  # the request in other subnets is made with the mix
        return False
    return (
        settings.one_subnet_at_a_time and fleet.surplus is not None and is_candidate and fleet.subnets != state.subnets
    )
