"""moto as the store and the maker of answers behind the gateway, which alone judges who may call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from moto.iam.access_control import PermissionResult
from moto.iam.models import SERVICE_NAME_CONVERSION
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.s3.models import FakeBucket, S3Backend

from localcloud.identity import ACCOUNT

# What Flask answers when no route fits: moto has the service, but not the operation.
NO_ROUTE = b"<!doctype html>"
# The names that AWS gives to service-linked roles (AWSServiceRoleFor...), where moto would use the service's own.
# Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-fleet-prerequisites.html (2026-11).
LINKED_ROLE_NAMES = {"ec2fleet": "EC2Fleet", "fsx": "AmazonFSx", "spot": "EC2Spot", "spotfleet": "EC2SpotFleet"}


class Moto(DomainDispatcherApplication):
    """moto's server as a WSGI application that raises NotImplementedError for what it lacks."""

    def __init__(self) -> None:
        super().__init__(create_backend_app)
        _trust_gateway()
        _deliver_no_access_logs()
        SERVICE_NAME_CONVERSION.update(LINKED_ROLE_NAMES)

    def get_backend_for_host(self, host: str | None) -> Any:
        """Return moto's name of the service at an AWS host name.

        Raises:
            NotImplementedError: moto has no such service.
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
        """Answer one request (WSGI).

        Raises:
            NotImplementedError: moto has no such service or operation.
        """
        # Not told whose account it is, moto looks for the key in every partition, and makes an IAM store of each.
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
    raise RuntimeError("moto answers by its return value, not through write()")


def _trust_gateway() -> None:
    """Keep moto from judging calls by bucket policies again: it ignores conditions, so that TLS-only means denied."""

    def permitted(bucket: FakeBucket, action: str, resource: str) -> PermissionResult:
        return PermissionResult.PERMITTED

    def may_deliver(target_bucket: FakeBucket, target_prefix: str | None = None) -> bool:
        # S3 judges the log bucket's policy when it delivers, not when logging is switched on.
        return True

    setattr(FakeBucket, "get_permission", permitted)  # noqa: B010 (a method is replaced on purpose)
    setattr(FakeBucket, "_log_permissions_enabled_policy", staticmethod(may_deliver))  # noqa: B010


def _deliver_no_access_logs() -> None:
    """Keep moto from writing an access log with each request: S3 does it within hours, if at all.

    Written at once, the deletion of a bucket would put an object into the bucket of logs, which is deleted next.
    Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/ServerLogs.html (2026-11), best-effort delivery.
    """

    def deliver_later(backend: S3Backend, request: Any, bucket_name: str) -> None:
        """Never, for a cloud that lives for minutes."""

    setattr(S3Backend, "log_incoming_request", deliver_later)  # noqa: B010 (a method is replaced on purpose)
