"""Errors raised while running functions."""

from __future__ import annotations


class PackageRefused(Exception):
    """A deployment package cannot be unpacked: it has an unsafe member, is too large or is not a zip file."""


class SandboxFailed(Exception):
    """A function process cannot be started."""


class Throttled(Exception):
    """The function has reached its concurrency limit, and all of its processes are busy."""
