"""Rules for alarms, addresses, the budget and the limits of a run."""

from __future__ import annotations

from collections.abc import Iterator

from stacks.capacity.catalogue import Purchase, catalogue
from stacks.config import DeploymentConfig
from stacks.errors import Problem

HOURS_PER_MONTH = 730


def emails(config: DeploymentConfig) -> Iterator[Problem]:
    """Each address is listed once, and a budget has a recipient."""
    listed = config.observability.emails
    for index, address in enumerate(listed):
        if address.lower() in [one.lower() for one in listed[:index]]:
            yield Problem(f"observability.emails.{index}", address, "is listed twice", "keep one")
    if not listed and config.budget.monthly_usd is not None:
        rule = "is empty, so no one receives budget notifications"
        yield Problem("observability.emails", [], rule, "add an address, or subscribe to the topic", "warning")


def alarms(config: DeploymentConfig) -> Iterator[Problem]:
    """The alarm for a stalled run allows enough time for an instance to boot."""
    minutes = config.observability.alarms.heartbeat_missing_minutes
    if minutes * 60 < config.node.boot_timeout_seconds:
        rule = f"is shorter than the longest boot (node.boot_timeout_seconds {config.node.boot_timeout_seconds})"
        path = "observability.alarms.heartbeat_missing_minutes"
        yield Problem(path, minutes, rule, "raise it, or expect an alarm at each start", "warning")


def budget(config: DeploymentConfig) -> Iterator[Problem]:
    """Thresholds increase and require a budget, and the budget covers the configured nodes for a month."""
    money = config.budget
    if money.warn_at_percent != sorted(set(money.warn_at_percent)):
        yield Problem("budget.warn_at_percent", money.warn_at_percent, "must be strictly increasing", "sort the values")
    if money.monthly_usd is None:
        if "warn_at_percent" in money.model_fields_set:
            rule = "has no effect without budget.monthly_usd"
            yield Problem("budget.warn_at_percent", money.warn_at_percent, rule, "set monthly_usd, or remove the key")
        return
    purchase: Purchase = "spot" if config.capacity.market == "spot" else "on_demand"
    prices = [catalogue().usd_per_hour(config.region, name, purchase) for name in config.capacity.instance_types]
    known = [price for price in prices if price is not None]
    if known and money.monthly_usd < min(known) * config.capacity.nodes * HOURS_PER_MONTH:
        hours = money.monthly_usd / (min(known) * config.capacity.nodes)
        nodes = "1 node" if config.capacity.nodes == 1 else f"{config.capacity.nodes} nodes"
        rule = f"covers {nodes} for only {hours:.0f} hours at the price of the cheapest type"
        remedy = "raise it, unless the run is shorter"
        yield Problem("budget.monthly_usd", money.monthly_usd, rule, remedy, "warning")


def limits(config: DeploymentConfig) -> Iterator[Problem]:
    """A spending limit requires the price of each instance type, and covers more than the first boot."""
    allowed = config.limits
    if allowed.usd is None:
        if "warn_at_percent" in allowed.model_fields_set:
            rule = "has no effect without limits.usd"
            yield Problem("limits.warn_at_percent", allowed.warn_at_percent, rule, "set usd, or remove the key")
        return
    types = config.capacity.instance_types
    prices = {name: catalogue().usd_per_hour(config.region, name, "on_demand") for name in types}
    unknown = [name for name, price in prices.items() if price is None]
    if unknown:
        rule = f"cannot be enforced: the catalogue has no On-Demand price for {', '.join(unknown)} in {config.region}"
        remedy = f"run `python -m stacks catalogue refresh --regions {config.region}`, or remove those types"
        yield Problem("limits.usd", allowed.usd, rule, remedy)
        return
    hourly = max((price for price in prices.values() if price is not None), default=0.0) * config.capacity.nodes
    if allowed.usd < hourly * config.node.boot_timeout_seconds / 3600:
        rule = f"is less than the cost of one boot of all nodes at On-Demand prices ({hourly:,.2f} USD per hour)"
        yield Problem("limits.usd", allowed.usd, rule, "raise it, or expect the run to stop before training", "warning")


RULES = (emails, alarms, budget, limits)
