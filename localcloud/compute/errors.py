"""Internal `localcloud.compute` errors, which are not API errors."""

from __future__ import annotations


class ComputeError(Exception):
    """Base class for errors in `localcloud.compute`."""


class UserDataError(ComputeError, ValueError):
    """The user data has a format that the embedded cloud cannot run."""


class ProcessTreeError(ComputeError):
    """An instance's processes could not be started or controlled."""


class AddressesExhausted(ComputeError):
    """A subnet does not have any free private addresses left."""
