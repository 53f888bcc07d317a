"""Parses AWS requests and serializes responses in each service's wire protocol.

Uses botocore's service models and moto's router, parsers and serializers.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from botocore.awsrequest import HeadersDict
from botocore.exceptions import UnknownServiceError
from botocore.parsers import create_parser
from moto.core.parse import PROTOCOL_PARSERS
from moto.core.request import Request, determine_request_protocol
from moto.core.routing import get_service_router
from moto.core.serialize import get_serializer_class
from moto.core.utils import get_service_model
from werkzeug.exceptions import NotFound

from localcloud.api import ApiError

# boto3's client names by signing name, where they differ. The request distinguishes clients that share a signing name.
# Source: signingName and endpointPrefix in botocore 1.44 (2026-11).
CLIENT_NAMES: Mapping[str, tuple[str, ...]] = {
    "access-analyzer": ("accessanalyzer",),
    "airflow": ("mwaa",),
    "apigateway": ("apigateway", "apigatewayv2"),
    "aps": ("amp",),
    "cloudcontrolapi": ("cloudcontrol",),
    "dynamodb": ("dynamodb", "dynamodbstreams"),
    "elasticfilesystem": ("efs",),
    "elasticloadbalancing": ("elbv2", "elb"),
    "elasticmapreduce": ("emr",),
    "email": ("ses",),
    "es": ("opensearch", "es"),
    "eventbridge": ("events",),
    "monitoring": ("cloudwatch",),
    "s3": ("s3", "s3control"),
    "sagemaker": ("sagemaker", "sagemaker-runtime"),
    "servicequotas": ("service-quotas",),
    "ses": ("ses", "sesv2"),
    "sso": ("sso-admin",),
    "states": ("stepfunctions",),
    "tagging": ("resourcegroupstaggingapi",),
    "timestream": ("timestream-write", "timestream-query"),
}
S3_CONTROL_PATH = "/v20180820/"
# Error codes and HTTP statuses for authentication errors, by protocol or service.
AUTHENTICATION_ERRORS: Mapping[tuple[str, str], tuple[str, int]] = {
    ("json", "InvalidClientTokenId"): ("UnrecognizedClientException", 403),
    ("json", "ExpiredToken"): ("ExpiredTokenException", 403),
    ("s3", "InvalidClientTokenId"): ("InvalidAccessKeyId", 403),
    ("s3", "ExpiredToken"): ("ExpiredToken", 400),
    ("ec2", "InvalidClientTokenId"): ("AuthFailure", 401),
    ("ec2", "ExpiredToken"): ("RequestExpired", 400),
}
# moto warns about codes missing from the service model, such as AccessDenied, which AWS also returns.
warnings.filterwarnings("ignore", message=r"Exception\(ApiError\) with code")
# Operations whose bodies are object data, which is not parsed.
S3_DATA_OPERATIONS = {"PutObject", "UploadPart"}


@dataclass(frozen=True)
class ParsedRequest:
    """A parsed request: boto3's client name, the operation's model, and the input in boto3's shape."""

    service: str
    operation: Any
    protocol: str
    parameters: Mapping[str, Any]


def client_names(signing_name: str) -> tuple[str, ...]:
    """Return the names of the boto3 clients that use a signing name, most likely first."""
    return CLIENT_NAMES.get(signing_name, (signing_name,))


def _route(request: Request, signing_name: str) -> tuple[str, Any, dict[str, Any]]:
    """Return boto3's client name, the operation's model and the path parameters."""
    if signing_name == "s3" and request.path.startswith(S3_CONTROL_PATH):
        candidates: tuple[str, ...] = ("s3control",)
    else:
        candidates = client_names(signing_name)
    version = request.values.get("Version") if len(candidates) > 1 and signing_name != "s3" else None
    for service in candidates:
        try:
            if version is not None and get_service_model(service).api_version != version:
                continue
            operation, uri_parameters = get_service_router(service).match(request)
        except (NotFound, NotImplementedError, UnknownServiceError):
            continue
        return service, operation, uri_parameters
    asked = request.headers.get("X-Amz-Target") or request.args.get("Action") or f"{request.method} {request.path}"
    raise ApiError("UnknownOperationException", f"{signing_name} has no operation {asked}", 404)


def parse_request(request: Request, signing_name: str) -> ParsedRequest:
    """Return the operation and parameters of a request.

    Raises:
        ApiError: UnknownOperationException if botocore does not define the service or the operation.
    """
    service, operation, uri_parameters = _route(request, signing_name)
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
    """Return the status, headers and body for an output in boto3's shape."""
    serializer = get_serializer_class(parsed.service, parsed.protocol)
    answer = serializer(parsed.operation).serialize(dict(result))
    return _wire(answer, int(answer["status_code"]))


def serialise_error(parsed: ParsedRequest, error: ApiError) -> tuple[int, dict[str, str], bytes]:
    """Return the status, headers and body for an error, which boto3 raises as a ClientError."""
    serializer = get_serializer_class(parsed.service, parsed.protocol)
    answer = dict(serializer(parsed.operation).serialize(error))
    if not error.message and "json" in parsed.protocol:
        # As on AWS, an error without a message has no such member.
        members = json.loads(str(answer["body"]))
        answer["body"] = json.dumps({name: value for name, value in members.items() if name.lower() != "message"})
    return _wire(answer, error.status)


def error_without_operation(signing_name: str, error: ApiError) -> tuple[int, dict[str, str], bytes]:
    """Return an error response for a request whose operation is unknown, in the service's protocol."""
    service = client_names(signing_name)[0]
    try:
        wire = str(get_service_model(service).protocol)
    except UnknownServiceError:
        wire = "query"
    kind = "s3" if service == "s3" else "ec2" if wire == "ec2" else "json" if "json" in wire else "query"
    code, status = AUTHENTICATION_ERRORS.get((kind, error.code), (error.code, error.status))
    if kind == "json":
        body = json.dumps({"__type": code, **({"message": error.message} if error.message else {})})
        return status, {"Content-Type": "application/x-amz-json-1.1", "x-amzn-ErrorType": code}, body.encode()
    inner = f"<Code>{code}</Code><Message>{escape(error.message)}</Message>"
    if kind == "s3":
        xml = f"<Error>{inner}</Error>"
    elif kind == "ec2":
        xml = f"<Response><Errors><Error>{inner}</Error></Errors></Response>"
    else:
        xml = f"<ErrorResponse><Error>{inner}</Error></ErrorResponse>"
    return status, {"Content-Type": "text/xml"}, xml.encode()


def parse_answer(parsed: ParsedRequest, status: int, headers: Mapping[str, str], body: bytes) -> Mapping[str, Any]:
    """Return moto's response in boto3's output shape."""
    answer = {"status_code": status, "headers": HeadersDict(headers), "body": body}
    read: dict[str, Any] = create_parser(parsed.protocol).parse(answer, parsed.operation.output_shape)
    read.pop("ResponseMetadata", None)
    return read


def _wire(answer: Mapping[str, Any], status: int) -> tuple[int, dict[str, str], bytes]:
    body = answer["body"]
    headers = {str(name): str(value) for name, value in answer["headers"].items()}
    return status, headers, body.encode() if isinstance(body, str) else bytes(body)
