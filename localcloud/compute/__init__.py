"""EC2 instances as real processes, their metadata service, Auto Scaling, and spot interruption.

Importing this package is cheap on purpose: each instance's init process does it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from localcloud.compute.services import ComputeServices

__all__ = ["ComputeServices"]


def __getattr__(name: str) -> Any:
    if name == "ComputeServices":
        from localcloud.compute.services import ComputeServices

        return ComputeServices
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
