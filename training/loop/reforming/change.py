"""Changes the gang in place: the ranks that live continue from memory when a node leaves, dies or joins.

The supervisor's handover (training/process/reform/handover.py) is the only authority. A planned change happens after a
step on which all ranks agree with their control flags. After a loss, every rank that lives finds its collective broken,
and waits for the handover. The ranks then meet, agree on the newest completed step, and give the state to those that do
not have it. Whatever goes wrong ends in `NotReformedError`: new processes then start from the newest checkpoint.

After the change at step k, the run continues bit for bit like one that resumes from the checkpoint of step k with the
same number of ranks, because both have primed DDP equally, and derive their random states from seed, rank and step.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Literal

from training.checkpoint.opening import reopen_store
from training.checkpoint.retention import Retention
from training.checkpoint.state.generators import seed_random_state
from training.errors import NotReformedError, PeerError, StoreError
from training.loop.reforming.state import LoopState, StateInMemory
from training.loop.run import Run
from training.observe.sinks import open_sinks
from training.process.distributed import ControlFlags
from training.process.outcome import Outcome
from training.process.reform.claims import Verdict, judge
from training.process.reform.guard import Guard, end_process
from training.process.reform.handover import Handover, Inbox, Watch, write_answer
from training.process.reform.meeting import MeetingPlace
from training.process.reform.phases import Phases

logger = logging.getLogger(__name__)

LIMIT_SECONDS = 10.0
"""Limit for one change, from its first sign to the next step. The supervisors have the same limit."""
MARGIN_SECONDS = 1.0
"""A process that has not noticed the limit itself ends after this time."""
JOIN_LIMIT_SECONDS = 300.0
"""Time for which a rank that joins waits for the agreed step. The gang keeps training."""
HOLD_LIMIT_SECONDS = 300.0
"""Time for which ranks whose collective has failed keep their state while their supervisor cannot read the records, and
for which fenced ranks wait for a generation that they can join."""
POLL_SECONDS = 0.01
Cause = Literal["planned", "loss", "join"]


class LeftGangError(Exception):
    """The other ranks continue without this node."""


class Reforming:
    """Changes a run's gang in place.

    Args:
        run: the run.
        ending: returns this rank's outcome if a change fails.
        joins: True for a rank that joins a running gang.
    """

    def __init__(self, run: Run, ending: Callable[[], Outcome], *, joins: bool) -> None:
        self._run, self._ending = run, ending
        self._inbox = Inbox(run.run_directory, run.generation - joins)
        self._state = StateInMemory(run, is_whole=not joins)
        self._place = MeetingPlace(self._is_superseded)
        self._watch: Watch | None = None
        self._ready: Handover | None = None
        if not joins:
            write_answer(run.run_directory, run.generation, run.gang.local_rank, run.gang.rank, run.state.step)
        if run.gang.world_size > 1:
            self._start_watch()

    def close(self) -> None:
        """End the thread."""
        if self._watch is not None:
            self._watch.close()

    def ready_for(self) -> float:
        """Return the generation that this rank is ready to change to, for its control flags; 0 if there is none."""
        handover = self._inbox.newest()
        self._ready = None
        if handover is None or not handover.planned or not self._is_prepared(handover):
            return 0.0
        self._ready = handover
        return float(handover.generation)

    def agreed(self, agreed: ControlFlags) -> Handover | None:
        """Return the handover if all ranks are ready for it, and no save is in flight.

        It is the one that this rank has reported with the flags, even if a later one has arrived since: all ranks have
        to decide alike.
        """
        handover = self._ready
        if handover is None or agreed.busy:
            return None
        ranks, generation = self._run.gang.world_size, handover.generation
        is_agreed = (agreed.next, agreed.next_squared) == (ranks * generation, ranks * generation * generation)
        return handover if is_agreed else None

    def await_handover(self, failure: str) -> Handover:
        """Wait for the handover after a collective has failed.

        Raises:
            NotReformedError: There is none in time.
        """
        logger.warning("%s; waiting for the next generation", failure.splitlines()[0][:200])
        began = time.monotonic()
        deadline = began + LIMIT_SECONDS
        while time.monotonic() < deadline:
            if (handover := self._inbox.newest()) is not None:
                return handover
            if self._inbox.is_held():
                deadline = min(began + HOLD_LIMIT_SECONDS, time.monotonic() + LIMIT_SECONDS)
            time.sleep(POLL_SECONDS)
        waited = time.monotonic() - began
        raise NotReformedError(f"no generation continues this one after {waited:.0f} s: {failure}")

    def join(self, loop: LoopState) -> None:
        """As a rank that joins, meet the running gang at the step on which it agrees, and take its state.

        Raises:
            NotReformedError: The gang does not change to this generation.
        """
        deadline = time.monotonic() + JOIN_LIMIT_SECONDS
        with Guard(self._ending(), self._run.run_directory, deadline + MARGIN_SECONDS):
            handover = self.await_handover("this rank joins")
            self._await_change(handover, deadline)
        self.change(handover, loop, "join")

    def _await_change(self, handover: Handover, deadline: float) -> None:
        gang = self._run.gang
        try:
            self._place.await_change(handover, handover.rank(gang.local_rank, gang.local_world_size), deadline)
        except PeerError as error:
            raise NotReformedError(str(error)) from error

    def _await_return(self, fence: Handover, guard: Guard) -> Handover:
        """After the others have continued without this node, wait for a generation that its ranks join.

        Its state is older than theirs, so it is of no use.

        Raises:
            NotReformedError: There is none in time.
        """
        logger.warning("generation %d continues without this node; waiting for one to join", fence.generation)
        deadline = time.monotonic() + HOLD_LIMIT_SECONDS
        guard.extend(deadline + MARGIN_SECONDS)
        self._state.give_up()
        self._inbox.generation = fence.generation
        while time.monotonic() < deadline:
            handover = self._inbox.newest()
            if handover is not None and handover.joins():
                self._follow(handover)
                try:
                    self._await_change(handover, deadline)
                except NotReformedError:
                    if self._inbox.newest() == handover:
                        raise
                else:
                    return handover
            time.sleep(POLL_SECONDS)
        raise NotReformedError(f"joined no generation within {HOLD_LIMIT_SECONDS:.0f} s")

    def change(self, handover: Handover, loop: LoopState, cause: Cause) -> None:
        """Change the gang. Afterwards, the loop repeats what it has to do between two steps, if it was there.

        A later handover replaces the one that is being formed, and has its own limit.

        Raises:
            LeftGangError: This node leaves.
            NotReformedError: The checkpoint decides.
            SupersededError: A later generation owns the checkpoint log.
        """
        with Guard(self._ending(), self._run.run_directory, time.monotonic() + LIMIT_SECONDS + MARGIN_SECONDS) as guard:
            self._state.recover()
            while True:
                self._follow(handover)
                if handover.is_fence:
                    handover, cause = self._await_return(handover, guard), "join"
                if handover.node_rank is None:
                    raise LeftGangError(f"left the gang after step {self._run.state.step}; the other nodes continue")
                deadline = time.monotonic() + LIMIT_SECONDS
                guard.extend(deadline + MARGIN_SECONDS)
                failure = self._attempt(handover, loop, cause, deadline)
                if failure is None:
                    return
                logger.warning("generation %d was not formed: %s", handover.generation, failure.splitlines()[0][:300])
                self._inbox.generation = handover.generation
                while (newer := self._inbox.newest()) is None:
                    if time.monotonic() > deadline:
                        raise NotReformedError(f"generation {handover.generation} was not formed: {failure}")
                    time.sleep(POLL_SECONDS)
                handover, cause = newer, "loss"

    def _follow(self, handover: Handover) -> None:
        """From now on, only a later handover breaks the connections."""
        if self._watch is None:
            self._start_watch()
        assert self._watch is not None
        self._watch.follow(handover.generation, is_changing=True)

    def _attempt(self, handover: Handover, loop: LoopState, cause: Cause, deadline: float) -> str | None:
        """Form one generation; return the failure, as text, because a traceback would keep the old gang alive."""
        run, phases = self._run, Phases(handover.generation)
        try:
            self._disband(handover, cause)
            phases.end("disband")
            self._meet(handover, deadline)
            phases.end("meet")
            verdict = judge(run.gang.gather(self._state.claim()))
            phases.end("agree")
            moved = self._state.take(verdict, loop)
            phases.end("state")
            self._state.prime()
            phases.end("prime")
            self._open_writer(handover.generation, loop)
            phases.end("writer")
            run.gang.agree(ControlFlags())
            run.gang.settle()
        except (RuntimeError, PeerError, StoreError) as error:
            return f"{phases.current}: {type(error).__name__}: {error}"
        self._finish(handover, cause, phases, moved, verdict)
        return None

    def _disband(self, handover: Handover, cause: Cause) -> None:
        """Destroy the old process groups, and release the writer."""
        gang, replica = self._run.gang, self._run.replica
        problems = self._run.config.problems_at(handover.nodes * gang.local_world_size)
        if problems:
            raise NotReformedError("; ".join(problems))
        is_held = replica.disband()
        self._run.writer.release()
        # After a loss, garbage refers to the broken work, and destroying the groups would wait for it.
        gang.disband(is_held=is_held or cause == "loss", meeting=self._place.connections)

    def _meet(self, handover: Handover, deadline: float) -> None:
        """Form process groups with the ranks of the handover."""
        gang = self._run.gang
        rank = handover.rank(gang.local_rank, gang.local_world_size)
        store = self._place.store(handover, rank, deadline)
        if rank == 0:
            self._place.go(handover, deadline)
        limit = timedelta(seconds=max(1.0, deadline - time.monotonic()))
        gang.assemble(store, rank, handover.nodes * gang.local_world_size, limit)

    def _is_superseded(self, generation: int) -> bool:
        newest = self._inbox.newest()
        return newest is not None and newest.generation > generation

    def _open_writer(self, generation: int, loop: LoopState) -> None:
        run = self._run
        run.generation = generation
        run.writer = reopen_store(
            run.gang,
            run.backend,
            run.state,
            generation=generation,
            retention=Retention.from_settings(run.config.checkpoint),
            committed_step=loop.committed_step,
            earlier=run.writer,
        )

    def _finish(self, handover: Handover, cause: Cause, phases: Phases, moved: int, verdict: Verdict) -> None:
        """Derive the random states, move the metrics to rank 0, and tell the supervisor."""
        run, gang = self._run, self._run.gang
        seed_random_state(run.config.seed, gang.rank, run.state.step)
        if not gc.isenabled():
            gc.freeze()  # again: see training.process.garbage_collection
        self._inbox.generation = handover.generation
        assert self._watch is not None, "started before the first attempt"
        self._watch.follow(handover.generation, is_changing=False)
        if run.is_main and not run.metrics.is_open:
            run.metrics.move(run.run_directory / "metrics.jsonl")
            run.metrics.add_sinks(open_sinks(run.config.observation, run.run_directory, gang.rank))
        elif not run.is_main and run.metrics.is_open:
            run.metrics.move(None)
        run.metrics.write(
            "reform",
            step=run.state.step,
            cause=cause,
            generation=handover.generation,
            world_size=gang.world_size,
            sources=len(verdict.sources),
            receivers=len(verdict.receivers),
            bytes=moved,
            seconds=phases.total_seconds,
            abandoned_groups=gang.abandoned,
            steps_total=run.config.steps,
            **phases.seconds,
        )
        write_answer(run.run_directory, handover.generation, gang.local_rank, gang.rank, run.state.step)
        logger.info(
            "generation %d continues from step %d in memory: rank %d of %d, %.2f s",
            handover.generation,
            run.state.step,
            gang.rank,
            gang.world_size,
            phases.total_seconds,
        )

    def _is_prepared(self, handover: Handover) -> bool:
        """Return True if this rank can change: on the next rank 0, if every rank that joins is ready."""
        gang = self._run.gang
        if handover.node_rank is None or handover.rank(gang.local_rank, gang.local_world_size) != 0:
            return True
        joining = range(handover.survivors * gang.local_world_size, handover.nodes * gang.local_world_size)
        try:
            return self._place.are_ready(handover, joining)
        except PeerError as error:  # the supervisors elect another generation if this one is not formed
            logger.warning("generation %d: %s", handover.generation, error)
            return False

    def _start_watch(self) -> None:
        run = self._run
        limit_seconds = LIMIT_SECONDS + MARGIN_SECONDS
        self._watch = Watch(run.run_directory, run.generation, run.gang, limit_seconds, self._end_stuck)

    def _end_stuck(self) -> None:
        """End the process: its main thread waits for a collective that nothing ends, or computes for too long."""
        message = f"the main thread did not begin the change within {LIMIT_SECONDS + MARGIN_SECONDS:.0f} s"
        end_process(self._ending(), self._run.run_directory, message)
