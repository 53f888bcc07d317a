"""Rules of alarms, addresses and budget."""

from __future__ import annotations

from collections.abc import Iterator

from stacks.config import DeploymentConfig
from stacks.errors import Problem
from stacks.instance_types import Purchase, catalogue

HOURS_A_MONTH = 730


def emails(config: DeploymentConfig) -> Iterator[Problem]:
    """Somebody should hear of alarms, once."""
    listed = config.observability.emails
    for index, address in enumerate(listed):
        if address.lower() in [one.lower() for one in listed[:index]]:
            yield Problem(f"observability.emails.{index}", address, "stands twice", "keep one")
    if not listed and config.budget.monthly_usd is not None:
        rule = "names nobody, so nobody hears of the budget"
        yield Problem("observability.emails", [], rule, "name an address, or subscribe to the topic", "warning")


def alarms(config: DeploymentConfig) -> Iterator[Problem]:
    """A machine that still boots must not look like a run that hangs."""
    minutes = config.observability.alarms.heartbeat_missing_minutes
    if minutes * 60 < config.node.boot_timeout_seconds:
        rule = f"is shorter than a boot may take (node.boot_timeout_seconds {config.node.boot_timeout_seconds})"
        path = "observability.alarms.heartbeat_missing_minutes"
        yield Problem(path, minutes, rule, "raise it, or expect alarms at each start", "warning")


def budget(config: DeploymentConfig) -> Iterator[Problem]:
    """Thresholds rise, belong to a budget, and the budget lasts for what is planned."""
    money = config.budget
    if money.warn_at_percent != sorted(set(money.warn_at_percent)):
        yield Problem("budget.warn_at_percent", money.warn_at_percent, "must rise, each once", "sort them")
    if money.monthly_usd is None:
        if "warn_at_percent" in money.model_fields_set:
            rule = "has no effect without budget.monthly_usd"
            yield Problem("budget.warn_at_percent", money.warn_at_percent, rule, "give monthly_usd, or drop it")
        return
    way: Purchase = "spot" if config.capacity.market == "spot" else "on_demand"
    prices = [catalogue().usd_per_hour(config.region, name, way) for name in config.capacity.instance_types]
    known = [price for price in prices if price is not None]
    if known and money.monthly_usd < min(known) * config.capacity.nodes * HOURS_A_MONTH:
        hours = money.monthly_usd / (min(known) * config.capacity.nodes)
        rule = f"is spent after {hours:.0f} hours of {config.capacity.nodes} nodes at the cheapest type's price"
        yield Problem("budget.monthly_usd", money.monthly_usd, rule, "fine for a shorter run; else raise it", "warning")


RULES = (emails, alarms, budget)
