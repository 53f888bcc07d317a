"""EventBridge: rules with their targets, and the Scheduler's schedules."""

from __future__ import annotations

from typing import Any

from ..provider import ResourceFailure
from .resource import Create, Place, Properties, PutResource, Resource, changed, codes
from .tagging import TagCalls


class Rule(PutResource):
    """AWS::Events::Rule; its id is the name, after `<bus>|` when it is not on the default bus."""

    type_name = "AWS::Events::Rule"
    service = "events"
    create_only = frozenset({"Name", "EventBusName"})
    updatable = frozenset({"Description", "EventPattern", "ScheduleExpression", "RoleArn", "State", "Targets", "Tags"})
    afterwards = frozenset({"Targets"})
    creates = Create("put_rule")
    gone = codes("ResourceNotFoundException")
    name_property = "Name"
    tag_calls = TagCalls(identity="ResourceARN")

    def name_of(self, physical_id: str) -> str:
        """Return the name without its bus."""
        return physical_id.rsplit("|", 1)[-1]

    def prospective_id(self, at: Place, properties: Properties) -> str:
        """Return bus and name."""
        bus = properties.get("EventBusName")
        return str(properties["Name"]) if bus in {None, "default"} else f"{bus}|{properties['Name']}"

    def arguments(self, at: Place, properties: Properties) -> dict[str, Any]:
        """Return the rule without its targets."""
        return {name: value for name, value in super().arguments(at, properties).items() if name != "Targets"}

    def make(self, at: Place, properties: Properties) -> str:
        """Put the rule."""
        super().make(at, properties)
        return self.prospective_id(at, properties)

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Put the rule again when it differs; put the targets that differ, remove those that went."""
        if changed(old, new, *(self.updatable - {"Targets", "Tags"})):
            at.call("put_rule", **self.arguments(at, new))
        where = {"Rule": self.name_of(physical_id), "EventBusName": new.get("EventBusName")}
        before, after = ({item["Id"]: item for item in side.get("Targets") or []} for side in (old, new))
        gone = sorted(set(before) - set(after))
        if gone:
            _refuse_failed(at.call("remove_targets", **where, Ids=gone))
        come = [target for key, target in after.items() if before.get(key) != target]
        if come:
            _refuse_failed(at.call("put_targets", **where, Targets=come))

    def describe(self, at: Place, physical_id: str, properties: Properties) -> dict[str, Any] | None:
        """Read the rule."""
        where = {"EventBusName": properties.get("EventBusName")}
        return at.call("describe_rule", Name=self.name_of(physical_id), **where)

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return ARN and name."""
        return {"Arn": found["Arn"], "RuleName": found["Name"]}

    def tag_identity(self, at: Place, physical_id: str, properties: Properties) -> str:
        """Return the ARN."""
        return str((self.found(at, physical_id, properties) or {})["Arn"])

    def remove(self, at: Place, physical_id: str, properties: Properties) -> None:
        """Remove all targets, also those that others put there, then the rule."""
        bus, name = properties.get("EventBusName"), self.name_of(physical_id)
        if self.found(at, physical_id, properties) is None:
            return
        targets = at.call("list_targets_by_rule", Rule=name, EventBusName=bus)["Targets"]
        if targets:
            ids = [target["Id"] for target in targets]
            _refuse_failed(at.call("remove_targets", Rule=name, EventBusName=bus, Ids=ids))
        at.call("delete_rule", Name=name, EventBusName=bus)


def _refuse_failed(response: dict[str, Any]) -> None:
    failed = response.get("FailedEntries", [])
    if failed:
        raise ResourceFailure("; ".join(f"target {item['TargetId']}: {item['ErrorMessage']}" for item in failed))


class Schedule(Resource):
    """AWS::Scheduler::Schedule."""

    type_name = "AWS::Scheduler::Schedule"
    service = "scheduler"
    create_only = frozenset({"Name"})
    updatable = frozenset(
        {"Description", "EndDate", "FlexibleTimeWindow", "KmsKeyArn", "ScheduleExpression", "StartDate", "State"}
        | {"ScheduleExpressionTimezone", "Target", "GroupName"}
    )
    undroppable = frozenset({"GroupName"})
    creates = Create("create_schedule")
    gone = codes("ResourceNotFoundException")
    name_property = "Name"

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Put the whole schedule again; its group cannot change."""
        if changed(old, new, "GroupName"):
            raise ResourceFailure(f"{self.type_name}: GroupName cannot change; make a schedule of another name")
        if changed(old, new, *self.updatable):
            at.call("update_schedule", **self.arguments(at, new))

    def describe(self, at: Place, physical_id: str, properties: Properties) -> dict[str, Any] | None:
        """Read the schedule."""
        return at.call("get_schedule", Name=physical_id, GroupName=properties.get("GroupName"))

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ARN."""
        return {"Arn": found["Arn"]}

    def remove(self, at: Place, physical_id: str, properties: Properties) -> None:
        """Delete the schedule."""
        at.call("delete_schedule", Name=physical_id, GroupName=properties.get("GroupName"))


PROVIDERS = (Rule(), Schedule())
