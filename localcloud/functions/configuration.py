"""The Lambda settings that moto leaves out: logging, dead letters, retries of events; and the checks of the others.

moto keeps each function's record; what its API accepts and forgets is kept here beside it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

from botocore.exceptions import ClientError

from localcloud.api import ApiError, Call, Clients, Handler
from localcloud.functions.asynchronous import MAXIMUM_EVENT_AGE_SECONDS, MAXIMUM_RETRY_ATTEMPTS, RetryPolicy
from localcloud.functions.definition import (
    FunctionDefinition,
    FunctionRegistry,
    check_runnable,
    check_variables,
)
from localcloud.functions.destinations import check_destination
from localcloud.functions.sessions import RoleSessions

_KEPT_SETTINGS = ("LoggingConfig", "DeadLetterConfig")


class ConfigurationOperations:
    """Create, update, describe and delete functions; passes each call on to moto."""

    def __init__(
        self, clients: Clients, sessions: RoleSessions, registry: FunctionRegistry, forget: Callable[[str], None]
    ) -> None:
        self._clients = clients
        self._sessions = sessions
        self._registry = registry
        self._forget = forget
        self._lock = threading.Lock()
        self._settings: dict[str, dict[str, Any]] = {}
        self._invoke_configs: dict[tuple[str, str], dict[str, Any]] = {}

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers by API name."""
        return {
            "CreateFunction": self._create,
            "UpdateFunctionConfiguration": self._update,
            "GetFunction": self._get,
            "GetFunctionConfiguration": self._get_configuration,
            "DeleteFunction": self._delete,
            "PutFunctionEventInvokeConfig": self._put_invoke_config,
            "UpdateFunctionEventInvokeConfig": self._update_invoke_config,
            "GetFunctionEventInvokeConfig": self._get_invoke_config,
            "DeleteFunctionEventInvokeConfig": self._delete_invoke_config,
            "ListFunctionEventInvokeConfigs": self._list_invoke_configs,
        }

    def define(self, function: str, qualifier: str | None) -> FunctionDefinition:
        """Return the function as it is now.

        Raises:
            ApiError: there is no such function, or it cannot run here.
        """
        name = self._registry.split(function)[0]
        with self._lock:
            logging_config = self._settings.get(name, {}).get("LoggingConfig", {})
        return self._registry.define(function, qualifier, logging_config)

    def retry_policy(self, name: str) -> RetryPolicy:
        """Return how often and how long an event for the function is retried."""
        config = self._invoke_config(name)
        return RetryPolicy(
            attempts=int(config.get("MaximumRetryAttempts", MAXIMUM_RETRY_ATTEMPTS)),
            event_age_seconds=int(config.get("MaximumEventAgeInSeconds", MAXIMUM_EVENT_AGE_SECONDS)),
        )

    def destinations(self, name: str, kind: str) -> list[str]:
        """Return the ARNs of the function's OnSuccess or OnFailure destination."""
        destination = self._invoke_config(name).get("DestinationConfig", {}).get(kind, {}).get("Destination")
        return [destination] if destination else []

    def dead_letter_arn(self, name: str) -> str | None:
        """Return the function's dead-letter queue or topic."""
        with self._lock:
            arn = self._settings.get(name, {}).get("DeadLetterConfig", {}).get("TargetArn")
        return arn or None

    def _create(self, call: Call) -> Mapping[str, Any]:
        parameters = dict(call.parameters)
        name = self._registry.split(parameters["FunctionName"])[0]
        check_runnable(parameters.get("Runtime"), parameters.get("PackageType"))
        check_variables(parameters.get("Environment", {}).get("Variables", {}))
        self._check_settings(parameters)
        self._check_role(parameters["Role"], name)
        answer = self._moto("create_function", parameters)
        with self._lock:
            self._settings[name] = {key: parameters[key] for key in _KEPT_SETTINGS if key in parameters}
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
        # moto 5.2 takes these in CreateFunction and leaves them unchanged in an update
        if "EphemeralStorage" in parameters:
            record.ephemeral_storage = parameters["EphemeralStorage"]["Size"]
        if "TracingConfig" in parameters:
            record.tracing_config = parameters["TracingConfig"]
        if "KMSKeyArn" in parameters:
            record.kms_key_arn = parameters["KMSKeyArn"]
        with self._lock:
            kept = self._settings.setdefault(name, {})
            kept.update({key: parameters[key] for key in _KEPT_SETTINGS if key in parameters})
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
                self._settings.pop(name, None)
                self._invoke_configs = {key: kept for key, kept in self._invoke_configs.items() if key[0] != name}
            self._forget(name)
        return answer

    def _put_invoke_config(self, call: Call) -> Mapping[str, Any]:
        return self._store_invoke_config(call, {})

    def _update_invoke_config(self, call: Call) -> Mapping[str, Any]:
        return self._store_invoke_config(call, self._known_invoke_config(call))

    def _get_invoke_config(self, call: Call) -> Mapping[str, Any]:
        return self._known_invoke_config(call)

    def _delete_invoke_config(self, call: Call) -> Mapping[str, Any]:
        self._known_invoke_config(call)
        with self._lock:
            del self._invoke_configs[self._invoke_config_key(call)]
        return {}

    def _list_invoke_configs(self, call: Call) -> Mapping[str, Any]:
        name = self._registry.record(call.parameters["FunctionName"]).function_name
        with self._lock:
            found = [config for key, config in self._invoke_configs.items() if key[0] == name]
        return {"FunctionEventInvokeConfigs": found}

    def _store_invoke_config(self, call: Call, base: Mapping[str, Any]) -> Mapping[str, Any]:
        name, qualifier = self._invoke_config_key(call)
        for kind, destination in call.parameters.get("DestinationConfig", {}).items():
            if destination.get("Destination"):
                check_destination(destination["Destination"], f"DestinationConfig.{kind}.Destination")
        config = {
            **base,
            **{
                key: call.parameters[key]
                for key in ("MaximumRetryAttempts", "MaximumEventAgeInSeconds", "DestinationConfig")
                if key in call.parameters
            },
            "FunctionArn": self._registry.arn(name, qualifier),
            "LastModified": datetime.now(timezone.utc),
        }
        with self._lock:
            self._invoke_configs[name, qualifier] = config
        return config

    def _known_invoke_config(self, call: Call) -> dict[str, Any]:
        name, qualifier = self._invoke_config_key(call)
        with self._lock:
            config = self._invoke_configs.get((name, qualifier))
        if config is None:
            raise ApiError(
                "ResourceNotFoundException",
                f"The function {self._registry.arn(name, qualifier)} doesn't have an EventInvokeConfig",
                404,
            )
        return config

    def _invoke_config_key(self, call: Call) -> tuple[str, str]:
        record = self._registry.record(call.parameters["FunctionName"])
        qualifier = self._registry.split(call.parameters["FunctionName"], call.parameters.get("Qualifier"))[1]
        return record.function_name, qualifier or "$LATEST"

    def _invoke_config(self, name: str) -> dict[str, Any]:
        with self._lock:
            return self._invoke_configs.get((name, "$LATEST"), {})

    def _check_settings(self, parameters: Mapping[str, Any]) -> None:
        if parameters.get("FileSystemConfigs"):
            raise ApiError(
                "InvalidParameterValueException",
                "FileSystemConfigs: the local cloud mounts no file system for functions; drop the setting",
            )
        arn = parameters.get("DeadLetterConfig", {}).get("TargetArn")
        if arn:
            check_destination(arn, "DeadLetterConfig.TargetArn")

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
            settings = dict(self._settings.get(name, {}))
        settings["LoggingConfig"] = {
            "LogFormat": "Text",
            "LogGroup": f"/aws/lambda/{name}",
            **settings.get("LoggingConfig", {}),
        }
        return {**configuration, **settings}

    def _moto(self, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        try:
            answer = getattr(self._clients.direct("lambda"), operation)(**parameters)
        except ClientError as error:
            raise ApiError(
                error.response["Error"]["Code"],
                error.response["Error"]["Message"],
                error.response["ResponseMetadata"]["HTTPStatusCode"],
            ) from error
        return {key: value for key, value in answer.items() if key != "ResponseMetadata"}
