"""What EC2's resource types share: tag specifications on creation, CreateTags and DeleteTags afterwards."""

from __future__ import annotations

from typing import Any, ClassVar

from .resource import Place, Properties, Resource
from .tagging import key_values


class Ec2Resource(Resource):
    """A resource of EC2; `tag_kind` is its name in TagSpecifications, None when it takes no tags."""

    service = "ec2"
    tag_kind: ClassVar[str | None] = None

    def creation_tags(self, at: Place, properties: Properties) -> dict[str, Any]:
        """Return TagSpecifications."""
        tags = self.wanted_tags(at.context, properties)
        if self.tag_kind is None or not tags:
            return {}
        return {"TagSpecifications": [{"ResourceType": self.tag_kind, "Tags": key_values(tags)}]}

    def retag(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Bring the tags to what is wanted."""
        if self.tag_kind is None:
            return
        identity = self.tag_identity(at, physical_id, new)
        wanted = self.wanted_tags(at.context, new)
        if wanted:
            at.call("create_tags", Resources=[identity], Tags=key_values(wanted))
        dropped = set(self.own_tags(old)) - set(wanted)
        if dropped:
            at.call("delete_tags", Resources=[identity], Tags=[{"Key": key} for key in sorted(dropped)])
