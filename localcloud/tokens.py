"""Tokens for the control API, derived from the root user's secret key.

Anyone who has the secret key can derive every token, but a token discloses neither the key nor another token.
"""

from __future__ import annotations

import hashlib
import hmac

TOKEN_HEADER = "X-Localcloud-Token"  # noqa: S105 - a header's name


def control_token(root_secret: str) -> str:
    """Return the token for the control API."""
    return _derived(root_secret, "control")


def power_token(root_secret: str, instance_id: str) -> str:
    """Return the token that lets an instance power off or restart itself."""
    return _derived(root_secret, f"power {instance_id}")


def _derived(root_secret: str, purpose: str) -> str:
    return hmac.new(root_secret.encode(), purpose.encode(), hashlib.sha256).hexdigest()
