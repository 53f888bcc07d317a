"""Credentials of instance roles: one session an instance, renewed well before it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from localcloud.api import CredentialIssuer, Credentials
from localcloud.compute.instance import Instance

SESSION_SECONDS = 6 * 3600
"""How long EC2's role sessions last."""
RENEWAL_SECONDS = 3600
"""New credentials appear this long before the old ones end; the SDKs begin to ask for them 15 minutes before."""


class InstanceCredentials:
    """Issues and keeps the credentials that instances get from their metadata service."""

    def __init__(self, issuer: CredentialIssuer, clock: Callable[[], float] = time.time) -> None:
        self._issuer = issuer
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[str, Credentials] = {}

    def of(self, instance: Instance) -> Credentials:
        """Return credentials of the instance's role that last at least `RENEWAL_SECONDS`.

        Raises:
            ApiError: the role does not trust EC2 or is gone.
        """
        profile = instance.specification.profile
        assert profile is not None, "asked only for instances with a profile"
        with self._lock:
            kept = self._kept.get(instance.id)
            if kept is None or kept.expires_unix_seconds - self._clock() < RENEWAL_SECONDS:
                kept = self._issuer.issue(
                    profile.role_arn, instance.id, trusted_service="ec2.amazonaws.com", duration_seconds=SESSION_SECONDS
                )
                self._kept[instance.id] = kept
            return kept

    def forget(self, instance_id: str) -> None:
        """Drop what an ended instance had."""
        with self._lock:
            self._kept.pop(instance_id, None)
