"""Lambda functions and permissions."""

from __future__ import annotations

import io
import zipfile
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
from localcloud.cloudformation.providers.base.waiting import wait_for

_NOT_FOUND = error_codes("ResourceNotFoundException")
_SHOWN = (
    *("Architectures", "Description", "Environment", "EphemeralStorage", "Handler", "MemorySize", "Role", "Runtime"),
    *("Timeout", "TracingConfig"),
)


class Function(Resource):
    """AWS::Lambda::Function."""

    type_name = "AWS::Lambda::Function"
    service = "lambda"
    create_only = frozenset({"FunctionName", "PackageType"})
    updatable = frozenset(
        {"Architectures", "Code", "DeadLetterConfig", "Description", "Environment", "EphemeralStorage", "Handler"}
        | {"FileSystemConfigs", "ImageConfig", "KmsKeyArn", "Layers", "LoggingConfig", "MemorySize", "Role"}
        | {"ReservedConcurrentExecutions", "Runtime", "SnapStart", "Tags", "Timeout", "TracingConfig", "VpcConfig"}
    )
    set_after_create = frozenset({"ReservedConcurrentExecutions"})
    defaults = {
        "Architectures": ["x86_64"],
        "DeadLetterConfig": {},
        "Description": "",
        "Environment": {"Variables": {}},
        "EphemeralStorage": {"Size": 512},
        "FileSystemConfigs": [],
        "ImageConfig": {},
        "KmsKeyArn": "",
        "Layers": [],
        "LoggingConfig": {"LogFormat": "Text"},
        "MemorySize": 128,
        "SnapStart": {"ApplyOn": "None"},
        "Timeout": 3,
        "TracingConfig": {"Mode": "PassThrough"},
        "VpcConfig": {"SubnetIds": [], "SecurityGroupIds": []},
    }
    unremovable = frozenset({"Handler", "Runtime"})
    create_call = Create("create_function")
    describe_call = Describe("get_function_configuration", "FunctionName")
    delete_call = Delete("delete_function", "FunctionName")
    not_found_codes = _NOT_FOUND
    name_property = "FunctionName"
    tag_calls = TagCalls(identity="Resource")

    def arguments(self, api: ResourceApi, properties: Properties) -> dict[str, Any]:
        """Return the function's settings, with inline code packed into a zip file."""
        return {**super().arguments(api, properties), "Code": packed(properties)}

    def wait_until_ready(self, api: ResourceApi, physical_id: str, properties: Properties) -> None:
        """Wait until the function is active and its last update has ended."""
        wait_for(lambda: self._is_active(api, physical_id), f"{physical_id} to be Active")

    def _is_active(self, api: ResourceApi, physical_id: str) -> bool:
        found = self.find(api, physical_id, {}) or {}
        if "Failed" in {found.get("State"), found.get("LastUpdateStatus")}:
            reason = found.get("StateReason") or found.get("LastUpdateStatusReason")
            raise ResourceFailure(f"{physical_id}: {reason}")
        return found.get("State", "Active") == "Active" and found.get("LastUpdateStatus") != "InProgress"

    def configure(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Update the code, configuration and reserved concurrency in sequence, as Lambda requires."""
        if changed(old, new, "Code", "Architectures"):
            code = packed(new)
            api.call("update_function_code", FunctionName=physical_id, Architectures=new.get("Architectures"), **code)
            self.wait_until_ready(api, physical_id, new)
        separate = {"Code", "Architectures", "Tags", *self.set_after_create}
        settings = changed(old, new, *(self.updatable - separate))
        if settings:
            api.call("update_function_configuration", FunctionName=physical_id, **settings)
            self.wait_until_ready(api, physical_id, new)
        if changed(old, new, "ReservedConcurrentExecutions"):
            reserved = new.get("ReservedConcurrentExecutions")
            if reserved is None:
                api.call("delete_function_concurrency", FunctionName=physical_id)
            else:
                api.call("put_function_concurrency", FunctionName=physical_id, ReservedConcurrentExecutions=reserved)

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ARN."""
        return {"Arn": found["FunctionArn"]}

    def tag_identity(self, api: ResourceApi, physical_id: str, properties: Properties) -> str:
        """Return the ARN."""
        return api.arn("lambda", f"function:{physical_id}")

    def read_properties(
        self, context: ResourceContext, physical_id: str, properties: Properties, known_ids: frozenset[str]
    ) -> Properties:
        """Return the settings that Lambda shows in the template's form."""
        found = self.find(self.api(context), physical_id, {}) or {}
        return {name: found.get(name, self.defaults.get(name)) for name in _SHOWN}


def packed(properties: Properties) -> dict[str, Any]:
    """Return a function's Code. As in CloudFormation, inline code becomes the `index` module in a zip file."""
    code = dict(properties["Code"])
    source = code.get("ZipFile")
    if source is not None:
        runtime = str(properties.get("Runtime", ""))
        endings = {"python": "py", "nodejs": "js"}
        ending = next((end for family, end in endings.items() if runtime.startswith(family)), None)
        if ending is None:
            raise ResourceFailure(
                f"AWS::Lambda::Function: Code.ZipFile: inline code requires a python or nodejs runtime, found {runtime}"
            )
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr(zipfile.ZipInfo(f"index.{ending}"), source)
        code["ZipFile"] = buffer.getvalue()
    return code


class Permission(Resource):
    """AWS::Lambda::Permission: a statement in the function's policy, with a generated ID."""

    type_name = "AWS::Lambda::Permission"
    service = "lambda"
    create_only = frozenset(
        {"FunctionName", "Action", "Principal", "SourceArn", "SourceAccount", "EventSourceToken", "PrincipalOrgID"}
        | {"FunctionUrlAuthType", "InvokedViaFunctionUrl"}
    )
    create_call = Create("add_permission")
    not_found_codes = _NOT_FOUND
    name_property = "StatementId"
    name_length = 100

    def describe(self, api: ResourceApi, physical_id: str, properties: Properties) -> dict[str, Any] | None:
        """Return the statement's ID if the function's policy contains it."""
        policy = api.call("get_policy", FunctionName=properties["FunctionName"])["Policy"]
        return {"Id": physical_id} if f'"{physical_id}"' in policy else None

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the statement's ID."""
        return {"Id": found["Id"]}

    def call_delete(self, api: ResourceApi, physical_id: str, properties: Properties) -> None:
        """Remove the statement."""
        api.call("remove_permission", FunctionName=properties["FunctionName"], StatementId=physical_id)


class EventSourceMapping(Resource):
    """AWS::Lambda::EventSourceMapping. The physical ID is the UUID."""

    type_name = "AWS::Lambda::EventSourceMapping"
    service = "lambda"
    create_only = frozenset({"EventSourceArn"})
    updatable = frozenset({"BatchSize", "Enabled", "FunctionName", "MaximumBatchingWindowInSeconds", "Tags"})
    defaults = {"BatchSize": 10, "Enabled": True, "MaximumBatchingWindowInSeconds": 0}
    create_call = Create("create_event_source_mapping", "UUID")
    describe_call = Describe("get_event_source_mapping", "UUID")
    delete_call = Delete("delete_event_source_mapping", "UUID")
    not_found_codes = _NOT_FOUND

    def configure(self, api: ResourceApi, physical_id: str, old: Properties, new: Properties) -> None:
        """Update the changed settings."""
        settings = changed(old, new, *(self.updatable - {"Tags"}))
        if settings:
            api.call("update_event_source_mapping", UUID=physical_id, **settings)

    def attributes(self, api: ResourceApi, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the UUID and the ARN."""
        return {"Id": found["UUID"], "EventSourceMappingArn": found["EventSourceMappingArn"]}


PROVIDERS = (Function(), Permission(), EventSourceMapping())
