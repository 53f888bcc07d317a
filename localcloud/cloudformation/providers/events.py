"""EventBridge: rules and their targets."""

from __future__ import annotations

from typing import Any

from localcloud.cloudformation.provider import ResourceFailure
from localcloud.cloudformation.providers.base.resource import (
    Create,
    Properties,
    PutResource,
    ResourceApi,
    changed,
    error_codes,
)
from localcloud.cloudformation.providers.base.tagging import TagCalls


class Rule(PutResource):
    """AWS::Events::Rule. The physical ID is the name, prefixed with `<bus>|` on a custom bus."""

    type_name = "AWS::Events::Rule"
    service = "events"
    create_only = frozenset({"Name", "EventBusName"})
    updatable = frozenset({"Description", "EventPattern", "ScheduleExpression", "RoleArn", "State", "Targets", "Tags"})
    set_after_create = frozenset({"Targets"})
    create_call = Create("put_rule")
    not_found_codes = error_codes("ResourceNotFoundException")
    name_property = "Name"
    tag_calls = TagCalls(identity="ResourceARN")

    def name_of(self, physical_id: str) -> str:
        """Return the name without the bus."""
        return physical_id.rsplit("|", 1)[-1]

    def prospective_id(self, api: ResourceApi, properties: Properties) -> str:
        """Return the name, prefixed with the bus unless it is the default bus."""
        bus = properties.get("EventBusName")
        return str(properties["Name"]) if bus in {None, "default"} else f"{bus}|{properties['Name']}"

    def arguments(self, api: ResourceApi, properties: Properties) -> dict[str, Any]:
        """Return the rule without its targets."""
        return {name: value for name, value in super().arguments(api, properties).items() if name != "Targets"}

    def call_create(self, api: ResourceApi, properties: Properties) -> str:
        """Put the rule."""
        super().call_create(api, properties)
        return self.prospective_id(api, properties)

    def configure(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Put the rule and the targets that differ, and remove targets that are no longer in the template."""
        if changed(old, new, *(self.updatable - {"Targets", "Tags"})):
            api.call("put_rule", **self.arguments(api, new))
        where = {"Rule": self.name_of(physical_id), "EventBusName": new.get("EventBusName")}
        before, after = ({item["Id"]: item for item in side.get("Targets") or []} for side in (old, new))
        removed = sorted(set(before) - set(after))
        if removed:
            _raise_failed(api.call("remove_targets", **where, Ids=removed))
        added = [target for key, target in after.items() if before.get(key) != target]
        if added:
            _raise_failed(api.call("put_targets", **where, Targets=added))

    def describe(self, api: ResourceApi, physical_id: str, properties: Properties) -> dict[str, Any] | None:
        """Return the rule."""
        where = {"EventBusName": properties.get("EventBusName")}
        return api.call("describe_rule", Name=self.name_of(physical_id), **where)

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ARN and the name."""
        return {"Arn": found["Arn"], "RuleName": found["Name"]}

    def tag_identity(self, api: ResourceApi, physical_id: str, properties: Properties) -> str:
        """Return the ARN."""
        return str((self.find(api, physical_id, properties) or {})["Arn"])

    def call_delete(self, api: ResourceApi, physical_id: str, properties: Properties) -> None:
        """Remove all targets, including those added outside the stack, and delete the rule."""
        bus, name = properties.get("EventBusName"), self.name_of(physical_id)
        if self.find(api, physical_id, properties) is None:
            return
        targets = api.call("list_targets_by_rule", Rule=name, EventBusName=bus)["Targets"]
        if targets:
            ids = [target["Id"] for target in targets]
            _raise_failed(api.call("remove_targets", Rule=name, EventBusName=bus, Ids=ids))
        api.call("delete_rule", Name=name, EventBusName=bus)


def _raise_failed(response: dict[str, Any]) -> None:
    failed = response.get("FailedEntries", [])
    if failed:
        raise ResourceFailure("; ".join(f"target {item['TargetId']}: {item['ErrorMessage']}" for item in failed))


PROVIDERS = (Rule(),)
