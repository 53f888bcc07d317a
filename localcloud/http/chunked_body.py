"""Decodes S3 uploads in signed or unsigned chunks (aws-chunked) and verifies the digests of uploads.

Chunk signatures are not verified; `signature` verifies the request's signature.

Sources (2026-11): https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-streaming-trailers.html,
https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity-upload.html
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib
from collections.abc import Mapping
from typing import Any

from localcloud.api import ApiError

LINE_BYTES = 128  # bytes read at a time when looking for the end of a line
READ_BYTES = 1 << 20
CHECKSUM = "x-amz-checksum-"
DIGEST_BYTES = {"crc32": 4, "sha1": 20, "sha256": 32}
# Suffixes of headers that describe a checksum but do not contain it.
CHECKSUM_PROPERTIES = ("algorithm", "mode", "type")


def decode_body(environ: dict[str, Any], *, is_checksum_of_body: bool) -> None:
    """Replace a WSGI request's body with one that is decoded and whose digests are verified.

    Args:
        is_checksum_of_body: False if the request's checksum header does not describe the request's body.

    Raises:
        ApiError: InvalidDigest or InvalidRequest for a malformed digest, NotImplemented for an unsupported one.
    """
    source = environ["wsgi.input"]
    if environ.get("HTTP_X_AMZ_CONTENT_SHA256", "").startswith("STREAMING-"):
        source = DecodedBody(source)
        environ["HTTP_X_AMZ_CONTENT_SHA256"] = "UNSIGNED-PAYLOAD"
        environ.pop("HTTP_TRANSFER_ENCODING", None)
        if "HTTP_X_AMZ_DECODED_CONTENT_LENGTH" in environ:
            environ["CONTENT_LENGTH"] = environ.pop("HTTP_X_AMZ_DECODED_CONTENT_LENGTH")
        encodings = [one.strip() for one in environ.pop("HTTP_CONTENT_ENCODING", "").split(",")]
        kept = [one for one in encodings if one and one != "aws-chunked"]
        if kept:
            environ["HTTP_CONTENT_ENCODING"] = ",".join(kept)
    checksum = _checksum(environ) if is_checksum_of_body else None
    environ["wsgi.input"] = VerifiedBody(source, checksum, _content_md5(environ))


def _content_md5(environ: Mapping[str, Any]) -> str | None:
    value = environ.get("HTTP_CONTENT_MD5")
    if value is not None and not _is_base64(value, hashlib.md5(usedforsecurity=False).digest_size):
        raise ApiError("InvalidDigest", "The Content-MD5 you specified was invalid.")
    return value


def _checksum(environ: Mapping[str, Any]) -> tuple[str, str | None] | None:
    """Return the checksum's algorithm and value. The value is None if a trailer contains it."""
    prefix = "HTTP_" + CHECKSUM.upper().replace("-", "_")
    values = {name.removeprefix(prefix).lower(): value for name, value in environ.items() if name.startswith(prefix)}
    found: dict[str, str | None] = {name: one for name, one in values.items() if name not in CHECKSUM_PROPERTIES}
    trailer = environ.get("HTTP_X_AMZ_TRAILER", "").strip().lower()
    if trailer.startswith(CHECKSUM):
        found[trailer.removeprefix(CHECKSUM)] = None
    if len(found) > 1:
        rule = "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed."
        raise ApiError("InvalidRequest", rule)
    for algorithm, value in found.items():
        require_algorithm(algorithm)
        if value is not None and not _is_base64(value, DIGEST_BYTES[algorithm]):
            raise ApiError("InvalidRequest", f"Value for {CHECKSUM}{algorithm} header is invalid.")
    return next(iter(found.items()), None)


def require_algorithm(algorithm: str) -> None:
    """Reject a checksum algorithm that the embedded cloud cannot compute.

    Raises:
        ApiError: NotImplemented.
    """
    if algorithm.lower() not in DIGEST_BYTES:
        supported = ", ".join(name.upper() for name in DIGEST_BYTES)
        message = f"the embedded cloud does not compute {algorithm.upper()} checksums; use one of: {supported}"
        raise ApiError("NotImplemented", message, 501)


def _is_base64(value: str, size: int) -> bool:
    try:
        return len(base64.b64decode(value, validate=True)) == size
    except binascii.Error:
        return False


def checksum_of(algorithm: str, data: bytes) -> str:
    """Return the Base64 checksum of `data`."""
    digest = _Digest(algorithm.lower())
    digest.update(data)
    return digest.text()


class _Digest:
    """An incremental checksum."""

    def __init__(self, algorithm: str) -> None:
        self._crc32 = 0
        self._hash = None if algorithm == "crc32" else hashlib.new(algorithm, usedforsecurity=False)

    def update(self, data: bytes) -> None:
        if self._hash is None:
            self._crc32 = zlib.crc32(data, self._crc32)
        else:
            self._hash.update(data)

    def text(self) -> str:
        digest = self._crc32.to_bytes(4, "big") if self._hash is None else self._hash.digest()
        return base64.b64encode(digest).decode()


class VerifiedBody:
    """File-like body that, at its end, compares its digests with those in the request.

    Raises:
        ApiError: BadDigest.
    """

    def __init__(self, source: Any, checksum: tuple[str, str | None] | None, content_md5: str | None) -> None:
        self._source = source
        self._algorithm, self._expected = checksum or ("", None)
        self._content_md5 = content_md5
        wanted = ([self._algorithm] if checksum else []) + (["md5"] if content_md5 else [])
        self._digests = {name: _Digest(name) for name in wanted}

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes, or all remaining bytes."""
        # With read(-1), the server's reader of a body with a known length does not stop at the body's end.
        data: bytes = self._source.read() if size < 0 else self._source.read(size)
        for digest in self._digests.values():
            digest.update(data)
        if size < 0 or len(data) < size:
            self._verify()
        return data

    def _verify(self) -> None:
        expected = self._expected or getattr(self._source, "trailers", {}).get(CHECKSUM + self._algorithm)
        if expected is not None and self._digests[self._algorithm].text() != expected:
            name = self._algorithm.upper()
            raise ApiError("BadDigest", f"The {name} you specified did not match the calculated checksum.")
        if self._content_md5 is not None and self._digests["md5"].text() != self._content_md5:
            raise ApiError("BadDigest", "The Content-MD5 you specified did not match what we received.")


class DecodedBody:
    """File-like body decoded from aws-chunked encoding. `trailers` is complete when the body has been read.

    Raises:
        ApiError: IncompleteBody for invalid chunks.
    """

    def __init__(self, encoded: Any) -> None:
        self.trailers: dict[str, str] = {}
        self._encoded = encoded
        self._ahead = bytearray()
        self._ready = bytearray()
        self._ended = False

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes, or all remaining bytes."""
        if size < 0:
            pieces = [bytes(self._ready)]
            self._ready.clear()
            while piece := self._next():
                pieces.append(piece)
            return b"".join(pieces)
        while len(self._ready) < size and (piece := self._next()):
            self._ready += piece
        taken = bytes(self._ready[:size])
        del self._ready[:size]
        return taken

    def _next(self) -> bytes:
        """Return the data of the next chunk, or empty bytes after the trailers."""
        if self._ended:
            return b""
        line = self._line()
        try:
            length = int(line.split(b";", 1)[0], 16)
        except ValueError as error:
            raise ApiError("IncompleteBody", f"Invalid chunk length: {line[:64]!r}") from error
        if length == 0:
            self._ended = True
            self._read_trailers()
            return b""
        data = self._take(length)
        if len(data) != length or self._line():
            raise ApiError("IncompleteBody", "The request body terminated unexpectedly")
        return data

    def _take(self, size: int) -> bytes:
        """Return the next `size` bytes of the encoded body, or fewer at its end."""
        pieces = [bytes(self._ahead[:size])]
        del self._ahead[:size]
        missing = size - len(pieces[0])
        while missing and (piece := self._encoded.read(min(missing, READ_BYTES))):
            pieces.append(piece)
            missing -= len(piece)
        return b"".join(pieces)

    def _line(self) -> bytes:
        # readline() never returns in the server's chunked-transfer reader (cheroot 11.1).
        while b"\n" not in self._ahead and (piece := self._encoded.read(LINE_BYTES)):
            self._ahead += piece
        line, _, rest = bytes(self._ahead).partition(b"\n")
        self._ahead = bytearray(rest)
        return line.rstrip(b"\r")

    def _read_trailers(self) -> None:
        while line := self._line():
            name, _, value = line.decode("latin-1").partition(":")
            self.trailers[name.strip().lower()] = value.strip()
