"""Determines why a run is not training, from the situation and the controller's new state.

This module imports only the standard library because it is part of the run controller's Lambda asset.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from .causes import Cause, first_to_remove
from .situation import ControllerState, Situation


def cause_of(situation: Situation, state: ControllerState) -> tuple[Cause | Literal[""], str]:
    """Return the cause for which a run is not training and the message that reports it, or two empty strings.

    The message is empty if the phase has its own reason.
    """
    if state.phase == "idle" or (state.phase == "giving_up" and state.moving_to):
        return "", ""
    if state.phase == "ended" and situation.outcome is not None:
        if situation.outcome.outcome == "finished":
            return Cause.FINISHED, ""
        is_wrong = situation.outcome.outcome == "bad_configuration"
        return (Cause.CONFIGURATION if is_wrong else Cause.TRAINING_FAILED), situation.outcome.message
    if state.phase == "stopped":
        return Cause.STOPPED, ""
    if state.phase == "no_dataset":
        return Cause.DATASET_MISSING, ""
    if state.phase == "limited":
        return Cause.SPEND_LIMIT, ""
    if state.phase in ("protected", "probing"):
        return Cause.BOOT_FAILURE, ""
    if state.boot_failures:
        return Cause.BOOT_FAILURE, state.last_failure
    if is_gang(situation, situation.fleet.in_service()):
        return "", ""
    reported = first_to_remove(failure.message for failure in situation.launch_failures)
    if reported is not None:
        return reported
    if not situation.fleet.instances and state.problem:  # the fleet's history restarts with each attempt
        return state.cause, state.problem
    return (Cause.GANG_INCOMPLETE if situation.fleet.instances else Cause.UNKNOWN), ""


def is_gang(situation: Situation, instances: Iterable[str]) -> bool:
    """Return True if there are enough instances to train."""
    return situation.run is not None and len(set(instances)) >= situation.run.min_nodes
