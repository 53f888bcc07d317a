"""AWS Budgets."""

from __future__ import annotations

from typing import Any

from localcloud.cloudformation.provider import ResourceFailure
from localcloud.cloudformation.providers.base.resource import (
    Create,
    Properties,
    Resource,
    ResourceApi,
    changed,
    error_codes,
)


class Budget(Resource):
    """AWS::Budgets::Budget. The physical ID is the name."""

    type_name = "AWS::Budgets::Budget"
    service = "budgets"
    create_only = frozenset({"NotificationsWithSubscribers"})
    updatable = frozenset({"Budget", "ResourceTags"})
    create_call = Create("create_budget")
    not_found_codes = error_codes("NotFoundException")

    def call_create(self, api: ResourceApi, properties: Properties) -> str:
        """Create the budget. If the template does not set a name, generate one."""
        name = properties["Budget"].get("BudgetName") or api.context.generated_name(maximum_length=100)
        budget = {**properties["Budget"], "BudgetName": name}
        api.call("create_budget", **{**properties, "Budget": budget}, AccountId=api.context.account)
        return str(name)

    def configure(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Update the budget. Its name cannot change."""
        if changed(old, new, "ResourceTags"):
            arn = api.arn("budgets", f"budget/{physical_id}", region=False)
            api.call("tag_resource", ResourceARN=arn, ResourceTags=new.get("ResourceTags", []))
        if not changed(old, new, "Budget"):
            return
        if new["Budget"].get("BudgetName", physical_id) != physical_id:
            raise ResourceFailure(f"{self.type_name}: Budget.BudgetName cannot change in place")
        budget = {**new["Budget"], "BudgetName": physical_id}
        api.call("update_budget", AccountId=api.context.account, NewBudget=budget)

    def describe(self, api: ResourceApi, physical_id: str, properties: Properties) -> dict[str, Any] | None:
        """Return the budget."""
        found = api.call("describe_budget", AccountId=api.context.account, BudgetName=physical_id)
        return dict(found["Budget"])

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ID."""
        return {"Id": found["BudgetName"]}

    def call_delete(self, api: ResourceApi, physical_id: str, properties: Properties) -> None:
        """Delete the budget."""
        api.call("delete_budget", AccountId=api.context.account, BudgetName=physical_id)


PROVIDERS = (Budget(),)
