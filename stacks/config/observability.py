"""The `observability` and `budget` sections: what is watched, who hears of it, and what it may cost."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stacks.config.setting import EmailAddress, Section, setting


class AlarmsConfig(Section):
    """When somebody is told; each alarm goes to the deployment's topic."""

    heartbeat_missing_minutes: int = setting(
        "Minutes without progress of a run that has nodes.", edit="in place", default=15, ge=1, le=1440
    )
    gpu_utilization_below_percent: int = setting(
        "GPU use below which running nodes count as idle, %; 0: no such alarm.",
        edit="in place",
        default=10,
        ge=0,
        le=100,
    )
    gpu_idle_minutes: int = setting(
        "Minutes of that before somebody is told.", edit="in place", default=30, ge=5, le=1440
    )
    boot_failures: int = setting("Failed boots in an hour.", edit="in place", default=2, ge=1, le=1000)
    interruptions_per_hour: int = setting(
        "Spot interruptions in an hour: the pools are running dry.", edit="in place", default=6, ge=1, le=10000
    )


class ObservabilityConfig(Section):
    """Logs, dashboard, alarms."""

    log_retention_days: Literal[1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365] = setting(
        "Days that logs are kept; a month, to look back at a run that ended badly.", edit="in place", default=30
    )
    dashboard: bool = setting("Whether to make a CloudWatch dashboard (3 USD a month).", edit="in place", default=True)
    emails: list[EmailAddress] = setting(
        "Who hears of alarms; each address confirms by a link that AWS sends.",
        edit="in place",
        default=[],
        max_length=10,
    )
    alarms: AlarmsConfig = AlarmsConfig()


class BudgetConfig(Section):
    """What a month may cost (AWS Budgets; its figures lag by hours)."""

    monthly_usd: float | None = setting(
        "USD a month for what carries this deployment's tag; null: no budget. The cost allocation tag "
        "`trainstack:deployment` must be activated in the billing console.",
        edit="in place",
        default=None,
        gt=0,
    )
    warn_at_percent: list[Annotated[int, Field(ge=1, le=1000)]] = setting(
        "Shares of it at which the topic hears, %.", edit="in place", default=[50, 80, 100], min_length=1, max_length=5
    )
