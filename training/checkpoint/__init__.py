"""The checkpoint library. Saves run in the background while training continues.

Other trainers use :class:`Checkpointer` and :class:`Retention`, and load a trained model with :func:`load_weights`.
Each module imports only modules listed before it:

* `address`, `chunks`, `interval`, `manifest`, `state`: addresses, the byte format, the save interval, and a run's
state;
* `layout`, `retention`, `storage`: tensors as bytes, rules for keeping checkpoints, and object stores;
* `log`, `tags`, `store`: the commit log, tags, and reading;
* `gc`, `selection`, `save`: deleting, finding and writing checkpoints (`save` describes a save's steps);
* `resume`, `weights`, `opening`, `checkpointer`: loading, and the entry points for trainers;
* `tool`: ``python -m training checkpoint``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from training.checkpoint.checkpointer import Checkpointer
    from training.checkpoint.retention import Retention
    from training.checkpoint.weights import load_weights

__all__ = ["Checkpointer", "Retention", "load_weights"]


def __getattr__(name: str) -> Any:
    """Import public names on first use, because the writer process imports this package without torch."""
    modules = {"Checkpointer": "checkpointer", "Retention": "retention", "load_weights": "weights"}
    if name not in modules:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{modules[name]}"), name)
