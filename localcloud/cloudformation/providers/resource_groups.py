"""Resource Groups: groups of named resources, such as pools of capacity reservations."""

from __future__ import annotations

from typing import Any

from ..provider import ResourceFailure
from .resource import Create, Delete, Describe, Place, Properties, Resource, added_removed, changed, codes
from .tagging import TagCalls


class ResourceGroup(Resource):
    """AWS::ResourceGroups::Group; its id is its name."""

    type_name = "AWS::ResourceGroups::Group"
    service = "resource-groups"
    create_only = frozenset({"Name"})
    updatable = frozenset({"Description", "ResourceQuery", "Tags", "Configuration", "Resources"})
    afterwards = frozenset({"Resources"})
    undroppable = frozenset({"Configuration", "ResourceQuery"})
    defaults = {"Description": ""}
    creates = Create("create_group")
    describes = Describe("get_group", "GroupName", "Group")
    deletes = Delete("delete_group", "Group")
    gone = codes("NotFoundException")
    name_property = "Name"
    name_length = 128
    system_tags = False  # moto refuses keys with the aws: prefix for groups
    tag_calls = TagCalls("Arn", "tag", "untag", keys="Keys")

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Bring description, query, configuration and members to what is wanted."""
        if changed(old, new, "Description"):
            at.call("update_group", Group=physical_id, Description=new.get("Description"))
        if changed(old, new, "ResourceQuery"):
            at.call("update_group_query", Group=physical_id, ResourceQuery=new["ResourceQuery"])
        if changed(old, new, "Configuration"):
            at.call("put_group_configuration", Group=physical_id, Configuration=new["Configuration"])
        come, went = added_removed(old, new, "Resources")
        if went:
            at.call("ungroup_resources", Group=physical_id, ResourceArns=list(went))
        if come:
            answer = at.call("group_resources", Group=physical_id, ResourceArns=list(come))
            if answer["Failed"]:
                refused = "; ".join(f"{one['ResourceArn']}: {one['ErrorMessage']}" for one in answer["Failed"])
                raise ResourceFailure(f"{physical_id}: {refused}")

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ARN."""
        return {"Arn": found["GroupArn"]}

    def tag_identity(self, at: Place, physical_id: str, properties: Properties) -> str:
        """Return the ARN."""
        return at.arn("resource-groups", f"group/{physical_id}")


PROVIDERS = (ResourceGroup(),)
