"""The `limits` section: what a run may cost and how long it may take before it is saved and stopped."""

from __future__ import annotations

from stacks.config.setting import Section, setting


class LimitsConfig(Section):
    """Limits of a run. The run controller checks them every minute against the ledger of the instances."""

    usd: float | None = setting(
        "USD that the run's instances may cost before the controller saves and stops the run; `null`: no limit. "
        "Volumes and other resources do not count. A run exceeds the limit by at most one minute and its last save. "
        "After raising it, deploy again: the run resumes.",
        edit="in place",
        default=None,
        gt=0,
    )
    run_hours: float | None = setting(
        "Maximum hours with instances, after which the controller saves and stops the run; `null`: no limit.",
        edit="in place",
        default=None,
        gt=0,
    )
    warn_at_percent: int = setting(
        "Percentage of `usd` at which an alarm notifies the deployment's topic.",
        edit="in place",
        default=80,
        ge=1,
        le=100,
    )
