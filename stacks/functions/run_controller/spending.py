"""The cost of a run, and the limits at which the controller saves and stops it.

This module imports only the standard library because it is part of the run controller's Lambda asset.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Spending:
    """The cost of a run's instances so far, in USD, from the ledger.

    Attributes:
        on_demand_usd: The cost at On-Demand prices.
        usd_per_hour: The current hourly cost of the deployment's instances.
        run_hours: Time for which the run had at least one instance.
        unpriced_hours: Instance-hours without a known price, which `usd` does not include.
        limit_usd: The run's limit, for display; 0: no limit.
        limit_run_hours: The run's limit, for display; 0: no limit.
    """

    usd: float
    on_demand_usd: float
    usd_per_hour: float
    run_hours: float
    unpriced_hours: float = 0.0
    limit_usd: float = 0.0
    limit_run_hours: float = 0.0


@dataclass(frozen=True)
class Limits:
    """The limits of a run. None: no limit."""

    usd: float | None = None
    run_hours: float | None = None

    def reached(self, spent: Spending | None) -> str:
        """Return the limit that the run has reached, as a reason to stop the run, or an empty string.

        Args:
            spent: The costs so far. None if they have never been read: no limit applies.
        """
        if spent is None:
            return ""
        if self.usd is not None and spent.usd >= self.usd:
            return f"the run's instances have cost {spent.usd:.2f} USD, and limits.usd is {self.usd:g}"
        if self.run_hours is not None and spent.run_hours >= self.run_hours:
            return f"the run has had instances for {spent.run_hours:.2f} h, and limits.run_hours is {self.run_hours:g}"
        return ""
