"""Step Functions: state machines."""

from __future__ import annotations

from typing import Any

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


class StateMachine(Resource):
    """AWS::StepFunctions::StateMachine with a definition in DefinitionString. The physical ID is the ARN."""

    type_name = "AWS::StepFunctions::StateMachine"
    service = "stepfunctions"
    create_only = frozenset({"StateMachineName", "StateMachineType"})
    updatable = frozenset({"DefinitionString", "RoleArn", "Tags"})
    unremovable = frozenset({"DefinitionString", "RoleArn"})
    parameter_names = {
        "StateMachineName": "name",
        "StateMachineType": "type",
        "DefinitionString": "definition",
        "RoleArn": "roleArn",
    }
    create_call = Create("create_state_machine", "stateMachineArn")
    describe_call = Describe("describe_state_machine", "stateMachineArn")
    delete_call = Delete("delete_state_machine", "stateMachineArn")
    not_found_codes = error_codes("StateMachineDoesNotExist")
    name_property = "StateMachineName"
    name_length = 80
    tag_calls = TagCalls("resourceArn", on_create="tags")

    def configure(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Update the definition and the role. Running executions keep theirs."""
        if settings := changed(old, new, *(self.updatable - {"Tags"})):
            arguments = {self.parameter_names[name]: value for name, value in settings.items()}
            api.call("update_state_machine", stateMachineArn=physical_id, **arguments)

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ARN, the name and the revision."""
        names = {"Arn": "stateMachineArn", "Name": "name", "StateMachineRevisionId": "revisionId"}
        return {attribute: found.get(name) for attribute, name in names.items()}


PROVIDERS = (StateMachine(),)
