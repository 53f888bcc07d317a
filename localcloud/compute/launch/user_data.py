"""Decodes and validates user data. The instance's init process runs it."""

from __future__ import annotations

import gzip
import zlib

from localcloud.compute.errors import UserDataError

MAXIMUM_BYTES = 16 * 1024
"""Maximum size before base64 encoding. Source: docs.aws.amazon.com/AWSEC2/latest/UserGuide/user-data.html, 2026-11."""

_REFUSED = {
    b"#cloud-config": "cloud-config",
    b"#include": "an include list",
    b"#upstart-job": "an upstart job",
    b"#part-handler": "a part handler",
    b"#cloud-boothook": "a boot hook",
    b"## template:": "a Jinja template",
    b"content-type: multipart": "a MIME multi-part archive",
    b"mime-version:": "a MIME archive",
}


def plain(user_data: bytes) -> bytes:
    """Return user data as the guest sees it. Like cloud-init, decompress gzip streams.

    Raises:
        UserDataError: The gzip stream is corrupt.
    """
    if not user_data.startswith(b"\x1f\x8b"):
        return user_data
    try:
        return gzip.decompress(user_data)
    except (OSError, EOFError, zlib.error) as error:
        raise UserDataError(f"UserData: the gzip stream cannot be decompressed: {error}") from error


def check_runnable(user_data: bytes) -> None:
    """Reject user data that requires a complete cloud-init.

    Raises:
        UserDataError: The user data exceeds 16 KiB, is a corrupt gzip stream, or is neither a script nor plain data.
    """
    if len(user_data) > MAXIMUM_BYTES:
        raise UserDataError(f"User data is limited to {MAXIMUM_BYTES} bytes, got {len(user_data)}")
    head = plain(user_data)[:64].lstrip().lower()
    for prefix, kind in _REFUSED.items():
        if head.startswith(prefix):
            raise UserDataError(
                f"UserData: {kind} is not supported. The embedded cloud runs only scripts that start with '#!' and may "
                "be gzipped; convert the steps to a script"
            )


def is_script(user_data: bytes) -> bool:
    """Return True if the guest runs this user data as a program."""
    return plain(user_data).startswith(b"#!")
