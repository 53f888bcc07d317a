"""Internal `localcloud.compute` errors, which are not API errors."""

from __future__ import annotations


class ComputeError(Exception):
    """Base class for errors in `localcloud.compute`."""


class UserDataError(ComputeError, ValueError):
    """The embedded cloud cannot run user data in this format."""


class ProcessTreeError(ComputeError):
    """An instance's processes could not be started or controlled."""


class AddressesExhausted(ComputeError):
    """A subnet has no free private addresses left."""
