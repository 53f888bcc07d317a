"""What a supervisor remembers over its own restart."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

from bootstrap.layout import Layout
from bootstrap.system import System

FAILURE_LIMIT = 3


@dataclass(frozen=True)
class Memory:
    """When this node joined, and how often the run failed in a row without saving a further step.

    `failures` and `saved_step` belong to the run document of `run_digest`.
    """

    instance_id: str
    joined_unix_seconds: float
    run_digest: str = ""
    failures: int = 0
    saved_step: int = 0

    def after_generation(self, run_digest: str, *, failed: bool, saved_step: int) -> Memory:
        """Return the memory after a generation of `run_digest` that saved up to `saved_step`."""
        before = (
            self if self.run_digest == run_digest else replace(self, run_digest=run_digest, failures=0, saved_step=0)
        )
        further = saved_step > before.saved_step
        failures = before.failures if not failed else 1 if further else before.failures + 1
        if further and not failed:
            failures = 0
        return replace(before, failures=failures, saved_step=max(saved_step, before.saved_step))

    def forgiven(self) -> Memory:
        """Return the memory without its failures: they are recorded, and whoever removes the record wants a new try."""
        return replace(self, failures=0)

    @property
    def gives_up(self) -> bool:
        """Whether another try would be a waste of money."""
        return self.failures >= FAILURE_LIMIT


def recall(system: System, layout: Layout, instance_id: str) -> Memory:
    """Return what an earlier supervisor on this machine left, or a fresh memory."""
    fresh = Memory(instance_id, system.unix_seconds())
    text = system.read(layout.supervisor_state)
    if text is None:
        return fresh
    try:
        memory = Memory(**json.loads(text))
    except (ValueError, TypeError):  # of another version, or damaged: joining anew costs nothing but the order
        return fresh
    # A disk that was copied into an image would bring the memory of another machine.
    return memory if memory.instance_id == instance_id else fresh


def keep(system: System, layout: Layout, memory: Memory) -> None:
    """Write the memory."""
    system.write_atomic(layout.supervisor_state, json.dumps(asdict(memory)) + "\n")
