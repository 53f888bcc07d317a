"""Takes the frames off S3 uploads that are sent in signed or unsigned chunks, and checks a trailing CRC32.

The signatures of single chunks and other kinds of checksum are not verified; the request's own signature is
(`signature`).

Source: https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-streaming-trailers.html (2026-11).
"""

from __future__ import annotations

import base64
import zlib
from typing import Any

from localcloud.api import ApiError

LINE_BYTES = 128  # read ahead at most, in search of the end of a line
READ_BYTES = 1 << 20
CHECKSUM = "x-amz-checksum-crc32"


def unframe(environ: dict[str, Any]) -> None:
    """Let a WSGI request whose body is sent in chunks look like one whose body is not."""
    if not environ.get("HTTP_X_AMZ_CONTENT_SHA256", "").startswith("STREAMING-"):
        return
    environ["wsgi.input"] = UnframedBody(environ["wsgi.input"])
    environ["HTTP_X_AMZ_CONTENT_SHA256"] = "UNSIGNED-PAYLOAD"
    environ.pop("HTTP_TRANSFER_ENCODING", None)
    if "HTTP_X_AMZ_DECODED_CONTENT_LENGTH" in environ:
        environ["CONTENT_LENGTH"] = environ.pop("HTTP_X_AMZ_DECODED_CONTENT_LENGTH")
    encodings = [one.strip() for one in environ.pop("HTTP_CONTENT_ENCODING", "").split(",")]
    kept = [one for one in encodings if one and one != "aws-chunked"]
    if kept:
        environ["HTTP_CONTENT_ENCODING"] = ",".join(kept)


class UnframedBody:
    """A readable body without its frames.

    Raises:
        ApiError: IncompleteBody for broken frames, BadDigest for data that does not have the checksum it came with.
    """

    def __init__(self, framed: Any) -> None:
        self._framed = framed
        self._ahead = bytearray()
        self._ready = bytearray()
        self._ended = False
        self._crc32 = 0

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes, or all of the rest."""
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
        """Return the data of the next chunk; empty at the end, when the trailers have been read."""
        if self._ended:
            return b""
        line = self._line()
        try:
            length = int(line.split(b";", 1)[0], 16)
        except ValueError as error:
            raise ApiError("IncompleteBody", f"Not the length of a chunk: {line[:64]!r}") from error
        if length == 0:
            self._ended = True
            self._read_trailers()
            return b""
        data = self._take(length)
        if len(data) != length or self._line():
            raise ApiError("IncompleteBody", "The request body terminated unexpectedly")
        self._crc32 = zlib.crc32(data, self._crc32)
        return data

    def _take(self, size: int) -> bytes:
        """Return the next `size` bytes of the framed body, fewer at its end."""
        pieces = [bytes(self._ahead[:size])]
        del self._ahead[:size]
        missing = size - len(pieces[0])
        while missing and (piece := self._framed.read(min(missing, READ_BYTES))):
            pieces.append(piece)
            missing -= len(piece)
        return b"".join(pieces)

    def _line(self) -> bytes:
        # Not readline(): that of the server's reader of chunked transfers does not end (cheroot 11.1).
        while b"\n" not in self._ahead and (piece := self._framed.read(LINE_BYTES)):
            self._ahead += piece
        line, _, rest = bytes(self._ahead).partition(b"\n")
        self._ahead = bytearray(rest)
        return line.rstrip(b"\r")

    def _read_trailers(self) -> None:
        while line := self._line():
            name, _, value = line.decode("latin-1").partition(":")
            if name.strip().lower() == CHECKSUM:
                found = base64.b64encode(self._crc32.to_bytes(4, "big")).decode()
                if found != value.strip():
                    raise ApiError("BadDigest", f"The CRC32 you specified did not match the calculated {found}.")
