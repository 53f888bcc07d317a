"""Parses and verifies AWS Signature Version 4 signatures in headers and presigned URLs.

Header timestamps are not checked, since the client and the cloud share a clock. Presigned URLs expire.

Source: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html (2026-11).
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from localcloud.api import ApiError
from localcloud.http.addressing import SENT_HOST

ALGORITHM = "AWS4-HMAC-SHA256"
CREDENTIAL = re.compile(r"^([^/,\s]+)/(\d{8})/([^/]+)/([^/]+)/aws4_request$")
MISMATCH = (
    "The request signature we calculated does not match the signature you provided. "
    "Check your AWS Secret Access Key and signing method."
)


@dataclass(frozen=True)
class Signature:
    """A request's signature. `service` is the signing name; `signed_headers` are in lower case."""

    access_key_id: str
    date: str
    region: str
    service: str
    session_token: str | None
    signed_headers: tuple[str, ...]
    hexadecimal: str
    timestamp: str
    is_presigned: bool
    expires_seconds: int | None


def read_signature(environ: Mapping[str, Any]) -> Signature | None:
    """Return a WSGI request's signature, or None if the request is not signed with version 4."""
    header = environ.get("HTTP_AUTHORIZATION", "")
    if header.startswith(ALGORITHM):
        pairs = (part.strip().partition("=") for part in header.removeprefix(ALGORITHM).split(","))
        fields = {name: value for name, _, value in pairs}
        timestamp = environ.get("HTTP_X_AMZ_DATE", "")
        token = environ.get("HTTP_X_AMZ_SECURITY_TOKEN")
        names = ("Credential", "SignedHeaders", "Signature")
    elif "X-Amz-Credential" in environ.get("QUERY_STRING", ""):
        fields = dict(parse_qsl(environ["QUERY_STRING"], keep_blank_values=True))
        timestamp, token = fields.get("X-Amz-Date", ""), fields.get("X-Amz-Security-Token")
        names = ("X-Amz-Credential", "X-Amz-SignedHeaders", "X-Amz-Signature")
    else:
        return None
    credential, signed, hexadecimal = (fields.get(name, "") for name in names)
    match = CREDENTIAL.match(credential)
    if match is None:
        return None
    access_key_id, date, region, service = match.groups()
    is_presigned = names[0] != "Credential"
    expires = int(fields.get("X-Amz-Expires", "3600")) if is_presigned else None
    headers = tuple(signed.lower().split(";"))
    return Signature(
        access_key_id, date, region, service.lower(), token, headers, hexadecimal, timestamp, is_presigned, expires
    )


def verify(environ: Mapping[str, Any], signature: Signature, secret: str, body: bytes | None) -> None:
    """Verify that a request was signed with a secret key and has not expired.

    Args:
        body: The request body, or None for an S3 stream, whose hash is read from the signed header.

    Raises:
        ApiError: SignatureDoesNotMatch, or AccessDenied for an expired presigned URL.
    """
    canonical = "\n".join(
        (
            environ["REQUEST_METHOD"],
            _canonical_path(environ, signature.service),
            _canonical_query(environ.get("QUERY_STRING", "")),
            "".join(f"{name}:{_header(environ, name)}\n" for name in signature.signed_headers),
            ";".join(signature.signed_headers),
            _payload_hash(environ, signature, body),
        )
    )
    scope = f"{signature.date}/{signature.region}/{signature.service}/aws4_request"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = "\n".join((ALGORITHM, signature.timestamp, scope, digest))
    key = _signing_key(secret, signature.date, signature.region, signature.service)
    if not hmac.compare_digest(_hmac(key, text).hex(), signature.hexadecimal):
        raise ApiError("SignatureDoesNotMatch", MISMATCH, 403)
    if signature.expires_seconds is not None:
        signed = datetime.strptime(signature.timestamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        if (datetime.now(UTC) - signed).total_seconds() > signature.expires_seconds:
            raise ApiError("AccessDenied", "Request has expired", 403)


def _canonical_path(environ: Mapping[str, Any], service: str) -> str:
    sent = environ.get("REQUEST_URI", "").split("?", 1)[0] or "/"
    if service == "s3":
        return quote(unquote(sent), safe="/~")
    return quote(sent, safe="/~")  # services other than S3 encode the path twice


def _canonical_query(query: str) -> str:
    pairs = (part.partition("=") for part in query.split("&") if part)
    encoded = ((quote(unquote(name), safe="~"), quote(unquote(value), safe="~")) for name, _, value in pairs)
    return "&".join(f"{name}={value}" for name, value in sorted(encoded) if name != "X-Amz-Signature")


def _header(environ: Mapping[str, Any], name: str) -> str:
    if name == "host":
        value = environ.get(SENT_HOST) or environ.get("HTTP_HOST", "")
    else:
        key = name.upper().replace("-", "_")
        value = environ.get(key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{key}", "")
    return " ".join(str(value).split())


def _payload_hash(environ: Mapping[str, Any], signature: Signature, body: bytes | None) -> str:
    declared = environ.get("HTTP_X_AMZ_CONTENT_SHA256")
    if signature.is_presigned and signature.service == "s3":
        return str(declared or "UNSIGNED-PAYLOAD")
    if signature.service == "s3" and declared and (body is None or len(declared) != hashlib.sha256().digest_size * 2):
        return str(declared)
    return hashlib.sha256(body or b"").hexdigest()


@functools.lru_cache(maxsize=256)
def _signing_key(secret: str, date: str, region: str, service: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in (date, region, service, "aws4_request"):
        key = _hmac(key, part)
    return key


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()
