"""The one door of the cloud: authenticates a request, asks IAM, and hands it to an own service or to moto."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from moto.core.request import Request
from moto.iam.access_control import PermissionResult
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.s3.models import FakeBucket

from localcloud.api import ApiError, Call, Observer, Principal, Service
from localcloud.clients import DIRECT_HEADER, LocalClients
from localcloud.iam.authority import Authority
from localcloud.identity import ACCOUNT, Identity
from localcloud.protocol import (
    ParsedRequest,
    error_without_operation,
    parse_request,
    read_signature,
    serialise_error,
    serialise_result,
)

logger = logging.getLogger(__name__)
PREFIX = "/_localcloud/"
# Larger bodies are objects on their way into S3: nothing in them is a parameter.
PARAMETERS_BYTES = 4 << 20
Answer = tuple[int, Mapping[str, str], bytes]
StartResponse = Callable[..., Any]
Environ = dict[str, Any]


class Gateway:
    """A WSGI application in front of moto's."""

    def __init__(self, identity: Identity, authority: Authority, clients: LocalClients) -> None:
        self._identity = identity
        self._authority = authority
        self._clients = clients
        self._services: dict[str, list[Service]] = {}
        self._observers: dict[tuple[str, str], list[Observer]] = {}
        _trust_gateway()
        self._moto = DomainDispatcherApplication(create_backend_app)

    def add(self, service: Service) -> None:
        """Let a service answer its operations and observe what it asks to."""
        self._services.setdefault(service.name, []).append(service)
        for key, observer in service.observers().items():
            self._observers.setdefault(key, []).append(observer)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request (WSGI)."""
        # moto reads to the end of a body; without a length, as in chunked uploads, the server's reader knows the end.
        environ["wsgi.input_terminated"] = True
        body = _keep_body(environ)
        request = Request(environ)
        if request.path.startswith(PREFIX):
            return _send(start_response, self._unsigned(request, body or b""))
        if request.headers.get(DIRECT_HEADER) == self._clients.direct_secret:
            return self._moto.get_application(environ)(environ, start_response)
        signature = read_signature(request)
        if signature is None:
            error = ApiError("MissingAuthenticationToken", "The request is not signed.", 403)
            return _send(start_response, error_without_operation("s3", error))
        parsed: ParsedRequest | None = None
        try:
            principal = self._identity.authenticate(signature.access_key_id, signature.session_token)
            parsed = parse_request(request, signature.service)
            call = self._call(request, parsed, principal, signature.region)
            self._authority.authorise(call)
            handler = self._handler(parsed)
            if handler is not None:
                return _send(start_response, serialise_result(parsed, handler(call)))
        except ApiError as error:
            answer = serialise_error(parsed, error) if parsed else error_without_operation(signature.service, error)
            return _send(start_response, answer)
        except Exception as error:
            # The top of a server thread: a fault of a service is this call's answer, and the cloud's log.
            logger.exception("%s failed", parsed.operation.name if parsed else request.path)
            failure = ApiError("InternalFailure", f"{type(error).__name__}: {error}", 500)
            answer = serialise_error(parsed, failure) if parsed else error_without_operation(signature.service, failure)
            return _send(start_response, answer)
        if body is not None:
            environ["wsgi.input"] = io.BytesIO(body)  # parsing has read the first one to its end
            environ.pop("werkzeug.request", None)
        return self._pass_on(environ, start_response, call)

    def _call(self, request: Request, parsed: ParsedRequest, principal: Principal, region: str) -> Call:
        return Call(
            service=parsed.service,
            operation=str(parsed.operation.name),
            parameters=parsed.parameters,
            principal=principal,
            region=region,
            account=ACCOUNT,
            source_address=request.remote_addr or "127.0.0.1",
            headers=dict(request.headers),
        )

    def _handler(self, parsed: ParsedRequest) -> Callable[[Call], Mapping[str, Any]] | None:
        for service in self._services.get(parsed.service, []):
            handler = service.operations().get(str(parsed.operation.name))
            if handler is not None:
                return handler
        return None

    def _pass_on(self, environ: Environ, start_response: StartResponse, call: Call) -> Iterable[bytes]:
        """Give a request to moto, and tell the observers when it succeeded."""
        observers = self._observers.get((call.service, call.operation), [])
        status_seen: list[int] = []

        def observe_start(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            status_seen.append(int(status.split(" ", 1)[0]))
            return start_response(status, headers, *rest)

        body: Iterable[bytes] = self._moto.get_application(environ)(environ, observe_start)
        if observers and status_seen and status_seen[0] < 300:
            for observer in observers:
                observer(call, {})
        return body

    def _unsigned(self, request: Request, body: bytes) -> Answer:
        name, _, path = request.path.removeprefix(PREFIX).partition("/")
        query = request.query_string.decode()
        if name == "core":
            return 200, {"Content-Type": "application/json"}, self._usage()
        for service in self._services.get(name, []):
            status, answer = service.http(request.method, f"{path}?{query}" if query else path, body)
            if status != 404:
                return status, {"Content-Type": "application/json"}, answer
        return 404, {}, b""

    def _usage(self) -> bytes:
        used = [{"principal": who, "action": action, "calls": n} for (who, action), n in self._authority.used.items()]
        return json.dumps({"ready": True, "used": used}).encode()


def _trust_gateway() -> None:
    """Keep moto from judging calls by bucket policies again: it ignores conditions, so that TLS-only means denied."""

    def permitted(bucket: FakeBucket, action: str, resource: str) -> PermissionResult:
        return PermissionResult.PERMITTED

    def may_deliver(target_bucket: FakeBucket, target_prefix: str | None = None) -> bool:
        # S3 judges the log bucket's policy when it delivers, not when logging is switched on.
        return True

    setattr(FakeBucket, "get_permission", permitted)  # noqa: B010 (a method is replaced on purpose)
    setattr(FakeBucket, "_log_permissions_enabled_policy", staticmethod(may_deliver))  # noqa: B010


def _keep_body(environ: Environ) -> bytes | None:
    """Read a body of parameters into memory, so that both this gateway and moto can parse it; leave data to stream."""
    length = int(environ.get("CONTENT_LENGTH") or 0)
    if length > PARAMETERS_BYTES or "chunked" in environ.get("HTTP_TRANSFER_ENCODING", ""):
        return None
    body: bytes = environ["wsgi.input"].read(length) if length else b""
    environ["wsgi.input"] = io.BytesIO(body)
    return body


def _send(start_response: StartResponse, answer: Answer) -> Iterable[bytes]:
    status, headers, body = answer
    fields = {**headers, "Content-Length": str(len(body)), "x-amzn-RequestId": "00000000-0000-0000-0000-000000000000"}
    start_response(f"{status} {'OK' if status < 400 else 'Error'}", list(fields.items()))
    return [body]
