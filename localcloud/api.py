"""The types that the local cloud's parts share: who calls, what is called, how a service answers.

Not here: how a request is parsed (`gateway`), who may call (`iam`), what a service does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol


@dataclass(frozen=True)
class Principal:
    """Who signed a call.

    `arn` is what policies see as aws:PrincipalArn: for a role session the session's `assumed-role` ARN, with `role_arn`
    the role behind it. `kind` "root" passes every check; "service" is an AWS service acting for itself.
    """

    arn: str
    account: str
    kind: Literal["root", "user", "role", "service"]
    role_arn: str | None = None
    access_key_id: str | None = None
    session_name: str | None = None


@dataclass(frozen=True)
class Call:
    """One AWS API call, parsed with botocore's service model.

    `service` is boto3's client name ("ec2", "s3", "autoscaling", "logs", ...), `operation` the API name
    ("RunInstances"), `parameters` the input in boto3's shape.
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
    """An answer that the AWS SDKs turn into a ClientError with this code."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status


Handler = Callable[[Call], Mapping[str, Any]]
"""Takes a call, answers in boto3's output shape (the gateway serialises it), or raises ApiError."""


Observer = Callable[[Call, Mapping[str, Any]], None]
"""Is told of a call that moto answered with success (S3 calls come without Body); must not block or raise.

The answer itself is not read back from moto's wire form: the mapping is empty, and an observer looks up what it needs.
"""


class Service(Protocol):
    """Operations of one AWS service that the local cloud answers itself; all others of that service go to moto."""

    name: str

    def operations(self) -> Mapping[str, Handler]:
        """Return the handler of each operation that this service answers, by API name."""
        ...

    def observers(self) -> Mapping[tuple[str, str], Observer]:
        """Return who is told of which (service, operation) answered by moto."""
        ...

    def http(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Answer an unsigned request to /_localcloud/<name>/<path> (status, body); 404 when there is nothing."""
        ...

    def close(self) -> None:
        """End threads and processes that the service started."""
        ...


@dataclass(frozen=True)
class Credentials:
    """Temporary credentials of a role session; `expires_unix_seconds` as the gateway enforces it."""

    access_key_id: str
    secret_access_key: str
    session_token: str
    expires_unix_seconds: float


class CredentialIssuer(Protocol):
    """Issues role sessions for services that hand out credentials (instance metadata, Lambda)."""

    def issue(self, role_arn: str, session_name: str, *, trusted_service: str, duration_seconds: int) -> Credentials:
        """Start a session of `role_arn` for an AWS service such as "ec2.amazonaws.com".

        Raises:
            ApiError: AccessDenied when the role's trust policy does not admit the service, NoSuchEntity without a role.
        """
        ...


class Clients(Protocol):
    """boto3 clients that talk to this cloud."""

    endpoint_url: str
    region: str
    account: str

    def client(self, service: str, *, role_arn: str | None = None, region: str | None = None) -> Any:
        """Return a boto3 client signed by the root principal, or by a session of `role_arn` (IAM is then enforced)."""
        ...

    def direct(self, service: str, *, region: str | None = None) -> Any:
        """Return a boto3 client that reaches moto past IAM and past the local cloud's own services."""
        ...


class EventBus(Protocol):
    """Where services say what happened; rules with matching patterns wake their targets."""

    def publish(
        self, source: str, detail_type: str, detail: Mapping[str, Any], resources: list[str] | None = None
    ) -> None:
        """Deliver an AWS service event (source "aws.ec2", ...) to the default bus, without waiting for targets."""
        ...
