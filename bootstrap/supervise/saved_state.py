"""State that the supervisor keeps across restarts."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

from bootstrap.layout import Layout
from bootstrap.system import System

MAX_FAILURES = 3


@dataclass(frozen=True)
class SavedState:
    """This node's join time, and a run document's consecutive failures.

    Attributes:
        instance_id: This instance's id.
        joined_unix_seconds: Time when the node joined. The order of these times is the rank order.
        run_digest: Digest of the run document that `failures` and `saved_step` refer to.
        failures: Number of consecutive failed generations without a new checkpoint.
        saved_step: Last saved step.
    """

    instance_id: str
    joined_unix_seconds: float
    run_digest: str = ""
    failures: int = 0
    saved_step: int = 0

    def after_generation(self, run_digest: str, *, failed: bool, saved_step: int) -> SavedState:
        """Return the state after a generation of `run_digest` whose last save was at `saved_step`."""
        before = (
            self if self.run_digest == run_digest else replace(self, run_digest=run_digest, failures=0, saved_step=0)
        )
        progressed = saved_step > before.saved_step
        failures = before.failures if not failed else 1 if progressed else before.failures + 1
        if progressed and not failed:
            failures = 0
        return replace(before, failures=failures, saved_step=max(saved_step, before.saved_step))

    def without_failures(self) -> SavedState:
        """Return the state without failures. The outcome has been recorded, and deleting it requests a retry."""
        return replace(self, failures=0)

    @property
    def has_failed(self) -> bool:
        """Whether the run has failed too often to be retried."""
        return self.failures >= MAX_FAILURES


def load_state(system: System, layout: Layout, instance_id: str) -> SavedState:
    """Return the state saved by an earlier supervisor on this instance, or a new state."""
    new = SavedState(instance_id, system.unix_seconds())
    text = system.read(layout.supervisor_state)
    if text is None:
        return new
    try:
        state = SavedState(**json.loads(text))
    except (ValueError, TypeError):  # damaged, or from a different version; a new state only changes the join order
        return new
    # An image created from a node's disk contains that node's state.
    return state if state.instance_id == instance_id else new


def save_state(system: System, layout: Layout, state: SavedState) -> None:
    """Write the state."""
    system.write_atomic(layout.supervisor_state, json.dumps(asdict(state)) + "\n")
