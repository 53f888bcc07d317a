"""User data: decoding, and deciding whether this cloud can run it.

Not here: running it (`init`).
"""

from __future__ import annotations

import gzip
import zlib

from localcloud.compute.errors import UserDataError

MAXIMUM_BYTES = 16 * 1024
"""Limit of user data before base64. Source: docs.aws.amazon.com/AWSEC2/latest/UserGuide/user-data.html, 2026-11."""

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
    """Return user data as the guest sees it: decompressed when it is a gzip stream, as cloud-init does.

    Raises:
        UserDataError: a broken gzip stream.
    """
    if not user_data.startswith(b"\x1f\x8b"):
        return user_data
    try:
        return gzip.decompress(user_data)
    except (OSError, EOFError, zlib.error) as error:
        raise UserDataError(f"UserData: starts like a gzip stream but cannot be decompressed: {error}") from error


def check_runnable(user_data: bytes) -> None:
    """Refuse the kinds of user data that only a full cloud-init can play.

    Raises:
        UserDataError: user data over 16 KiB, a broken gzip stream, or a kind other than a script or plain data.
    """
    if len(user_data) > MAXIMUM_BYTES:
        raise UserDataError(f"User data is limited to {MAXIMUM_BYTES} bytes, got {len(user_data)}")
    head = plain(user_data)[:64].lstrip().lower()
    for prefix, kind in _REFUSED.items():
        if head.startswith(prefix):
            raise UserDataError(
                f"UserData: is {kind}; the local cloud runs scripts that start with '#!' (gzip allowed), "
                "write the same steps as a script"
            )


def is_script(user_data: bytes) -> bool:
    """Tell whether the guest runs this user data as a program."""
    return plain(user_data).startswith(b"#!")
