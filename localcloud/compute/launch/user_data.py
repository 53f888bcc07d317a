"""Decodes and validates user data. The instance's init process runs it.

Sources of the errors: https://github.com/github-aws-runners/terraform-aws-github-runner/issues/3700 (launch templates),
https://github.com/supergiant/capacity/issues/148 (RunInstances).
"""

from __future__ import annotations

import base64
import binascii
import gzip
import zlib

from localcloud.api import ApiError, Call
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


def decode(encoded: str | None, code: str = "InvalidParameterValue") -> bytes:
    """Return decoded user data.

    Args:
        code: Code of the errors.

    Raises:
        ApiError: The user data is not in base64, or exceeds 16 KiB.
    """
    try:
        user_data = base64.b64decode(encoded or "", validate=True)
    except binascii.Error as error:
        raise ApiError(code, "Invalid BASE64 encoding of user data.") from error
    if len(user_data) > MAXIMUM_BYTES:
        raise ApiError(code, f"User data is limited to {MAXIMUM_BYTES} bytes")
    return user_data


def check_template(call: Call) -> None:
    """Check the user data of a new launch template or version.

    Raises:
        ApiError: InvalidUserData.Malformed.
    """
    if call.operation in ("CreateLaunchTemplate", "CreateLaunchTemplateVersion"):
        decode((call.parameters.get("LaunchTemplateData") or {}).get("UserData"), "InvalidUserData.Malformed")


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
        UserDataError: The user data is a corrupt gzip stream, or is neither a script nor plain data.
    """
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
