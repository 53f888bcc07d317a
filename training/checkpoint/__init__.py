"""Checkpoints that nobody waits for; for other trainers, :class:`training.checkpoint.checkpointer.Checkpointer`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from training.checkpoint.checkpointer import Checkpointer

__all__ = ["Checkpointer"]


def __getattr__(name: str) -> Any:
    """Import the Checkpointer when it is asked for: the writer process uses this package without torch."""
    if name != "Checkpointer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from training.checkpoint.checkpointer import Checkpointer

    return Checkpointer
