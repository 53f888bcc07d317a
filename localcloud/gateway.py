"""The one door of the cloud: authenticates a request, asks IAM, and hands it to an own service or to moto."""

from __future__ import annotations

import io
import json
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from moto.core.request import Request

from localcloud.addressing import normalise
from localcloud.api import ApiError, Call, Handler, Observer, Principal, Service
from localcloud.chunked_body import unframe
from localcloud.clients import DIRECT_HEADER, LocalClients
from localcloud.iam.authority import Authority
from localcloud.identity import ACCOUNT, Identity
from localcloud.journal import append_record
from localcloud.moto_backend import Moto
from localcloud.protocol import (
    ParsedRequest,
    error_without_operation,
    parse_answer,
    parse_request,
    serialise_error,
    serialise_result,
)
from localcloud.signature import Signature, read_signature, verify

logger = logging.getLogger(__name__)
PREFIX = "/_localcloud/"
# A larger body of an S3 call is an object on its way in: nothing in it is a parameter.
PARAMETERS_BYTES = 4 << 20
Answer = tuple[int, Mapping[str, str], bytes]
StartResponse = Callable[..., Any]
Environ = dict[str, Any]


class Gateway:
    """A WSGI application in front of moto's.

    Args:
        records: File that operations which nobody answers are recorded in; None only logs them.
    """

    def __init__(
        self, identity: Identity, authority: Authority, clients: LocalClients, records: Path | None = None
    ) -> None:
        self._identity = identity
        self._authority = authority
        self._clients = clients
        self._records = records
        self._services: dict[str, list[Service]] = {}
        self._handlers: dict[tuple[str, str], Handler] = {}
        self._observers: dict[tuple[str, str], list[Observer]] = {}
        self._moto = Moto()

    def add(self, service: Service) -> None:
        """Let a service answer its operations and observe what it asks to; the first to claim an operation has it."""
        self._services.setdefault(service.name, []).append(service)
        for operation, handler in service.operations().items():
            self._handlers.setdefault((service.name, operation), handler)
        for key, observer in service.observers().items():
            self._observers.setdefault(key, []).append(observer)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request (WSGI)."""
        # moto reads to the end of a body; without a length, as in chunked uploads, the server's reader knows the end.
        environ["wsgi.input_terminated"] = True
        normalise(environ)
        request = Request(environ)
        if request.path.startswith(PREFIX):
            return _send(start_response, self._unsigned(request, environ["wsgi.input"].read(_length(environ))))
        signature = read_signature(environ)
        signing_name = signature.service if signature is not None else "s3"
        parsed: ParsedRequest | None = None
        answer: Answer
        try:
            body = _keep_body(environ, signing_name)
            if request.headers.get(DIRECT_HEADER) == self._clients.direct_secret:
                return self._moto(environ, start_response)
            if signature is None:
                raise ApiError("MissingAuthenticationToken", "The request is not signed.", 403)
            principal = self._identity.authenticate(signature.access_key_id, signature.session_token)
            verify(environ, signature, self._identity.secret(signature.access_key_id), body)
            parsed = parse_request(request, signing_name)
            return self._answer(
                environ, start_response, parsed, self._call(request, parsed, principal, signature), body
            )
        except ApiError as error:
            answer = serialise_error(parsed, error) if parsed else error_without_operation(signing_name, error)
        except NotImplementedError:
            answer = self._not_implemented(request, signing_name, parsed)
        except Exception as error:  # noqa: BLE001 (the top of a server thread)
            # A fault of a service is this call's answer, and the cloud's log; the thread goes on to the next call.
            logger.exception("%s failed", parsed.operation.name if parsed else request.path)
            failure = ApiError("InternalFailure", f"{type(error).__name__}: {error}", 500)
            answer = serialise_error(parsed, failure) if parsed else error_without_operation(signing_name, failure)
        return _send(start_response, answer)

    def _answer(
        self, environ: Environ, start_response: StartResponse, parsed: ParsedRequest, call: Call, body: bytes | None
    ) -> Iterable[bytes]:
        self._authority.authorise(call)
        handler = self._handlers.get((call.service, call.operation))
        if handler is not None:
            return _send(start_response, serialise_result(parsed, handler(call)))
        if body is not None:
            environ["wsgi.input"] = io.BytesIO(body)  # parsing has read the first one to its end
            environ.pop("werkzeug.request", None)
        if call.service == "s3":
            unframe(environ)
        return self._pass_on(environ, start_response, parsed, call)

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

    def _pass_on(
        self, environ: Environ, start_response: StartResponse, parsed: ParsedRequest, call: Call
    ) -> Iterable[bytes]:
        """Give a request to moto, and tell the observers when it succeeded."""
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
        """Record an operation that neither an own service nor moto answers; return an error that names it."""
        operation = f"{parsed.service}:{parsed.operation.name}" if parsed else f"{signing_name} {request.path}"
        logger.warning("%s is not implemented", operation)
        if self._records is not None:
            append_record(self._records, {"kind": "not_implemented", "operation": operation})
        # Not a 500, 502, 503 or 504, which SDKs would try again.
        error = ApiError("NotImplemented", f"The local cloud does not implement {operation}.", 501)
        return serialise_error(parsed, error) if parsed else error_without_operation(signing_name, error)

    def _unsigned(self, request: Request, body: bytes) -> Answer:
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
        used = [{"principal": who, "action": action, "calls": n} for (who, action), n in self._authority.usage()]
        needed = [
            {"principal": who, "statement": sid, "action": action, "calls": n}
            for (who, sid, action), n in self._authority.needs()
        ]
        return json.dumps({"ready": True, "used": used, "needed": needed}).encode()


def _length(environ: Environ) -> int | None:
    """Return how many bytes of a body to read: its length, None (to the end) for a chunked one, 0 without a body."""
    if environ.get("CONTENT_LENGTH"):
        return int(environ["CONTENT_LENGTH"])
    return None if "chunked" in environ.get("HTTP_TRANSFER_ENCODING", "").lower() else 0


def _keep_body(environ: Environ, signing_name: str) -> bytes | None:
    """Read a body of parameters into memory, so that both this gateway and moto can parse it; leave data to stream."""
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
