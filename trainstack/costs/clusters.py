"""The costs of a deployment with a managed cluster: estimates from its templates. No ledger records its nodes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from stacks.changes.effects.costs import Costs, costs
from stacks.functions.zombie_watch.stack_names import CLUSTER_STACKS, StackName
from trainstack.account import Clients
from trainstack.costs.cost import ESTIMATE_SOURCE, SHARED_STACKS, Estimate, read_templates

SOURCE = f"templates at {ESTIMATE_SOURCE}"


@dataclass(frozen=True)
class ClusterCosts:
    """The costs of a deployment, without those that `found.unknown` names."""

    stack: StackName
    found: Costs

    def estimates(self) -> list[Estimate]:
        """Return the monthly prices of the resources other than the nodes."""
        return [Estimate(label, usd, SOURCE) for label, usd in sorted(self.found.fixed.items())]

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        hourly = self.found.training_per_hour
        return {
            "name": self.stack.deployment,
            "stack": str(self.stack),
            "nodes": self.found.fleet,
            "usd_per_hour": None if hourly is None else asdict(hourly),
            "estimates": [asdict(each) for each in self.estimates()],
            "not_included": self.found.unknown,
        }

    def lines(self) -> list[str]:
        """Return lines for a terminal."""
        hourly = self.found.training_per_hour
        price = "unknown" if hourly is None else f"{hourly.low:,.2f} to {hourly.high:,.2f} USD per hour while all run"
        return [
            f"{self.stack}: no ledger records the nodes",
            f"  {self.found.fleet}: {price}",
            "other resources, estimated per month",
            *(f"  {label}: {usd:,.2f} USD ({SOURCE})" for label, usd in sorted(self.found.fixed.items())),
            f"not included: {self.found.unknown}",
        ]


def cluster_costs(client: Clients, deployment: str, region: str) -> ClusterCosts | None:
    """Return the costs of a deployment with a managed cluster, or None if there is none with this name.

    Raises:
        botocore.exceptions.ClientError: AWS rejected a call.
    """
    names = [StackName(deployment, kind) for kind in CLUSTER_STACKS]
    clusters = read_templates(client, names, region)
    if not clusters:
        return None
    shared = read_templates(client, [StackName(deployment, kind) for kind in SHARED_STACKS], region)
    found = costs({**shared, **clusters})
    assert found is not None, "there are templates"
    return ClusterCosts(StackName.of(deployment, next(iter(clusters))), found)
