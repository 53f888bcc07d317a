"""What can go wrong between the local cloud and a function process or an event rule."""

from __future__ import annotations


class FunctionsError(Exception):
    """Base of every error that localcloud.functions raises to its own callers."""


class PackageRefused(FunctionsError):
    """A deployment package or layer cannot be unpacked: unsafe member, too large, or not a zip file."""


class SandboxFailed(FunctionsError):
    """A function process could not be started at all."""


class Throttled(FunctionsError):
    """As many processes of the function are busy as its reserved concurrency admits."""


class InvalidPattern(FunctionsError, ValueError):
    """An event pattern that EventBridge would refuse; the message says where and why."""


class InvalidSchedule(FunctionsError, ValueError):
    """A schedule expression that EventBridge would refuse; the message says which field and why."""


class InvalidTransform(FunctionsError, ValueError):
    """An input path or input template that cannot be applied to an event."""


class TargetRefused(FunctionsError):
    """An event cannot be given to a target: kind not served here, or the target's policy does not admit it."""
