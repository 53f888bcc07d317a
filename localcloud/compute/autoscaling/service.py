"""api.Service for Auto Scaling. It rejects operations that it does not emulate, and never forwards calls to moto."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import botocore.session

from localcloud.api import ApiError, Call, Handler, Service
from localcloud.control_loop import ControlLoop


class AutoScalingService(Service):
    """Combines the handlers for all emulated operations."""

    name = "autoscaling"

    def __init__(self, loop: ControlLoop[Any], *handlers: Mapping[str, Handler]) -> None:
        model = botocore.session.get_session().get_service_model(self.name)
        self._handlers: dict[str, Handler] = dict.fromkeys(model.operation_names, _refuse)
        for part in handlers:
            self._handlers.update(part)
        self._loop = loop

    def operations(self) -> Mapping[str, Handler]:
        """Return a handler for every operation of the service."""
        return self._handlers

    def close(self) -> None:
        """Stop reconciling groups."""
        self._loop.close()


def _refuse(call: Call) -> Mapping[str, Any]:
    raise ApiError("UnsupportedOperation", f"{call.operation}: not emulated by the embedded cloud's Auto Scaling.", 400)
