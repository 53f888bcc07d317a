"""Rules for a run's deadline: its training time is known, and the run can finish in time."""

from __future__ import annotations

import math
from collections.abc import Iterator

from stacks.capacity.catalogue import Purchase, catalogue
from stacks.capacity.plan import is_spot
from stacks.capacity.training_time import TrainingTime, training_time
from stacks.config import DeploymentConfig
from stacks.errors import Problem
from stacks.functions.run_controller.deadlines.goals import RESTART_HOURS
from stacks.functions.run_controller.deadlines.planning import PERIOD_HOURS

PATH = "limits.deadline_hours"


def keys_have_an_effect(config: DeploymentConfig) -> Iterator[Problem]:
    """The other keys of a deadline require `deadline_hours`, and On-Demand nodes only replace spot instances."""
    limits = config.limits
    if limits.deadline_hours is None:
        for key in ("on_deadline_miss", "training_hours"):
            if key in limits.model_fields_set:
                rule = f"has no effect without {PATH}"
                yield Problem(f"limits.{key}", getattr(limits, key), rule, "set deadline_hours, or remove the key")
    elif limits.on_deadline_miss == "on_demand" and not is_spot(config):
        rule = f"requires spot instances, but capacity.market is {config.capacity.market}"
        yield Problem("limits.on_deadline_miss", limits.on_deadline_miss, rule, "set stop or continue")


def run_can_end_in_time(config: DeploymentConfig) -> Iterator[Problem]:
    """The training time is known, and fits within the time to the deadline and within the other limits."""
    limits = config.limits
    if limits.deadline_hours is None:
        return
    needed = training_time(config)
    if needed is None:
        rule = f"must be set: without it, the controller cannot assess {PATH} ({limits.deadline_hours:g})"
        remedy = "measure the time per step with `python -m training bench`, and multiply it by training.config.steps"
        yield Problem("limits.training_hours", None, rule, remedy)
        return
    yield from _impossible(config, limits.deadline_hours, needed)
    yield from _other_limits(config, needed)


def _impossible(config: DeploymentConfig, deadline_hours: float, needed: TrainingTime) -> Iterator[Problem]:
    certain = max(needed.hours if needed.is_stated else 0.0, needed.least_hours or 0.0)
    available = deadline_hours - RESTART_HOURS
    if certain > available:
        is_bound = not needed.is_stated or certain > needed.hours
        source = "at the GPUs' peak rate" if is_bound else needed.source
        yield Problem(PATH, deadline_hours, _too_long(config, certain, source), _remedy(config, certain, available))
    elif needed.hours > available:
        rule = _too_long(config, needed.hours, needed.source)
        remedy = f"{_remedy(config, needed.hours, available)}, or set limits.training_hours"
        yield Problem(PATH, deadline_hours, rule, remedy, "warning")
    elif config.limits.on_deadline_miss == "on_demand":
        slack = deadline_hours - needed.hours
        reserve = 2.0 * RESTART_HOURS + PERIOD_HOURS
        if slack < reserve:
            rule = (
                f"leaves {slack:.2f} h beyond {needed.hours:.1f} h of training ({needed.source}), less than two "
                f"restarts ({reserve:.2f} h), so the run starts on On-Demand Instances"
            )
            remedy = f"set at least {_up(needed.hours + reserve)}, or expect On-Demand prices"
            yield Problem(PATH, deadline_hours, rule, remedy, "warning")


def _too_long(config: DeploymentConfig, hours: float, source: str) -> str:
    nodes = config.capacity.nodes
    gang = f"{nodes} nodes" if nodes > 1 else "1 node"
    return (
        f"{hours:.1f} h of training on {gang} ({source}) and a boot of {RESTART_HOURS:g} h take longer, "
        "even without interruptions"
    )


def _remedy(config: DeploymentConfig, hours: float, available: float) -> str:
    """Return the remedies: the shortest possible deadline, and the smallest sufficient change to nodes or steps."""
    options = [f"set at least {_up(hours + RESTART_HOURS)}"]
    steps = config.training.config.steps
    if available > 0.0:
        factor, nodes = hours / available, config.capacity.nodes
        more = math.ceil(nodes * factor - 1e-9)
        options.append(
            f"use {math.ceil(factor * 10) / 10:g} times as many nodes ({more}), if the speed grows with their number"
        )
        if (fewer := int(steps / factor)) >= 1:
            options.append(f"train at most {fewer:,} of {steps:,} steps")
    return ", or ".join(options)


def _up(hours: float) -> str:
    return f"{math.ceil(hours * 10) / 10:g}"


def _other_limits(config: DeploymentConfig, needed: TrainingTime) -> Iterator[Problem]:
    limits, nodes = config.limits, config.capacity.nodes
    if limits.run_hours is not None and limits.run_hours < needed.hours:
        rule = f"stops the run before {needed.hours:.1f} h of training are complete ({needed.source})"
        yield Problem("limits.run_hours", limits.run_hours, rule, "raise it, or shorten the run", "warning")
    purchase: Purchase = "spot" if is_spot(config) else "on_demand"
    prices = [catalogue().usd_per_hour(config.region, name, purchase) for name in config.capacity.instance_types]
    known = [price for price in prices if price is not None]
    if limits.usd is not None and known and len(known) == len(prices):
        least = min(known) * nodes * needed.hours
        if limits.usd < least:
            rule = f"is less than the cost of {needed.hours:.1f} h on the cheapest type ({least:,.2f} USD)"
            yield Problem("limits.usd", limits.usd, rule, "raise it, or expect the run to stop early", "warning")


RULES = (keys_have_an_effect, run_can_end_in_time)
