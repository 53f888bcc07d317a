"""Systems Manager parameters."""

from __future__ import annotations

from typing import Any

from localcloud.cloudformation.provider import ResourceContext, ResourceFailure
from localcloud.cloudformation.providers.base.resource import (
    Create,
    Delete,
    Describe,
    Properties,
    Resource,
    ResourceApi,
    changed,
    error_codes,
)
from localcloud.cloudformation.providers.base.tagging import TagCalls


class Parameter(Resource):
    """AWS::SSM::Parameter. The physical ID is the name."""

    type_name = "AWS::SSM::Parameter"
    service = "ssm"
    create_only = frozenset({"Name"})
    updatable = frozenset({"Type", "Value", "Description", "AllowedPattern", "Tier", "DataType", "Policies", "Tags"})
    defaults = {"Description": "", "AllowedPattern": ""}
    create_call = Create("put_parameter")
    describe_call = Describe("get_parameter", "Name", "Parameter")
    delete_call = Delete("delete_parameter", "Name")
    not_found_codes = error_codes("ParameterNotFound")
    name_property = "Name"
    name_length = 512
    tag_calls = TagCalls(
        identity="ResourceId",
        add="add_tags_to_resource",
        remove="remove_tags_from_resource",
        fixed={"ResourceType": "Parameter"},
    )

    def arguments(self, api: ResourceApi, properties: Properties) -> dict[str, Any]:
        """Return the parameter's settings.

        Raises:
            ResourceFailure: The type is SecureString. As on AWS, CloudFormation cannot create a SecureString.
        """
        if properties["Type"] == "SecureString":
            raise ResourceFailure(
                f"{self.type_name}: Type: CloudFormation cannot create a SecureString; use String or StringList"
            )
        return super().arguments(api, properties)

    def configure(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Put a new version. An advanced parameter cannot become a standard parameter.

        Source: docs.aws.amazon.com/systems-manager/latest/userguide/parameter-store-advanced-parameters.html (2026-11).
        """
        if old.get("Tier") == "Advanced" and new.get("Tier", "Standard") == "Standard":
            raise ResourceFailure(
                f"{physical_id} uses the advanced-parameter tier. You can't downgrade a parameter from the "
                "advanced-parameter tier to the standard-parameter tier."
            )
        if changed(old, new, *(self.updatable - {"Tags"})):
            api.call("put_parameter", **self.arguments(api, new), Overwrite=True)

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ARN, type and value. Unlike the schema, the documentation lists all three for Fn::GetAtt."""
        name = str(found["Name"])
        arn = api.arn("ssm", f"parameter/{name.removeprefix('/')}")
        return {"Arn": arn, "Type": found["Type"], "Value": found["Value"]}

    def read_properties(
        self, context: ResourceContext, physical_id: str, properties: Properties, known_ids: frozenset[str]
    ) -> Properties:
        """Return the type and the value."""
        found = self.api(context).call("get_parameter", Name=physical_id)["Parameter"]
        return {"Type": found["Type"], "Value": found["Value"]}


PROVIDERS = (Parameter(),)
