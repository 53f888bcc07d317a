"""The ordered steps of a boot, and the runner: look, act, verify, leave a marker, say how long it took.

Steps whose `after` steps are done run at the same time. The steps themselves are in `steps`; what happens after a
failure (report, give the machine back) is in `boot`.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from bootstrap.aws import Aws
from bootstrap.documents import NodeDocument, RunDocument
from bootstrap.errors import BootstrapError, StepError
from bootstrap.events import EventLog
from bootstrap.imds import InstanceIdentity, InstanceMetadata
from bootstrap.layout import Layout
from bootstrap.system import System

logger = logging.getLogger(__name__)


@dataclass
class Context:
    """What the steps work with; `identity` and `run` are filled in by the steps of those names.

    `unloaded` are mounts of volumes that should be loaded by EBS, and are not.
    """

    system: System
    layout: Layout
    node: NodeDocument
    aws: Aws
    metadata: InstanceMetadata
    events: EventLog
    identity: InstanceIdentity | None = None
    run: RunDocument | None = None
    unloaded: set[str] = field(default_factory=set)


class Step:
    """One idempotent thing that must be true before training.

    `after` names the steps that must be done before. The class docstring's first line is what `plan` prints.
    """

    name: ClassVar[str]
    after: ClassVar[tuple[str, ...]] = ()
    # Such a step is skipped when its marker holds the digest below and `look` agrees; the others run on each boot.
    may_be_skipped: ClassVar[bool] = False

    def digest(self, context: Context) -> str:
        """Return the digest of what the step depends on; another digest than the marker's runs the step again."""
        return context.node.digest()

    def look(self, context: Context) -> bool:
        """Return whether what the step does is there already; asked only of steps that may be skipped."""
        raise NotImplementedError

    def intent(self, context: Context) -> list[str]:
        """Say in a line each what it would do to this machine; looks, and changes nothing.

        Raises:
            BootstrapError: It could not be done.
        """
        return []

    def act(self, context: Context) -> None:
        """Do it.

        Raises:
            BootstrapError: It cannot be done.
        """
        raise NotImplementedError

    def verify(self, context: Context) -> None:
        """Make sure that it is really so.

        Raises:
            BootstrapError: It is not.
        """
        raise NotImplementedError


class PlanError(BootstrapError):
    """A plan that failed: which step, and why."""

    def __init__(self, step: str, error: StepError) -> None:
        super().__init__(f"{step}: {error.message}")
        self.step = step
        self.error = error


def check_order(steps: Sequence[Step]) -> None:
    """Make sure that each step comes after those it names, so that the printed order is a possible one.

    Raises:
        ValueError: A step names one that is unknown or later, or two have one name.
    """
    seen: set[str] = set()
    for step in steps:
        if step.name in seen:
            raise ValueError(f"two steps are called {step.name}")
        missing = [name for name in step.after if name not in seen]
        if missing:
            raise ValueError(f"step {step.name} comes after {', '.join(missing)}, not before")
        seen.add(step.name)


def run_plan(steps: Sequence[Step], context: Context, *, timeout_seconds: float) -> None:
    """Run every step, each as soon as those before it are done.

    After a failure no further step starts, and those under way are left behind: the machine is to be given back.

    Raises:
        PlanError: A step failed, or the plan took longer than `timeout_seconds`.
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
            raise _too_slow(running, timeout_seconds) from None
        running.discard(step.name)
        if problem is not None:
            raise PlanError(step.name, problem)
        done.add(step.name)


def _too_slow(running: set[str], timeout_seconds: float) -> PlanError:
    names = ", ".join(sorted(running))
    error = StepError(
        f"boot took longer than boot_timeout_seconds ({timeout_seconds:g}); still at work: {names}",
        remedy="see what the steps wait for, or raise node.supervise.boot_timeout_seconds",
    )
    return PlanError(names, error)


def _run_step(step: Step, context: Context, ended: queue.Queue[tuple[Step, StepError | None]]) -> None:
    started_unix, started = context.system.unix_seconds(), context.system.monotonic_seconds()
    outcome, problem = "failed", None
    try:
        outcome = "done" if _advance(step, context) else "skipped"
    except StepError as error:
        problem = error
    except (BootstrapError, OSError) as error:
        problem = StepError(str(error), remedy="see the message; the step's own words are all there is")
    except Exception as error:  # noqa: BLE001 top level of a thread: a defect must end the boot, not hang it
        logger.exception("step %s", step.name)
        problem = StepError(
            f"{type(error).__name__}: {error}", remedy="this is a defect of the node program; report it"
        )
    context.events.emit(
        "boot_step",
        step=step.name,
        seconds=round(context.system.monotonic_seconds() - started, 3),
        started_unix_seconds=round(started_unix, 3),
        ended_unix_seconds=round(context.system.unix_seconds(), 3),
        outcome=outcome,
    )
    ended.put((step, problem))


def _advance(step: Step, context: Context) -> bool:
    """Make the step true; return False when it was so already."""
    marker = context.layout.marker(step.name)
    digest = step.digest(context)
    if step.may_be_skipped and _marked_digest(context, step) == digest and step.look(context):
        return False
    step.act(context)
    step.verify(context)
    finished = round(context.system.unix_seconds(), 3)
    context.system.write_atomic(marker, json.dumps({"digest": digest, "finished_unix_seconds": finished}) + "\n")
    return True


def _marked_digest(context: Context, step: Step) -> str | None:
    text = context.system.read(context.layout.marker(step.name))
    if text is None:
        return None
    try:
        marker = json.loads(text)
    except ValueError:
        return None  # a marker that cannot be read proves nothing: do the step
    return marker.get("digest") if isinstance(marker, dict) else None
