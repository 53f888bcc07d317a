"""The `observability` and `budget` sections: logs, dashboard, alarms, and a monthly budget."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stacks.config.setting import EmailAddress, Section, setting


class AlarmsConfig(Section):
    """Alarm thresholds. Each alarm notifies the deployment's topic."""

    heartbeat_missing_minutes: int = setting(
        "Minutes without progress, while the run has nodes, that trigger the alarm.",
        edit="in place",
        default=15,
        ge=1,
        le=1440,
    )
    gpu_utilization_below_percent: int = setting(
        "GPU utilization, %, below which a running node is considered idle; `0`: no alarm.",
        edit="in place",
        default=10,
        ge=0,
        le=100,
    )
    gpu_idle_minutes: int = setting(
        "Minutes of idleness that trigger the alarm.", edit="in place", default=30, ge=5, le=1440
    )
    too_few_nodes_minutes: int = setting(
        "Minutes with too few nodes, from the same cause, that trigger the cause's alarm; a multiple of 5.",
        edit="in place",
        default=30,
        ge=5,
        le=1440,
        multiple_of=5,
    )
    boot_failures: int = setting(
        "Failed boots per hour that trigger the alarm.", edit="in place", default=2, ge=1, le=1000
    )
    usd_per_hour: float | None = setting(
        "Hourly cost of the instances, USD, that triggers the alarm after 15 minutes; `null`: no alarm.",
        edit="in place",
        default=None,
        gt=0,
    )
    interruptions_per_hour: int = setting(
        "Spot interruptions per hour that trigger the alarm; many interruptions indicate scarce capacity.",
        edit="in place",
        default=6,
        ge=1,
        le=10000,
    )


class ObservabilityConfig(Section):
    """Logs, dashboard and alarms."""

    log_retention_days: Literal[1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365] = setting(
        "Days to keep logs. A month leaves enough time to investigate a failed run.", edit="in place", default=30
    )
    dashboard: bool = setting("Create a CloudWatch dashboard (3 USD per month).", edit="in place", default=True)
    daily_zombie_search: bool = setting(
        "Search once a day for billed resources of deployments without a run, and raise an alarm; nothing is deleted. "
        "`trainstack zombies` performs the same search.",
        edit="in place",
        default=True,
    )
    emails: list[EmailAddress] = setting(
        "E-mail addresses that receive alarms; each recipient must confirm through a link from AWS.",
        edit="in place",
        default=[],
        max_length=10,
    )
    alarms: AlarmsConfig = AlarmsConfig()


class BudgetConfig(Section):
    """Monthly budget in AWS Budgets, whose figures can be several hours old."""

    monthly_usd: float | None = setting(
        "Monthly budget for resources with this deployment's tag, USD; `null`: no budget. Activate the cost "
        "allocation tag `trainstack:deployment` in the billing console.",
        edit="in place",
        default=None,
        gt=0,
    )
    warn_at_percent: list[Annotated[int, Field(ge=1, le=1000)]] = setting(
        "Percentages of the budget at which AWS sends a notification.",
        edit="in place",
        default=[50, 80, 100],
        min_length=1,
        max_length=5,
    )
