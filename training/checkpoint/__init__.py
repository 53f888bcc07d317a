"""Checkpoints that nobody waits for.

For other trainers: :class:`training.checkpoint.checkpointer.Checkpointer`, and
:func:`training.checkpoint.weights.load_weights` for whoever only uses a trained model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from training.checkpoint.checkpointer import Checkpointer
    from training.checkpoint.weights import load_weights

__all__ = ["Checkpointer", "load_weights"]


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is asked for: the writer process uses this package without it."""
    if name == "Checkpointer":
        from training.checkpoint.checkpointer import Checkpointer

        return Checkpointer
    if name == "load_weights":
        from training.checkpoint.weights import load_weights

        return load_weights
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
