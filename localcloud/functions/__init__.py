"""Lambda functions as real processes, and the event bus with its rules and schedules."""

from localcloud.functions.bus import LocalEventBus
from localcloud.functions.service import FunctionService

__all__ = ["FunctionService", "LocalEventBus"]
