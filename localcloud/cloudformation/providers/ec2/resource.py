"""Base class for EC2 resource types, which share their tagging operations."""

from __future__ import annotations

from typing import Any, ClassVar

from localcloud.cloudformation.providers.base.resource import Properties, Resource, ResourceApi
from localcloud.cloudformation.providers.base.tagging import tag_list


class Ec2Resource(Resource):
    """EC2 resource. `tag_kind` is its type in TagSpecifications, or None if it does not support tags."""

    service = "ec2"
    tag_kind: ClassVar[str | None] = None

    def creation_tags(self, api: ResourceApi, properties: Properties) -> dict[str, Any]:
        """Return the TagSpecifications for the create call."""
        tags = self.desired_tags(api.context, properties)
        if self.tag_kind is None or not tags:
            return {}
        return {"TagSpecifications": [{"ResourceType": self.tag_kind, "Tags": tag_list(tags)}]}

    def retag(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Set the desired tags and delete tags that are no longer in the template."""
        if self.tag_kind is None:
            return
        identity = self.tag_identity(api, physical_id, new)
        wanted = self.desired_tags(api.context, new)
        if wanted:
            api.call("create_tags", Resources=[identity], Tags=tag_list(wanted))
        dropped = set(self.template_tags(old)) - set(wanted)
        if dropped:
            api.call("delete_tags", Resources=[identity], Tags=[{"Key": key} for key in sorted(dropped)])
