"""Guards the control API, whose requests are not signed.

A request needs a token. Browsers also send web pages' requests to 127.0.0.1, and use the page's host name if that name
resolves to 127.0.0.1 (DNS rebinding). Requests are therefore also rejected if they have an Origin header, or a Host
header that is not the cloud's own address. Sources (2026-11): https://fetch.spec.whatwg.org/#origin-header,
https://developer.mozilla.org/en-US/docs/Web/HTTP/Reference/Headers/Sec-Fetch-Site
"""

from __future__ import annotations

import hmac
import json
from typing import Any

from localcloud.http.addressing import SENT_HOST
from localcloud.tokens import TOKEN_HEADER, control_token, power_token

HOSTS = ("127.0.0.1", "localhost", "[::1]")
POWER_PATH = "compute/poweroff"
CALLBACK_PATH = "cloudformation/response/"
"""Prefix of the paths to which custom resources' functions send responses. The rest of the path is a token."""
_HEADER = "HTTP_" + TOKEN_HEADER.upper().replace("-", "_")


class Door:
    """Decides which requests reach the control API.

    Args:
        root_secret: The root user's secret key, from which the tokens are derived.
    """

    def __init__(self, root_secret: str) -> None:
        self._root_secret = root_secret

    def refusal(self, environ: dict[str, Any], path: str, body: bytes) -> str | None:
        """Return the reason for rejecting a request, or None to accept it.

        Args:
            environ: The request's WSGI environment.
            path: The path after /_localcloud/.
            body: The request's complete body.
        """
        host = str(environ.get(SENT_HOST) or environ.get("HTTP_HOST", ""))
        if host.lower() not in {f"{name}:{environ.get('SERVER_PORT', '')}" for name in HOSTS}:
            return f"Host: {host!r} is not an address of this cloud; use 127.0.0.1 and the port in cloud.json"
        for name in ("HTTP_ORIGIN", "HTTP_SEC_FETCH_SITE"):
            if name in environ:
                header = name.removeprefix("HTTP_").replace("_", "-").title()
                return f"{header}: web pages cannot call the control API; use python -m localcloud"
        if path.startswith(CALLBACK_PATH) or self._is_known(str(environ.get(_HEADER, "")), path, body):
            return None
        return (
            f"{TOKEN_HEADER}: missing or wrong; use python -m localcloud, or derive the token from the secret key in "
            "cloud.json with localcloud.tokens.control_token"
        )

    def _is_known(self, token: str, path: str, body: bytes) -> bool:
        known = [control_token(self._root_secret)]
        if path == POWER_PATH and (instance_id := _instance_of(body)) is not None:
            known.append(power_token(self._root_secret, instance_id))
        return any(hmac.compare_digest(token.encode(), one.encode()) for one in known)


def _instance_of(body: bytes) -> str | None:
    try:
        order = json.loads(body)
    except (ValueError, RecursionError):
        return None
    found = order.get("instance_id") if isinstance(order, dict) else None
    return found if isinstance(found, str) else None
