"""AWS Budgets."""

from __future__ import annotations

from typing import Any

from ..provider import ResourceFailure
from .resource import Create, Place, Properties, Resource, changed, codes


class Budget(Resource):
    """AWS::Budgets::Budget; its id is its name."""

    type_name = "AWS::Budgets::Budget"
    service = "budgets"
    create_only = frozenset({"NotificationsWithSubscribers"})
    updatable = frozenset({"Budget", "ResourceTags"})
    creates = Create("create_budget")
    gone = codes("NotFoundException")

    def make(self, at: Place, properties: Properties) -> str:
        """Create the budget, under a generated name when it has none."""
        name = properties["Budget"].get("BudgetName") or at.context.generated_name(maximum_length=100)
        budget = {**properties["Budget"], "BudgetName": name}
        at.call("create_budget", **{**properties, "Budget": budget}, AccountId=at.context.account)
        return str(name)

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Change the budget; its name stays."""
        if changed(old, new, "ResourceTags"):
            arn = at.arn("budgets", f"budget/{physical_id}", region=False)
            at.call("tag_resource", ResourceARN=arn, ResourceTags=new.get("ResourceTags", []))
        if not changed(old, new, "Budget"):
            return
        if new["Budget"].get("BudgetName", physical_id) != physical_id:
            raise ResourceFailure(f"{self.type_name}: Budget.BudgetName cannot change in place")
        budget = {**new["Budget"], "BudgetName": physical_id}
        at.call("update_budget", AccountId=at.context.account, NewBudget=budget)

    def describe(self, at: Place, physical_id: str, properties: Properties) -> dict[str, Any] | None:
        """Read the budget."""
        found = at.call("describe_budget", AccountId=at.context.account, BudgetName=physical_id)
        return dict(found["Budget"])

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the id."""
        return {"Id": found["BudgetName"]}

    def remove(self, at: Place, physical_id: str, properties: Properties) -> None:
        """Delete the budget."""
        at.call("delete_budget", AccountId=at.context.account, BudgetName=physical_id)


PROVIDERS = (Budget(),)
