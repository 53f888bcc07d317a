"""Reads AWS requests and writes AWS answers in each service's own wire protocol.

botocore's service models say how; moto's router, parsers and serialisers are used for it. Not here: who calls
(`identity`) and what the call does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moto.core.parse import PROTOCOL_PARSERS
from moto.core.request import Request, determine_request_protocol
from moto.core.routing import get_service_router
from moto.core.serialize import get_serializer_class
from moto.core.utils import get_service_model
from werkzeug.exceptions import NotFound

from localcloud.api import ApiError

# Signing names that differ from boto3's client names.
CLIENT_NAMES = {"monitoring": "cloudwatch", "states": "stepfunctions", "email": "ses", "eventbridge": "events"}
CREDENTIAL = re.compile(r"Credential=([^/,\s]+)/(\d{8})/([^/]+)/([^/]+)/aws4_request")
# Bodies of these are data, not parameters: they are never parsed.
S3_DATA_OPERATIONS = {"PutObject", "UploadPart"}


@dataclass(frozen=True)
class Signature:
    """What a request's SigV4 authorisation says, from the header or from a presigned URL's query."""

    access_key_id: str
    region: str
    service: str
    session_token: str | None


@dataclass(frozen=True)
class ParsedRequest:
    """A request understood: boto3's client name, the operation's model, the input in boto3's shape."""

    service: str
    operation: Any
    protocol: str
    parameters: Mapping[str, Any]


def read_signature(request: Request) -> Signature | None:
    """Return who signed for which service, or None for an unsigned request."""
    header = request.headers.get("Authorization", "")
    match = CREDENTIAL.search(header)
    token = request.headers.get("X-Amz-Security-Token")
    if match is None and "X-Amz-Credential" in request.args:
        match = CREDENTIAL.search(f"Credential={request.args['X-Amz-Credential']}")
        token = request.args.get("X-Amz-Security-Token")
    if match is None:
        return None
    access_key_id, _, region, service = match.groups()
    return Signature(access_key_id, region, CLIENT_NAMES.get(service, service), token)


def parse_request(request: Request, service: str) -> ParsedRequest:
    """Find the operation of a request and its parameters.

    Raises:
        ApiError: UnknownOperationException when botocore knows no such service or operation.
    """
    try:
        operation, uri_parameters = get_service_router(service).match(request)
    except Exception as error:
        if isinstance(error, (NotFound, NotImplementedError)) or type(error).__name__ == "UnknownServiceError":
            raise ApiError(
                "UnknownOperationException", f"{service}: no operation for {request.method} {request.path}", 404
            ) from error
        raise
    model = get_service_model(service)
    protocol = determine_request_protocol(model, request.content_type)
    is_data = service == "s3" and operation.name in S3_DATA_OPERATIONS
    parsed = PROTOCOL_PARSERS[protocol](operation, map_type=dict).parse(
        {
            "method": request.method,
            "values": request.args if is_data else request.values,
            "headers": request.headers,
            "body": b"" if is_data else request.data,
            "url_path": request.path,
            "url_params": uri_parameters,
        }
    )
    parameters = {name: value for name, value in parsed.items() if not (is_data and name == "Body")}
    return ParsedRequest(service, operation, protocol, parameters)


def serialise_result(parsed: ParsedRequest, result: Mapping[str, Any]) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body that carry an output in boto3's shape."""
    serializer = get_serializer_class(parsed.service, parsed.protocol)
    answer = serializer(parsed.operation).serialize(dict(result))
    return _wire(answer, int(answer["status_code"]))


def serialise_error(parsed: ParsedRequest, error: ApiError) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body that the SDKs turn into a ClientError."""
    serializer = get_serializer_class(parsed.service, parsed.protocol)
    answer = serializer(parsed.operation).serialize(error)
    return _wire(answer, error.status)


def error_without_operation(service: str, error: ApiError) -> tuple[int, dict[str, str], bytes]:
    """Return an error for a request whose operation is unknown, in a form that XML and JSON clients both can report."""
    model_protocol = ""
    try:
        model_protocol = str(get_service_model(service).protocol)
    except Exception as unknown:
        if type(unknown).__name__ != "UnknownServiceError":
            raise
    if model_protocol in ("json", "rest-json"):
        body = f'{{"__type": "{error.code}", "message": "{error.message}"}}'
        return (
            error.status,
            {"Content-Type": "application/x-amz-json-1.1", "x-amzn-ErrorType": error.code},
            body.encode(),
        )
    xml = f"<Code>{error.code}</Code><Message>{error.message}</Message>"
    xml = (
        f"<Error>{xml}</Error>"
        if model_protocol == "rest-xml"
        else f"<ErrorResponse><Error>{xml}</Error></ErrorResponse>"
    )
    return error.status, {"Content-Type": "text/xml"}, xml.encode()


def _wire(answer: Mapping[str, Any], status: int) -> tuple[int, dict[str, str], bytes]:
    body = answer["body"]
    headers = {str(name): str(value) for name, value in answer["headers"].items()}
    return status, headers, body.encode() if isinstance(body, str) else bytes(body)
