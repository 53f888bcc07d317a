"""The `limits` section: the cost and the duration at which a run is saved and stopped."""

from __future__ import annotations

from stacks.config.setting import Section, setting


class LimitsConfig(Section):
    """Limits for a run. The run controller checks them every minute against the instance ledger."""

    usd: float | None = setting(
        "Maximum cost of the run's instances, USD, at which the controller saves and stops the run; `null`: no limit. "
        "Volumes and other resources are not included. A run exceeds the limit by at most one minute and its last "
        "save. To resume the run, raise the limit and deploy again.",
        edit="in place",
        default=None,
        gt=0,
    )
    run_hours: float | None = setting(
        "Hours with running instances after which the controller saves and stops the run; `null`: no limit.",
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
