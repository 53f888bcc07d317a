"""Shared types of the embedded cloud: principals, calls, errors, services and clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from botocore.exceptions import ClientError


@dataclass(frozen=True)
class Principal:
    """The identity that signed a call.

    Attributes:
        arn: ARN of the user, role session (`assumed-role`) or service.
        kind: Kind of principal. "root" passes every check. "service" is an AWS service acting on its own behalf.
        role_arn: ARN of the session's role, which is the value of aws:PrincipalArn in policies.
    """

    arn: str
    account: str
    kind: Literal["root", "user", "role", "service"]
    role_arn: str | None = None
    access_key_id: str | None = None
    session_name: str | None = None


@dataclass(frozen=True)
class Call:
    """An AWS API call, parsed with botocore's service model.

    Attributes:
        service: boto3's client name, such as "ec2", "s3", "autoscaling" or "logs".
        operation: API name, such as "RunInstances".
        parameters: Input in boto3's shape.
    """

    service: str
    operation: str
    parameters: Mapping[str, Any]
    principal: Principal
    region: str
    account: str
    source_address: str = "127.0.0.1"
    headers: Mapping[str, str] = field(default_factory=dict)


class ApiError(Exception):
    """An error response, which boto3 raises as a ClientError with this code."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status


def as_api_error(error: ClientError) -> ApiError:
    """Convert the ClientError of an inner call to an ApiError for the outer caller."""
    answer = error.response
    return ApiError(
        answer["Error"]["Code"], answer["Error"]["Message"], answer["ResponseMetadata"].get("HTTPStatusCode", 400)
    )


Handler = Callable[[Call], Mapping[str, Any]]
"""Handles a call and returns its output in boto3's shape, which the gateway serializes.

It may raise ApiError, or the ClientError of an inner call.
"""


Observer = Callable[[Call, Mapping[str, Any]], None]
"""Receives a call that moto has completed, and the call's output (without Body for S3). It must not block or raise."""


class Service:
    """An AWS service. The embedded cloud implements some of its operations, and moto implements the rest."""

    name: str

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers, keyed by operation name."""
        return {}

    def observers(self) -> Mapping[tuple[str, str], Observer]:
        """Return the observers of moto's operations, keyed by service and operation."""
        return {}

    def http(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Serve a control request to /_localcloud/<name>/<path>; return its status (404 if unknown) and body."""
        return 404, b""

    def close(self) -> None:
        """Stop the service's threads and processes."""


@dataclass(frozen=True)
class Credentials:
    """A role session's temporary credentials; the gateway enforces `expires_unix_seconds`."""

    access_key_id: str
    secret_access_key: str
    session_token: str
    expires_unix_seconds: float


class CredentialIssuer(Protocol):
    """Starts role sessions for services that provide credentials (instance metadata, Lambda)."""

    def issue(
        self,
        role_arn: str,
        session_name: str,
        *,
        trusted_service: str,
        duration_seconds: int,
        source_arn: str | None = None,
    ) -> Credentials:
        """Start a session of `role_arn` for an AWS service such as "ec2.amazonaws.com".

        The service can act for a resource, `source_arn`, which the trust policy may require.

        Raises:
            ApiError: AccessDenied if the role does not exist or its trust policy does not allow the service.
        """
        ...


class Clients(Protocol):
    """Factory for boto3 clients that use this cloud."""

    endpoint_url: str
    region: str
    account: str

    def power_token(self, instance_id: str) -> str:
        """Return the token that lets an instance power itself off."""
        ...

    def client(self, service: str, *, role_arn: str | None = None, region: str | None = None) -> Any:
        """Return a boto3 client that signs as root, or as a session of `role_arn` with IAM enforced."""
        ...

    def direct(self, service: str, *, region: str | None = None) -> Any:
        """Return a boto3 client that calls moto directly, bypassing IAM and the embedded cloud's services."""
        ...


class EventBus(Protocol):
    """Receives events from services. Rules with matching patterns invoke their targets."""

    def publish(
        self, source: str, detail_type: str, detail: Mapping[str, Any], resources: list[str] | None = None
    ) -> None:
        """Publish an AWS service event (source "aws.ec2", ...) on the default bus without waiting for its targets."""
        ...
