"""api.Service for all of Auto Scaling: what is not emulated is refused in words, nothing goes to moto."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import botocore.session

from localcloud.api import ApiError, Call, Handler, Observer
from localcloud.compute.autoscaling.reconciler import Reconciler


class AutoScalingService:
    """Joins the handlers of all calls, and refuses the others."""

    name = "autoscaling"

    def __init__(self, reconciler: Reconciler, *handlers: Mapping[str, Handler]) -> None:
        model = botocore.session.get_session().get_service_model(self.name)
        self._handlers: dict[str, Handler] = dict.fromkeys(model.operation_names, _refuse)
        for part in handlers:
            self._handlers.update(part)
        self._reconciler = reconciler

    def operations(self) -> Mapping[str, Handler]:
        """Return a handler for every operation of the service."""
        return self._handlers

    def observers(self) -> Mapping[tuple[str, str], Observer]:
        """Return nothing."""
        return {}

    def http(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Answer nothing."""
        return 404, b""

    def close(self) -> None:
        """Stop bringing groups to their size."""
        self._reconciler.close()


def _refuse(call: Call) -> Mapping[str, Any]:
    raise ApiError(
        "UnsupportedOperation", f"{call.operation}: the local cloud's Auto Scaling does not emulate it.", 400
    )
