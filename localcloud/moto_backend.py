"""Runs moto behind the gateway, which performs all authorization."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from moto.core.utils import camelcase_to_underscores
from moto.ec2.models.route_tables import RouteTable
from moto.iam.access_control import PermissionResult
from moto.iam.exceptions import NotFoundException
from moto.iam.models import SERVICE_NAME_CONVERSION, IAMBackend
from moto.logs.models import LogGroup
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.s3.models import FakeBucket, S3Backend
from moto.sns.responses import SNSResponse

from localcloud.iam.identity import ACCOUNT

# Flask's response for an unknown route, which means that moto implements the service but not the operation.
NO_ROUTE = b"<!doctype html>"
# Suffixes that follow AWSServiceRoleFor in the names of service-linked roles, if AWS does not use the service's name.
# Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-fleet-prerequisites.html (2026-11).
LINKED_ROLE_NAMES = {"ec2fleet": "EC2Fleet", "fsx": "AmazonFSx", "spot": "EC2Spot", "spotfleet": "EC2SpotFleet"}
# Source: https://docs.aws.amazon.com/sns/latest/dg/sns-message-delivery-retries.html (2026-11), and test_sns in
# https://github.com/localstack/localstack/tree/8b9a79f/tests/aws/services/cloudformation/resources.
DELIVERY_POLICY = {
    "http": {
        "defaultHealthyRetryPolicy": {
            "minDelayTarget": 20,
            "maxDelayTarget": 20,
            "numRetries": 3,
            "numMaxDelayRetries": 0,
            "numNoDelayRetries": 0,
            "numMinDelayRetries": 0,
            "backoffFunction": "linear",
        },
        "disableSubscriptionOverrides": False,
        "defaultRequestPolicy": {"headerContentType": "text/plain; charset=UTF-8"},
    }
}
STORED_ATTRIBUTES = ("ArchivePolicy", "FifoThroughputScope", "SignatureVersion", "TracingConfig")
# Operations that moto records but that have no effect in the embedded cloud.
WITHOUT_EFFECT = frozenset(
    ("lambda", operation)
    for operation in ("CreateEventSourceMapping", "InvokeAsync", "PublishLayerVersion")
    + ("PutFunctionEventInvokeConfig", "UpdateFunctionEventInvokeConfig")
) | frozenset(
    ("stepfunctions", operation)
    for operation in ("CreateActivity", "CreateStateMachineAlias", "DeleteActivity", "DeleteStateMachineAlias")
    + ("DeleteStateMachineVersion", "DescribeActivity", "DescribeStateMachineAlias", "GetActivityTask")
    + ("DescribeStateMachineForExecution", "ListActivities", "ListStateMachineAliases", "ListStateMachineVersions")
    + ("PublishStateMachineVersion", "StartSyncExecution", "TestState", "UpdateMapRun", "UpdateStateMachineAlias")
    + ("ValidateStateMachineDefinition",)
)


class Moto(DomainDispatcherApplication):
    """moto's server as a WSGI application that raises NotImplementedError for missing operations."""

    def __init__(self) -> None:
        super().__init__(create_backend_app)
        _trust_gateway()
        _deliver_no_access_logs()
        _complete_answers()
        SERVICE_NAME_CONVERSION.update(LINKED_ROLE_NAMES)

    def get_backend_for_host(self, host: str | None) -> Any:
        """Return moto's name for the service at an AWS host name.

        Raises:
            NotImplementedError: moto does not implement the service.
        """
        if host is None:
            return None
        if host in ("moto_api", "instance_metadata") or "." not in host:
            return super().get_backend_for_host(host)
        for backend, pattern in self.backend_url_patterns:
            if pattern.match(f"http://{host}"):
                return backend
        raise NotImplementedError(host)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Handle one request (WSGI).

        Raises:
            NotImplementedError: moto does not implement the service or the operation.
        """
        # Without an account ID, moto searches for the key in every partition and creates an IAM store in each one.
        environ["HTTP_X_MOTO_ACCOUNT_ID"] = ACCOUNT
        begun: list[tuple[Any, ...]] = []

        def keep(*arguments: Any) -> Callable[[bytes], object]:
            begun.append(arguments)
            return _write_nothing

        body: Iterable[bytes] = self.get_application(environ)(environ, keep)
        status = begun[-1][0]
        if status.startswith("404"):
            body = [b"".join(body)]
            if body[0].startswith(NO_ROUTE):
                raise NotImplementedError(environ.get("PATH_INFO", ""))
        start_response(*begun[-1])
        return body


def _write_nothing(data: bytes) -> None:
    raise RuntimeError("moto returns the body and must not call write()")


def _trust_gateway() -> None:
    """Disable moto's bucket policy evaluation, since it ignores conditions and denies access to TLS-only buckets."""

    def permitted(bucket: FakeBucket, action: str, resource: str) -> PermissionResult:
        return PermissionResult.PERMITTED

    def may_deliver(target_bucket: FakeBucket, target_prefix: str | None = None) -> bool:
        # S3 checks the log bucket's policy at delivery, not when logging is enabled.
        return True

    setattr(FakeBucket, "get_permission", permitted)  # noqa: B010 (replaces a method)
    setattr(FakeBucket, "_log_permissions_enabled_policy", staticmethod(may_deliver))  # noqa: B010


def _deliver_no_access_logs() -> None:
    """Stop moto from writing access logs immediately; S3 delivers them within hours, on a best-effort basis.

    Otherwise, deleting a bucket would write an object to the log bucket, which then could not be deleted.
    Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/ServerLogs.html (2026-11; best-effort delivery).
    """

    def deliver_later(backend: S3Backend, request: Any, bucket_name: str) -> None:
        """Do not deliver a log, since the cloud only runs for minutes."""

    setattr(S3Backend, "log_incoming_request", deliver_later)  # noqa: B010 (replaces a method)


_DESCRIBE_GROUP, _TOPIC_ATTRIBUTES = LogGroup.to_describe_dict, SNSResponse.get_topic_attributes
_GET_ROLE = IAMBackend.get_role


def _complete_answers() -> None:
    """Add the members that AWS returns for resources of a type but that moto omits, and use AWS's wording.

    Source: test_ec2, test_logs and test_sns in
    https://github.com/localstack/localstack/tree/8b9a79f/tests/aws/services/cloudformation/resources;
    https://docs.aws.amazon.com/IAM/latest/APIReference/API_GetRole.html (2026-11).
    """

    def with_class(group: LogGroup) -> dict[str, Any]:
        return {"logGroupClass": "STANDARD", **_DESCRIBE_GROUP(group)}

    def with_stored_attributes(response: SNSResponse) -> Any:
        answer: Any = _TOPIC_ATTRIBUTES(response)
        found = answer.result["Attributes"]
        topic = vars(response.backend.get_topic(found["TopicArn"]))
        stored = {name: topic.get(camelcase_to_underscores(name)) for name in STORED_ATTRIBUTES}
        found |= {name: value for name, value in stored.items() if value is not None}
        if not found["DeliveryPolicy"]:
            del found["DeliveryPolicy"]
            found["EffectiveDeliveryPolicy"] = json.dumps(DELIVERY_POLICY)
        return answer

    def get_role(backend: IAMBackend, role_name: str) -> Any:
        try:
            return _GET_ROLE(backend, role_name)
        except NotFoundException:
            raise NotFoundException(f"The role with name {role_name} cannot be found.") from None

    setattr(RouteTable, "propagating_vgws", [])  # noqa: B010 (virtual private gateways are not emulated)
    setattr(IAMBackend, "get_role", get_role)  # noqa: B010 (replaces a method)
    setattr(LogGroup, "to_describe_dict", with_class)  # noqa: B010 (replaces a method)
    setattr(SNSResponse, "get_topic_attributes", with_stored_attributes)  # noqa: B010 (replaces a method)
