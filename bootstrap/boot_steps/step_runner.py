"""Boot steps and their runner. For each step, the runner checks, acts, verifies, writes a marker and emits an event.

Steps run concurrently unless `after` orders them. `bootstrap/boot_steps/boot_sequence.py` lists the steps, and `boot`
handles failures.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
from collections.abc import Sequence
from typing import ClassVar, Literal

from bootstrap.context import Context
from bootstrap.errors import BootstrapError, StepError
from bootstrap.events.schema import BootStep

logger = logging.getLogger(__name__)


class Step:
    """An idempotent boot step.

    `plan` prints the first line of the class docstring.

    Attributes:
        name: Unique name.
        after: Names of the steps that must finish first.
        may_be_skipped: Whether to skip the step if its marker contains the current `digest` and `is_done` returns True.
            Other steps run at every boot.
    """

    name: ClassVar[str]
    after: ClassVar[tuple[str, ...]] = ()
    may_be_skipped: ClassVar[bool] = False

    def digest(self, context: Context) -> str:
        """Return the digest of the step's inputs. The step runs again if its marker contains a different digest."""
        return context.node.digest()

    def is_done(self, context: Context) -> bool:
        """Return True if the step's result exists. Called only for steps that may be skipped."""
        raise NotImplementedError

    def intent(self, context: Context) -> list[str]:
        """Describe what the step would do on this machine, without changing anything.

        Raises:
            BootstrapError: The step would fail.
        """
        return []

    def act(self, context: Context) -> None:
        """Do the work. The default implementation does nothing.

        Raises:
            BootstrapError: The step failed.
        """

    def verify(self, context: Context) -> None:
        """Verify the result. The default implementation does nothing.

        Raises:
            BootstrapError: The result is missing or wrong.
        """


class StepRunError(BootstrapError):
    """A step failed. The exception contains the step and its error."""

    def __init__(self, step: str, error: StepError) -> None:
        super().__init__(f"{step}: {error.message}")
        self.step = step
        self.error = error


def check_order(steps: Sequence[Step]) -> None:
    """Check that each step is listed after the steps that it depends on, so that the printed order is valid.

    Raises:
        ValueError: A step depends on an unknown or later step, or two steps have the same name.
    """
    seen: set[str] = set()
    for step in steps:
        if step.name in seen:
            raise ValueError(f"duplicate step name: {step.name}")
        missing = [name for name in step.after if name not in seen]
        if missing:
            raise ValueError(f"step {step.name} is listed before {', '.join(missing)}, which must run first")
        seen.add(step.name)


def run_steps(steps: Sequence[Step], context: Context, *, timeout_seconds: float) -> None:
    """Run each step as soon as the steps that it depends on are done.

    After a failure, no further steps start and running steps are abandoned, because the instance will shut down.

    Raises:
        StepRunError: A step failed, or the steps took longer than `timeout_seconds`.
    """
    check_order(steps)
    deadline = context.system.monotonic_seconds() + timeout_seconds
    ended: queue.Queue[tuple[Step, StepError | None]] = queue.Queue()
    waiting, running, done = list(steps), set[str](), set[str]()
    while waiting or running:
        for step in [step for step in waiting if done.issuperset(step.after)]:
            waiting.remove(step)
            running.add(step.name)
            threading.Thread(target=_run_step, args=(step, context, ended), name=step.name, daemon=True).start()
        try:
            step, problem = ended.get(timeout=max(0.0, deadline - context.system.monotonic_seconds()))
        except queue.Empty:
            raise _timed_out(running, timeout_seconds) from None
        running.discard(step.name)
        if problem is not None:
            raise StepRunError(step.name, problem)
        done.add(step.name)


def _timed_out(running: set[str], timeout_seconds: float) -> StepRunError:
    names = ", ".join(sorted(running))
    error = StepError(
        f"boot took longer than boot_timeout_seconds ({timeout_seconds:g}); still running: {names}",
        remedy="check what these steps are waiting for, or raise node.boot_timeout_seconds",
    )
    return StepRunError(names, error)


def _run_step(step: Step, context: Context, ended: queue.Queue[tuple[Step, StepError | None]]) -> None:
    started_unix, started = context.system.unix_seconds(), context.system.monotonic_seconds()
    problem: StepError | None = None
    outcome: Literal["done", "skipped", "failed"] = "failed"
    try:
        outcome = "done" if _advance(step, context) else "skipped"
    except StepError as error:
        problem = error
    except (BootstrapError, OSError) as error:
        problem = StepError(str(error), remedy="see the message")
    except Exception as error:  # noqa: BLE001 top level of a thread: a bug must not hang the boot
        logger.exception("step %s", step.name)
        problem = StepError(f"{type(error).__name__}: {error}", remedy="this is a bug in the node program; report it")
    context.events.emit(
        BootStep(
            step=step.name,
            seconds=round(context.system.monotonic_seconds() - started, 3),
            started_unix_seconds=round(started_unix, 3),
            ended_unix_seconds=round(context.system.unix_seconds(), 3),
            outcome=outcome,
        )
    )
    ended.put((step, problem))


def _advance(step: Step, context: Context) -> bool:
    """Run the step. Return False if it was skipped."""
    digest = step.digest(context)
    if step.may_be_skipped and _marker_digest(context, step) == digest and step.is_done(context):
        return False
    step.act(context)
    step.verify(context)
    marker = {"digest": digest, "finished_unix_seconds": round(context.system.unix_seconds(), 3)}
    context.system.write_atomic(context.layout.marker(step.name), json.dumps(marker) + "\n")
    return True


def _marker_digest(context: Context, step: Step) -> str | None:
    text = context.system.read(context.layout.marker(step.name))
    if text is None:
        return None
    try:
        marker = json.loads(text)
    except ValueError:
        return None  # an unreadable marker does not prove that the step ran
    return marker.get("digest") if isinstance(marker, dict) else None
