"""Validates function settings and stores LoggingConfig, which moto accepts but does not store."""

from __future__ import annotations

import hashlib
import threading
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from localcloud.api import ApiError, Call, Clients, Handler
from localcloud.functions.definition import FunctionDefinition, FunctionRegistry, check_runnable, check_variables
from localcloud.functions.sessions import RoleSessions

_UNSUPPORTED_SETTINGS = ("DeadLetterConfig", "FileSystemConfigs", "Layers")


class ConfigurationOperations:
    """Handlers that create, update, describe and delete functions. Each handler passes its call to moto."""

    def __init__(
        self, clients: Clients, sessions: RoleSessions, registry: FunctionRegistry, forget: Callable[[str], None]
    ) -> None:
        self._clients = clients
        self._sessions = sessions
        self._registry = registry
        self._forget = forget
        self._lock = threading.Lock()
        self._logging: dict[str, Mapping[str, Any]] = {}

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers, keyed by operation."""
        return {
            "CreateFunction": self._create,
            "UpdateFunctionConfiguration": self._update,
            "GetFunction": self._get,
            "GetFunctionConfiguration": self._get_configuration,
            "DeleteFunction": self._delete,
        }

    def define(self, function: str, qualifier: str | None) -> FunctionDefinition:
        """Return a function's current definition.

        Raises:
            ApiError: The function does not exist or cannot run in the embedded cloud.
        """
        name = self._registry.split(function)[0]
        with self._lock:
            logging_config = self._logging.get(name, {})
        return self._registry.define(function, qualifier, logging_config)

    def _create(self, call: Call) -> Mapping[str, Any]:
        parameters = dict(call.parameters)
        name = self._registry.split(parameters["FunctionName"])[0]
        check_runnable(parameters.get("Runtime"), parameters.get("PackageType"))
        check_variables(parameters.get("Environment", {}).get("Variables", {}))
        self._check_settings(parameters)
        self._check_role(parameters["Role"], name)
        answer = self._moto("create_function", parameters)
        with self._lock:
            self._logging[name] = parameters.get("LoggingConfig", {})
        return self._with_settings(name, answer)

    def _update(self, call: Call) -> Mapping[str, Any]:
        parameters = dict(call.parameters)
        name = self._registry.split(parameters["FunctionName"])[0]
        record = self._registry.record(parameters["FunctionName"])
        check_runnable(parameters.get("Runtime", record.run_time), record.package_type)
        if "Environment" in parameters:
            variables = parameters["Environment"].get("Variables", {})
            check_variables(variables)
            parameters["Environment"] = {"Variables": variables}
        self._check_settings(parameters)
        if "Role" in parameters:
            self._check_role(parameters["Role"], name)
        answer = self._moto("update_function_configuration", parameters)
        # moto 5.2 stores these settings in CreateFunction but ignores them in updates.
        if "EphemeralStorage" in parameters:
            record.ephemeral_storage = parameters["EphemeralStorage"]["Size"]
        if "TracingConfig" in parameters:
            record.tracing_config = parameters["TracingConfig"]
        if "KMSKeyArn" in parameters:
            record.kms_key_arn = parameters["KMSKeyArn"]
        with self._lock:
            self._logging[name] = parameters.get("LoggingConfig", self._logging.get(name, {}))
        return self._with_settings(name, answer)

    def _get(self, call: Call) -> Mapping[str, Any]:
        answer = dict(self._moto("get_function", call.parameters))
        name = self._registry.split(call.parameters["FunctionName"])[0]
        answer["Configuration"] = self._with_settings(name, answer["Configuration"])
        return answer

    def _get_configuration(self, call: Call) -> Mapping[str, Any]:
        answer = self._moto("get_function_configuration", call.parameters)
        return self._with_settings(self._registry.split(call.parameters["FunctionName"])[0], answer)

    def _delete(self, call: Call) -> Mapping[str, Any]:
        answer = self._moto("delete_function", call.parameters)
        name, qualifier = self._registry.split(call.parameters["FunctionName"], call.parameters.get("Qualifier"))
        if qualifier is None:
            with self._lock:
                self._logging.pop(name, None)
            self._forget(name)
        return answer

    def _check_settings(self, parameters: Mapping[str, Any]) -> None:
        for name in _UNSUPPORTED_SETTINGS:
            if parameters.get(name):
                raise ApiError(
                    "InvalidParameterValueException",
                    f"{name}: {parameters[name]} is not supported by the embedded cloud; remove the setting",
                )

    def _check_role(self, role_arn: str, name: str) -> None:
        try:
            self._sessions.credentials(role_arn, name)
        except ApiError as error:
            raise ApiError(
                "InvalidParameterValueException",
                f"The role defined for the function cannot be assumed by Lambda. ({role_arn}: {error.message})",
            ) from error

    def _with_settings(self, name: str, configuration: Mapping[str, Any]) -> dict[str, Any]:
        with self._lock:
            given = self._logging.get(name, {})
        # As on AWS, empty settings are not shown, except the description.
        shown = {
            key: value for key, value in configuration.items() if value not in ([], {}, "") or key == "Description"
        }
        logging = {"LogFormat": "Text", "LogGroup": f"/aws/lambda/{name}", **given}
        runtime = hashlib.sha256(str(shown.get("Runtime")).encode()).hexdigest()
        version = {"RuntimeVersionArn": f"arn:aws:lambda:{shown['FunctionArn'].split(':')[3]}::runtime:{runtime}"}
        revision = str(uuid.uuid5(uuid.NAMESPACE_OID, repr((shown, logging))))
        return {**shown, "LoggingConfig": logging, "RevisionId": revision, "RuntimeVersionConfig": version}

    def _moto(self, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        answer = getattr(self._clients.direct("lambda"), operation)(**parameters)
        return {key: value for key, value in answer.items() if key != "ResponseMetadata"}
