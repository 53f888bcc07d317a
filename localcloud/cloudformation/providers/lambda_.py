"""Lambda: functions, versions, aliases, permissions, layers."""

from __future__ import annotations

import io
import zipfile
from typing import Any

from ..provider import ResourceFailure
from .resource import Create, Delete, Describe, Place, Properties, Resource, changed, codes
from .tagging import TagCalls
from .waiting import wait_for

_GONE = codes("ResourceNotFoundException")


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
    afterwards = frozenset({"ReservedConcurrentExecutions"})
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
    undroppable = frozenset({"Handler", "Runtime"})
    creates = Create("create_function")
    describes = Describe("get_function_configuration", "FunctionName")
    deletes = Delete("delete_function", "FunctionName")
    gone = _GONE
    name_property = "FunctionName"
    tag_calls = TagCalls(identity="Resource")

    def arguments(self, at: Place, properties: Properties) -> dict[str, Any]:
        """Return the function with inline source packed."""
        return {**super().arguments(at, properties), "Code": packed(properties)}

    def settle(self, at: Place, physical_id: str, properties: Properties) -> None:
        """Wait until the function is active and its last update is through."""
        wait_for(lambda: self._settled(at, physical_id), f"{physical_id} to become active")

    def _settled(self, at: Place, physical_id: str) -> bool:
        found = self.found(at, physical_id, {}) or {}
        if "Failed" in {found.get("State"), found.get("LastUpdateStatus")}:
            reason = found.get("StateReason") or found.get("LastUpdateStatusReason")
            raise ResourceFailure(f"{physical_id}: {reason}")
        return found.get("State", "Active") == "Active" and found.get("LastUpdateStatus") != "InProgress"

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Change code, configuration and reserved concurrency, one after the other as Lambda wants."""
        if changed(old, new, "Code", "Architectures"):
            code = packed(new)
            at.call("update_function_code", FunctionName=physical_id, Architectures=new.get("Architectures"), **code)
            self.settle(at, physical_id, new)
        apart = {"Code", "Architectures", "Tags", *self.afterwards}
        settings = changed(old, new, *(self.updatable - apart))
        if settings:
            at.call("update_function_configuration", FunctionName=physical_id, **settings)
            self.settle(at, physical_id, new)
        if changed(old, new, "ReservedConcurrentExecutions"):
            reserved = new.get("ReservedConcurrentExecutions")
            if reserved is None:
                at.call("delete_function_concurrency", FunctionName=physical_id)
            else:
                at.call("put_function_concurrency", FunctionName=physical_id, ReservedConcurrentExecutions=reserved)

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ARN."""
        return {"Arn": found["FunctionArn"]}

    def tag_identity(self, at: Place, physical_id: str, properties: Properties) -> str:
        """Return the ARN."""
        return at.arn("lambda", f"function:{physical_id}")


def packed(properties: Properties) -> dict[str, Any]:
    """Return a function's Code; inline source becomes a zip that holds `index`, as CloudFormation does it."""
    code = dict(properties["Code"])
    source = code.get("ZipFile")
    if source is not None:
        runtime = str(properties.get("Runtime", ""))
        endings = {"python": "py", "nodejs": "js"}
        ending = next((end for family, end in endings.items() if runtime.startswith(family)), None)
        if ending is None:
            raise ResourceFailure(
                f"AWS::Lambda::Function: Code.ZipFile: inline source is for python and nodejs, not {runtime}"
            )
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr(zipfile.ZipInfo(f"index.{ending}"), source)
        code["ZipFile"] = buffer.getvalue()
    return code


class Version(Resource):
    """AWS::Lambda::Version; its id is the ARN with the version's number."""

    type_name = "AWS::Lambda::Version"
    service = "lambda"
    create_only = frozenset({"FunctionName", "Description", "CodeSha256"})
    creates = Create("publish_version", "FunctionArn")
    gone = _GONE

    def describe(self, at: Place, physical_id: str, properties: Properties) -> dict[str, Any] | None:
        """Read the version."""
        function, number = physical_id.rsplit(":", 1)
        return at.call("get_function_configuration", FunctionName=function, Qualifier=number)

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return number and ARN."""
        return {"Version": found["Version"], "FunctionArn": found["FunctionArn"]}

    def remove(self, at: Place, physical_id: str, properties: Properties) -> None:
        """Delete the version, not the function."""
        function, number = physical_id.rsplit(":", 1)
        at.call("delete_function", FunctionName=function, Qualifier=number)


class FunctionAlias(Resource):
    """AWS::Lambda::Alias; its id is its ARN."""

    type_name = "AWS::Lambda::Alias"
    service = "lambda"
    create_only = frozenset({"Name", "FunctionName"})
    updatable = frozenset({"FunctionVersion", "Description", "RoutingConfig"})
    creates = Create("create_alias", "AliasArn")
    gone = _GONE
    defaults = {"Description": "", "RoutingConfig": {"AdditionalVersionWeights": []}}

    def arguments(self, at: Place, properties: Properties) -> dict[str, Any]:
        """Return the alias; the API takes the weights as a map."""
        arguments = super().arguments(at, properties)
        if arguments.get("RoutingConfig") is not None:
            weights = arguments["RoutingConfig"]["AdditionalVersionWeights"]
            by_version = {item["FunctionVersion"]: item["FunctionWeight"] for item in weights}
            arguments["RoutingConfig"] = {"AdditionalVersionWeights": by_version}
        return arguments

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Point the alias elsewhere."""
        if changed(old, new, *self.updatable):
            at.call("update_alias", **self.arguments(at, new))

    def describe(self, at: Place, physical_id: str, properties: Properties) -> dict[str, Any] | None:
        """Read the alias."""
        return at.call("get_alias", FunctionName=properties["FunctionName"], Name=properties["Name"])

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ARN."""
        return {"AliasArn": found["AliasArn"]}

    def remove(self, at: Place, physical_id: str, properties: Properties) -> None:
        """Delete the alias."""
        at.call("delete_alias", FunctionName=properties["FunctionName"], Name=properties["Name"])


class Permission(Resource):
    """AWS::Lambda::Permission: one statement of the function's policy, under a generated id."""

    type_name = "AWS::Lambda::Permission"
    service = "lambda"
    create_only = frozenset(
        {"FunctionName", "Action", "Principal", "SourceArn", "SourceAccount", "EventSourceToken", "PrincipalOrgID"}
        | {"FunctionUrlAuthType", "InvokedViaFunctionUrl"}
    )
    creates = Create("add_permission")
    gone = _GONE
    name_property = "StatementId"
    name_length = 100

    def describe(self, at: Place, physical_id: str, properties: Properties) -> dict[str, Any] | None:
        """Tell whether the function's policy has the statement."""
        policy = at.call("get_policy", FunctionName=properties["FunctionName"])["Policy"]
        return {"Id": physical_id} if f'"{physical_id}"' in policy else None

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the id of the statement."""
        return {"Id": found["Id"]}

    def remove(self, at: Place, physical_id: str, properties: Properties) -> None:
        """Remove the statement."""
        at.call("remove_permission", FunctionName=properties["FunctionName"], StatementId=physical_id)


class EventInvokeConfig(Resource):
    """AWS::Lambda::EventInvokeConfig; its id is `<function>|<qualifier>`."""

    type_name = "AWS::Lambda::EventInvokeConfig"
    service = "lambda"
    create_only = frozenset({"FunctionName", "Qualifier"})
    updatable = frozenset({"DestinationConfig", "MaximumEventAgeInSeconds", "MaximumRetryAttempts"})
    gone = _GONE

    def make(self, at: Place, properties: Properties) -> str:
        """Put the configuration."""
        at.call("put_function_event_invoke_config", **properties)
        return f"{properties['FunctionName']}|{properties['Qualifier']}"

    def configure(self, at: Place, physical_id: str, old: Properties, new: Properties) -> None:
        """Put the whole configuration again, after deleting the old one: the local Lambda would answer that first."""
        if changed(old, new, *self.updatable):
            at.call("delete_function_event_invoke_config", **_qualified(old))
            at.call("put_function_event_invoke_config", **new)

    def describe(self, at: Place, physical_id: str, properties: Properties) -> dict[str, Any] | None:
        """Read the configuration."""
        return at.call("get_function_event_invoke_config", **_qualified(properties))

    def remove(self, at: Place, physical_id: str, properties: Properties) -> None:
        """Delete the configuration."""
        at.call("delete_function_event_invoke_config", **_qualified(properties))


def _qualified(properties: Properties) -> dict[str, Any]:
    return {name: properties[name] for name in ("FunctionName", "Qualifier")}


class LayerVersion(Resource):
    """AWS::Lambda::LayerVersion; its id is its ARN."""

    type_name = "AWS::Lambda::LayerVersion"
    service = "lambda"
    create_only = frozenset(
        {"Content", "LayerName", "Description", "CompatibleRuntimes", "CompatibleArchitectures", "LicenseInfo"}
    )
    creates = Create("publish_layer_version", "LayerVersionArn")
    gone = _GONE
    name_property = "LayerName"

    def name_of(self, physical_id: str) -> str:
        """Return the layer's name in the ARN."""
        return physical_id.split(":")[6]

    def describe(self, at: Place, physical_id: str, properties: Properties) -> dict[str, Any] | None:
        """Read the version."""
        name, number = physical_id.split(":")[6:8]
        return at.call("get_layer_version", LayerName=name, VersionNumber=number)

    def attributes(self, at: Place, found: dict[str, Any], properties: Properties) -> dict[str, Any]:
        """Return the ARN."""
        return {"LayerVersionArn": found["LayerVersionArn"]}

    def remove(self, at: Place, physical_id: str, properties: Properties) -> None:
        """Delete the version, unless it is gone: the call does not say so."""
        if self.found(at, physical_id, properties) is not None:
            name, number = physical_id.split(":")[6:8]
            at.call("delete_layer_version", LayerName=name, VersionNumber=number)


PROVIDERS = (Function(), Version(), FunctionAlias(), Permission(), EventInvokeConfig(), LayerVersion())
