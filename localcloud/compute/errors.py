"""What can go wrong in the local cloud's compute, below the level of an API answer."""

from __future__ import annotations


class ComputeError(Exception):
    """Base of all errors of `localcloud.compute`."""


class UserDataError(ComputeError, ValueError):
    """User data of a kind that the local cloud does not run."""


class ProcessTreeError(ComputeError):
    """An instance's processes could not be started or controlled."""


class AddressesExhausted(ComputeError):
    """A subnet has no free private address left."""
