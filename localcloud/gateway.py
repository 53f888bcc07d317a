"""Entry point for all requests: authenticates, authorizes with IAM, and routes to a local service or to moto."""

from __future__ import annotations

import io
import json
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError
from moto.core.request import Request

from localcloud.api import ApiError, Call, Handler, Observer, Principal, Service, as_api_error
from localcloud.clients import DIRECT_HEADER, LocalClients
from localcloud.http.addressing import normalise
from localcloud.http.chunked_body import decode_body
from localcloud.http.door import Door
from localcloud.http.model_check import violations
from localcloud.http.protocol import (
    ParsedRequest,
    error_without_operation,
    parse_answer,
    parse_request,
    serialise_error,
    serialise_result,
)
from localcloud.http.signature import Signature, read_signature, verify
from localcloud.iam.authority import Authority
from localcloud.iam.identity import ACCOUNT, Identity
from localcloud.journal import append_record
from localcloud.moto_backend import WITHOUT_EFFECT, Moto

logger = logging.getLogger(__name__)
PREFIX = "/_localcloud/"
VIOLATION = "model_violation"
"""Record kind for a difference from botocore's model."""
# An S3 request body larger than this is object data and does not contain parameters.
PARAMETERS_BYTES = 4 << 20
CONTROL_BYTES = 1 << 20
"""Maximum size of a control API request's body."""
Answer = tuple[int, Mapping[str, str], bytes]
StartResponse = Callable[..., Any]
Environ = dict[str, Any]
Guard = Callable[[Call], AbstractContextManager[object]]
Check = Callable[[Call], None]


class Gateway:
    """WSGI application in front of moto's application.

    Args:
        records: File that records unimplemented operations. If None, they are only logged.
        check_models: Also record the differences between all calls and botocore's models.
    """

    def __init__(
        self,
        identity: Identity,
        authority: Authority,
        clients: LocalClients,
        records: Path | None = None,
        *,
        check_models: bool = False,
    ) -> None:
        self._check_models = check_models
        self._identity = identity
        self._authority = authority
        self._clients = clients
        self._records = records
        self._services: dict[str, list[Service]] = {}
        self._handlers: dict[tuple[str, str], Handler] = {}
        self._observers: dict[tuple[str, str], list[Observer]] = {}
        self._guards: dict[str, Guard] = {}
        self._checks: dict[str, Check] = {}
        self._moto = Moto()
        self._door = Door(identity.root_secret)

    def add(self, service: Service) -> None:
        """Register a service's handlers and observers; the first handler for an operation takes precedence."""
        self._services.setdefault(service.name, []).append(service)
        for operation, handler in service.operations().items():
            self._handlers.setdefault((service.name, operation), handler)
        for key, observer in service.observers().items():
            self._observers.setdefault(key, []).append(observer)

    def guard(self, service: str, guard: Guard) -> None:
        """Run moto's part of each call to a service inside `guard`, a context that can reject it with an ApiError."""
        self._guards[service] = guard

    def check(self, service: str, check: Check) -> None:
        """Let `check` reject calls to a service with an ApiError, before its handlers or moto receive them."""
        self._checks[service] = check

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Handle one request (WSGI)."""
        # moto reads each body to its end. The server's reader detects where chunked uploads end.
        environ["wsgi.input_terminated"] = True
        normalise(environ)
        request = Request(environ)
        if request.path.startswith(PREFIX):
            return _send(start_response, self._control(request, environ))
        signature = read_signature(environ)
        signing_name = signature.service if signature is not None else "s3"
        parsed: ParsedRequest | None = None
        answer: Answer
        try:
            body = _buffer_body(environ, signing_name)
            if request.headers.get(DIRECT_HEADER) == self._clients.direct_secret:
                return self._moto(environ, start_response)
            if signature is None:
                raise ApiError("MissingAuthenticationToken", "The request is not signed.", 403)
            principal = self._identity.authenticate(signature.access_key_id, signature.session_token)
            verify(environ, signature, self._identity.secret(signature.access_key_id), body)
            parsed = parse_request(request, signing_name)
            call = self._call(request, parsed, principal, signature)
            respond = self._respond_checked if self._check_models else self._respond
            return respond(environ, start_response, parsed, call, body)
        except (ApiError, ClientError) as raised:
            error = as_api_error(raised) if isinstance(raised, ClientError) else raised
            answer = serialise_error(parsed, error) if parsed else error_without_operation(signing_name, error)
        except NotImplementedError:
            answer = self._not_implemented(request, signing_name, parsed)
        except Exception as error:  # noqa: BLE001 (top level of a server thread)
            # An internal error affects only this call. It is logged and returned to the client.
            logger.exception("%s failed", parsed.operation.name if parsed else request.path)
            failure = ApiError("InternalFailure", f"{type(error).__name__}: {error}", 500)
            answer = serialise_error(parsed, failure) if parsed else error_without_operation(signing_name, failure)
        return _send(start_response, answer)

    def _respond(
        self, environ: Environ, start_response: StartResponse, parsed: ParsedRequest, call: Call, body: bytes | None
    ) -> Iterable[bytes]:
        self._authority.authorise(call)
        if call.service in self._checks:
            self._checks[call.service](call)
        handler = self._handlers.get((call.service, call.operation))
        if handler is not None:
            return _send(start_response, serialise_result(parsed, handler(call)))
        if (call.service, call.operation) in WITHOUT_EFFECT:
            raise NotImplementedError(call.operation)
        if body is not None:
            environ["wsgi.input"] = io.BytesIO(body)  # the parser consumed the stream
            environ.pop("werkzeug.request", None)
        if call.service == "s3":
            decode_body(environ, is_checksum_of_body=call.operation != "CompleteMultipartUpload")
        with self._guards.get(call.service, nullcontext)(call):
            return self._forward(environ, start_response, parsed, call)

    def _respond_checked(
        self, environ: Environ, start_response: StartResponse, parsed: ParsedRequest, call: Call, body: bytes | None
    ) -> Iterable[bytes]:
        """Respond, and record how the request and the response differ from botocore's models."""
        found = violations(parsed.operation.input_shape, parsed.parameters)
        begun: list[tuple[int, dict[str, str]]] = []

        def observe_start(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            begun.append((int(status.split(" ", 1)[0]), dict(headers)))
            return start_response(status, headers, *rest)

        content = self._respond(environ, observe_start, parsed, call, body)
        status, headers = begun[-1]
        if status < 300 and parsed.operation.output_shape is not None and not parsed.operation.has_streaming_output:
            content = [b"".join(content)]
            found += violations(parsed.operation.output_shape, parse_answer(parsed, status, headers, content[0]))
        for violation in found:
            logger.warning("%s %s: %s", call.service, call.operation, violation)
            if self._records is not None:
                operation = f"{call.service}:{call.operation}"
                append_record(self._records, {"kind": VIOLATION, "operation": operation, "violation": violation})
        return content

    def _call(self, request: Request, parsed: ParsedRequest, principal: Principal, signature: Signature) -> Call:
        return Call(
            service=parsed.service,
            operation=str(parsed.operation.name),
            parameters=parsed.parameters,
            principal=principal,
            region=signature.region,
            account=ACCOUNT,
            source_address=request.remote_addr or "127.0.0.1",
            headers=dict(request.headers),
        )

    def _forward(
        self, environ: Environ, start_response: StartResponse, parsed: ParsedRequest, call: Call
    ) -> Iterable[bytes]:
        """Forward a request to moto and notify the observers if it succeeds."""
        observers = self._observers.get((call.service, call.operation))
        if not observers:
            return self._moto(environ, start_response)
        seen: list[tuple[int, dict[str, str]]] = []

        def observe_start(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            seen.append((int(status.split(" ", 1)[0]), dict(headers)))
            return start_response(status, headers, *rest)

        body = self._moto(environ, observe_start)
        status, headers = seen[-1]
        if status < 300:
            content = b"" if parsed.operation.has_streaming_output else b"".join(body)
            output = parse_answer(parsed, status, headers, content)
            for observer in observers:
                observer(call, output)
            return body if parsed.operation.has_streaming_output else [content]
        return body

    def _not_implemented(self, request: Request, signing_name: str, parsed: ParsedRequest | None) -> Answer:
        """Record an operation that neither a local service nor moto implements, and return an error."""
        operation = f"{parsed.service}:{parsed.operation.name}" if parsed else f"{signing_name} {request.path}"
        logger.warning("%s is not implemented", operation)
        if self._records is not None:
            append_record(self._records, {"kind": "not_implemented", "operation": operation})
        # SDKs retry 500, 502, 503 and 504, but not 501.
        error = ApiError("NotImplemented", f"The embedded cloud does not implement {operation}.", 501)
        return serialise_error(parsed, error) if parsed else error_without_operation(signing_name, error)

    def _control(self, request: Request, environ: Environ) -> Answer:
        """Serve a request to the control API, which is not signed."""
        length = _length(environ)
        asked = CONTROL_BYTES + 1 if length is None else min(length, CONTROL_BYTES + 1)
        body: bytes = environ["wsgi.input"].read(asked) if asked else b""
        if len(body) > CONTROL_BYTES:
            return _refusal(413, f"the body has more than {CONTROL_BYTES} bytes")
        refused = self._door.refusal(environ, request.path.removeprefix(PREFIX), body)
        if refused is not None:
            logger.warning("%s %s rejected: %s", request.method, request.path, refused)
            return _refusal(403, refused)
        name, _, path = request.path.removeprefix(PREFIX).partition("/")
        query = request.query_string.decode()
        if name == "core" and path == "usage":
            return 200, {"Content-Type": "application/json"}, self._usage()
        for service in self._services.get(name, []):
            status, answer = service.http(request.method, f"{path}?{query}" if query else path, body)
            if status != 404:
                return status, {"Content-Type": "application/json"}, answer
        return 404, {}, b""

    def _usage(self) -> bytes:
        used = [
            {"principal": principal, "action": action, "calls": n} for (principal, action), n in self._authority.usage()
        ]
        needed = [
            {"principal": principal, "statement": sid, "action": action, "calls": n}
            for (principal, sid, action), n in self._authority.needs()
        ]
        return json.dumps({"ready": True, "used": used, "needed": needed}).encode()


def _refusal(status: int, reason: str) -> Answer:
    return status, {"Content-Type": "application/json"}, json.dumps({"error": reason}).encode()


def _length(environ: Environ) -> int | None:
    """Return the number of body bytes to read: None (read to the end) for a chunked body, or 0 if there is no body."""
    if environ.get("CONTENT_LENGTH"):
        return int(environ["CONTENT_LENGTH"])
    return None if "chunked" in environ.get("HTTP_TRANSFER_ENCODING", "").lower() else 0


def _buffer_body(environ: Environ, signing_name: str) -> bytes | None:
    """Read a body with parameters into memory for both the gateway and moto; leave object data as a stream."""
    length = _length(environ)
    if signing_name == "s3" and (length is None or length > PARAMETERS_BYTES):
        return None
    body: bytes = environ["wsgi.input"].read(length) if length != 0 else b""
    environ["wsgi.input"] = io.BytesIO(body)
    return body


def _send(start_response: StartResponse, answer: Answer) -> Iterable[bytes]:
    status, headers, body = answer
    fields = {**headers, "Content-Length": str(len(body)), "x-amzn-RequestId": str(uuid.uuid4())}
    start_response(f"{status} {'OK' if status < 400 else 'Error'}", list(fields.items()))
    return [body]
