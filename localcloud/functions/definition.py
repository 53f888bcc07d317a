"""A function's definition at the time of a call, read from moto's records and validated."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moto.awslambda.exceptions import LambdaClientError
from moto.awslambda.utils import get_backend

from localcloud.api import ApiError

DEFAULT_TIMEOUT_SECONDS = 3
RESERVED_VARIABLES = frozenset(
    (
        "_HANDLER",
        "_X_AMZN_TRACE_ID",
        "AWS_DEFAULT_REGION",
        "AWS_REGION",
        "AWS_EXECUTION_ENV",
        "AWS_LAMBDA_FUNCTION_NAME",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE",
        "AWS_LAMBDA_FUNCTION_VERSION",
        "AWS_LAMBDA_INITIALIZATION_TYPE",
        "AWS_LAMBDA_LOG_GROUP_NAME",
        "AWS_LAMBDA_LOG_STREAM_NAME",
        "AWS_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_LAMBDA_RUNTIME_API",
        "LAMBDA_TASK_ROOT",
        "LAMBDA_RUNTIME_DIR",
    )
)
"""Source: https://docs.aws.amazon.com/lambda/latest/dg/configuration-envvars.html (read 2026-11)."""
VARIABLES_LIMIT_BYTES = 4096  # from the same page


@dataclass(frozen=True)
class FunctionDefinition:
    """The inputs of a function's process. Invocations with identical definitions may share warm processes."""

    name: str
    arn: str
    version: str
    handler: str
    runtime: str
    role_arn: str
    timeout_seconds: int
    memory_mib: int
    variables: tuple[tuple[str, str], ...]
    code_sha256: str
    log_group: str
    log_format: str
    log_level: str
    system_log_level: str

    @property
    def invoked_arn(self) -> str:
        """The ARN including the version, as in the context object."""
        return self.arn if self.version == "$LATEST" else f"{self.arn}:{self.version}"


def check_runnable(runtime: str | None, package_type: str | None) -> None:
    """Reject package types and runtimes that the embedded cloud cannot run.

    Raises:
        ApiError: InvalidParameterValueException with the reason.
    """
    if package_type == "Image":
        raise ApiError(
            "InvalidParameterValueException",
            "PackageType Image: the embedded cloud supports only zip packages; package the code as a zip file",
        )
    if runtime is None or not re.fullmatch(r"python3\.\d+", runtime):
        raise ApiError(
            "InvalidParameterValueException",
            f"Runtime {runtime}: the embedded cloud supports only python3.x runtimes; write the function in Python",
        )


def check_variables(variables: Mapping[str, str]) -> None:
    """Reject environment variables that Lambda rejects.

    Raises:
        ApiError: InvalidParameterValueException that names the reserved keys, or the size and its limit.
    """
    reserved = sorted(RESERVED_VARIABLES & variables.keys())
    if reserved:
        raise ApiError(
            "InvalidParameterValueException",
            "Lambda was unable to configure your environment variables because the environment variables you have "
            "provided contains reserved keys that are currently not supported for modification. Reserved keys used in "
            f"this request: {', '.join(reserved)}",
        )
    size_bytes = sum(len(key.encode()) + len(value.encode()) for key, value in variables.items())
    if size_bytes > VARIABLES_LIMIT_BYTES:
        raise ApiError(
            "InvalidParameterValueException",
            "Lambda was unable to configure your environment variables because the environment variables you have "
            f"provided exceeded the 4KB limit: {size_bytes} bytes",
        )


class FunctionRegistry:
    """Reads function records from moto's Lambda backend, which runs in this process."""

    def __init__(self, account: str, region: str) -> None:
        self._account = account
        self._region = region

    def record(self, function: str, qualifier: str | None = None) -> Any:
        """Return moto's record for a function, given its name, partial ARN or full ARN.

        Raises:
            ApiError: ResourceNotFoundException.
        """
        name, qualifier = self.split(function, qualifier)
        try:
            found = get_backend(self._account, self._region).get_function(name, qualifier)
        except LambdaClientError:
            found = None
        if found is None:
            raise ApiError("ResourceNotFoundException", f"Function not found: {self.arn(name, qualifier)}", 404)
        return found

    def arn(self, name: str, qualifier: str | None = None) -> str:
        """Return the function's ARN, with the qualifier if given."""
        arn = f"arn:aws:lambda:{self._region}:{self._account}:function:{name}"
        return f"{arn}:{qualifier}" if qualifier else arn

    @staticmethod
    def split(function: str, qualifier: str | None = None) -> tuple[str, str | None]:
        """Return (name, qualifier) for NAME, NAME:QUALIFIER, ACCOUNT:function:NAME or an ARN."""
        text = function.rpartition("function:")[2]
        name, _, suffix = text.partition(":")
        return name, suffix or qualifier

    def define(self, function: str, qualifier: str | None, logging_config: Mapping[str, Any]) -> FunctionDefinition:
        """Return a function's current definition.

        Raises:
            ApiError: ResourceNotFoundException, or InvalidParameterValueException if the function cannot run here.
        """
        record = self.record(function, qualifier)
        check_runnable(record.run_time, record.package_type)
        return FunctionDefinition(
            name=record.function_name,
            arn=self.arn(record.function_name),
            version=str(record.version),
            handler=record.handler or "",
            runtime=record.run_time,
            role_arn=record.role,
            timeout_seconds=int(record.timeout or DEFAULT_TIMEOUT_SECONDS),
            memory_mib=int(record.memory_size),
            variables=tuple(sorted((key, str(value)) for key, value in record.environment_vars.items())),
            code_sha256=record.code_sha_256,
            log_group=str(logging_config.get("LogGroup") or f"/aws/lambda/{record.function_name}"),
            log_format=str(logging_config.get("LogFormat", "Text")),
            # Empty selects the runtime's default, which is WARNING in text format and INFO in JSON format.
            log_level=str(logging_config.get("ApplicationLogLevel", "")),
            system_log_level=str(logging_config.get("SystemLogLevel", "INFO")),
        )

    def code(self, definition: FunctionDefinition) -> bytes:
        """Return the function's package, which is a zip file.

        Raises:
            ApiError: ResourceNotFoundException if the function has been deleted since the definition was read.
        """
        return bytes(self.record(definition.name, definition.version).code_bytes)

    def reserved_concurrency(self, name: str) -> int | None:
        """Return a function's ReservedConcurrentExecutions, or None if it has no reserved concurrency."""
        reserved = self.record(name).reserved_concurrency
        return None if reserved is None else int(reserved)

    def policy_statements(self, function: str) -> list[dict[str, Any]]:
        """Return the statements in the function's resource policy, or an empty list if it has no policy."""
        return list(self.record(function).policy.statements)
