"""Systems Manager: parameters."""

from __future__ import annotations

from typing import Any

from ..provider import ResourceContext, ResourceFailure
from .resource import Create, Delete, Describe, Place, Properties, Resource, changed, codes
from .tagging import TagCalls


class Parameter(Resource):
    """AWS::SSM::Parameter; its id is its name."""

    type_name = "AWS::SSM::Parameter"
    service = "ssm"
    create_only = frozenset({"Name"})
    updatable = frozenset({"Type", "Value", "Description", "AllowedPattern", "Tier", "DataType", "Policies", "Tags"})
    defaults = {"Description": "", "AllowedPattern": ""}
    creates = Create("put_parameter")
    describes = Describe("get_parameter", "Name", "Parameter")
    deletes = Delete("delete_parameter", "Name")
    gone = codes("ParameterNotFound")
    name_property = "Name"
    name_length = 512
    tag_calls = TagCalls(
        identity="ResourceId",
        add="add_tags_to_resource",
        remove="remove_tags_from_resource",
        fixed={"ResourceType": "Parameter"},
    )

    def arguments(self, at: Place, properties: Properties) -> dict[str, Any]:
        """Return the parameter; secrets do not belong in templates, and CloudFormation refuses them too."""
        if properties["Type"] == "SecureString":
            raise ResourceFailure(
                f"{self.type_name}: Type: CloudFormation makes no SecureString; use String or StringList"
            )
        return super().arguments(at, properties)

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Put a new version; an advanced parameter stays one.

        Source: docs.aws.amazon.com/systems-manager/latest/userguide/parameter-store-advanced-parameters.html (2026-11).
        """
        if old.get("Tier") == "Advanced" and new.get("Tier", "Standard") == "Standard":
            raise ResourceFailure(
                f"{physical_id} uses the advanced-parameter tier. You can't downgrade a parameter from the "
                "advanced-parameter tier to the standard-parameter tier."
            )
        if changed(old, new, *(self.updatable - {"Tags"})):
            at.call("put_parameter", **self.arguments(at, new), Overwrite=True)

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return what the parameter is; Type and Value are documented for Fn::GetAtt beside the schema's Arn."""
        name = str(found["Name"])
        arn = at.arn("ssm", f"parameter/{name.removeprefix('/')}")
        return {"Arn": arn, "Type": found["Type"], "Value": found["Value"]}

    def actual(
        self, context: ResourceContext, physical_id: str, properties: Properties, known_ids: frozenset[str]
    ) -> Properties:
        """Return type and value."""
        found = self.place(context).call("get_parameter", Name=physical_id)["Parameter"]
        return {"Type": found["Type"], "Value": found["Value"]}


PROVIDERS = (Parameter(),)
