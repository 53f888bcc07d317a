"""Changes the gang in place: the ranks that live continue from memory when a node leaves, dies or joins.

The supervisor's handover (training/process/reform/handover.py) is the only authority. A planned change happens after a
step on which all ranks agree with their control flags. After a loss, every rank that lives finds its collective broken,
and waits for the handover. The ranks then meet, agree on the newest complete step, and give the state to those that do
not have it. Whatever goes wrong ends in `NotReformedError`: new processes then start from the newest checkpoint.

After the change at step k, the run continues bit for bit like one that resumes from the checkpoint of step k with the
same number of ranks, because both have primed DDP equally, and derive their random states from seed, rank and step.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Literal, Protocol

import torch

from training.checkpoint.manifest import ValidationRecord
from training.checkpoint.opening import reopen_store
from training.checkpoint.retention import Retention
from training.checkpoint.state.generators import seed_random_state
from training.errors import GateError, NotReformedError, PeerError
from training.loop.early_stopping import Patience
from training.loop.loss_watch import LossWatch
from training.loop.run import Run
from training.loop.step_result import StepReport
from training.models.user_model import MeanLoss
from training.observe.sinks import open_sinks
from training.process.distributed import ControlFlags
from training.process.reform.claims import Claim, Verdict, judge
from training.process.reform.handover import Handover, Inbox, Watch, write_answer
from training.process.reform.phases import Phases
from training.process.reform.state_transfer import TensorForm, exchange
from training.process.store import gang_store

logger = logging.getLogger(__name__)

LIMIT_SECONDS = 10.0
"""Limit for one change, from its first sign to the next step. The supervisors have the same limit."""
JOIN_LIMIT_SECONDS = 300.0
"""Time for which a rank that joins waits for the agreed step. The gang keeps training."""
POLL_SECONDS = 0.01
READY, GO = "ready/", "go"
Cause = Literal["planned", "loss", "join"]


class LoopState(Protocol):
    """The part of the training loop that a change carries to the other ranks."""

    @property
    def committed_step(self) -> int | None:
        """Step of the newest checkpoint known to be committed."""

    def carried(self) -> dict[str, Any]:
        """Return the state."""

    def restore(self, carried: dict[str, Any]) -> None:
        """Continue from another rank's state."""


class LeftGangError(Exception):
    """The other ranks continue without this node."""


class Reforming:
    """Changes a run's gang in place.

    Args:
        run: the run.
        joins: True for a rank that joins a running gang.
    """

    def __init__(self, run: Run, *, joins: bool) -> None:
        self._run = run
        self._inbox = Inbox(run.run_directory, run.generation - joins)
        self._watch: Watch | None = None
        self._hosted: tuple[int, Any] | None = None
        self._is_whole = not joins
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
        if handover is None or not handover.planned or not self._is_prepared(handover):
            return 0.0
        return float(handover.generation)

    def agreed(self, agreed: ControlFlags) -> Handover | None:
        """Return the handover if all ranks are ready for it, and no save is in flight."""
        handover = self._inbox.newest()
        if handover is None or not handover.planned or agreed.busy:
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
        deadline = time.monotonic() + LIMIT_SECONDS
        while time.monotonic() < deadline:
            if (handover := self._inbox.newest()) is not None:
                return handover
            time.sleep(POLL_SECONDS)
        raise NotReformedError(f"no generation continues this one after {LIMIT_SECONDS:.0f} s: {failure}")

    def join(self, loop: LoopState) -> None:
        """As a rank that joins, meet the running gang at the step on which it agrees, and take its state."""
        handover = self.await_handover("this rank joins")
        rank = handover.rank(self._run.gang.local_rank, self._run.gang.local_world_size)
        limit = timedelta(seconds=JOIN_LIMIT_SECONDS)
        store = gang_store(handover.master_address, handover.master_port, False, limit)
        store.set(f"{READY}{rank}", "")
        deadline = time.monotonic() + JOIN_LIMIT_SECONDS
        while not store.check([GO]):
            if time.monotonic() > deadline:
                raise NotReformedError(f"the gang did not change to generation {handover.generation} in time")
            time.sleep(POLL_SECONDS)
        self._hosted = handover.generation, store
        self.change(handover, loop, "join")

    def change(self, handover: Handover, loop: LoopState, cause: Cause) -> None:
        """Change the gang. Afterwards, the loop repeats what it has to do between two steps, if it was there.

        Raises:
            LeftGangError: This node leaves.
            NotReformedError: The checkpoint decides.
            SupersededError: A later generation owns the checkpoint log.
        """
        deadline = time.monotonic() + LIMIT_SECONDS
        reports = self._recover()
        if handover.node_rank is None:
            raise LeftGangError(f"left the gang after step {self._run.state.step}; the other nodes continue")
        while True:
            phases = Phases()
            failure = self._attempt(handover, loop, reports, cause, phases, deadline)
            if failure is None:
                return
            logger.warning("generation %d was not formed: %s", handover.generation, failure.splitlines()[0][:300])
            self._inbox.generation = handover.generation
            while (newer := self._inbox.newest()) is None:
                if time.monotonic() > deadline:
                    raise NotReformedError(f"generation {handover.generation} was not formed: {failure}")
                time.sleep(POLL_SECONDS)
            if newer.node_rank is None:
                raise LeftGangError(f"left the gang after step {self._run.state.step}")
            handover, cause = newer, "loss"

    def _recover(self) -> list[StepReport]:
        """Return the reports of complete steps, and go back to the last complete step. No collective takes part."""
        run = self._run
        if run.gang.device.type == "cuda":
            torch.cuda.synchronize()
        try:
            reports = run.flags.recover()
        except (GateError, RuntimeError) as error:
            raise NotReformedError(f"the last step's result cannot be read: {error}") from error
        assert run.ledger is not None, "a run without a ledger is not formed again"
        behind = run.state.step - run.ledger.step
        # A step that was aborted has not changed a weight, although the host has counted it.
        run.state.step = run.ledger.step
        run.state.position -= behind * run.config.global_batch_size
        self._is_whole &= not run.is_updating
        return reports

    def _attempt(
        self,
        handover: Handover,
        loop: LoopState,
        reports: Sequence[StepReport],
        cause: Cause,
        phases: Phases,
        deadline: float,
    ) -> str | None:
        """Form one generation; return the failure, as text, because a traceback would keep the old gang alive."""
        run = self._run
        if self._watch is not None:
            self._watch.follow(handover.generation)
        try:
            self._meet(handover, cause, deadline)
            phases.end("meet")
            verdict = judge(run.gang.gather(self._claim()))
            phases.end("agree")
            moved = self._take_state(verdict, loop, reports)
            phases.end("state")
            self._prime()
            phases.end("prime")
            self._open_writer(handover.generation, loop)
            phases.end("writer")
            run.gang.agree(ControlFlags())
            run.gang.settle()
        except (RuntimeError, PeerError) as error:
            return f"{type(error).__name__}: {error}"
        self._finish(handover, cause, phases, moved, verdict)
        return None

    def _meet(self, handover: Handover, cause: Cause, deadline: float) -> None:
        """Destroy the old process groups, and form new ones with the ranks of the handover."""
        gang, replica = self._run.gang, self._run.replica
        rank = handover.rank(gang.local_rank, gang.local_world_size)
        world_size = handover.nodes * gang.local_world_size
        problems = self._run.config.problems_at(world_size)
        if problems:
            raise NotReformedError("; ".join(problems))
        replica.disband()
        self._run.writer.abandon()
        if torch.distributed.is_initialized():
            gang.disband()
        limit = timedelta(seconds=max(1.0, deadline - time.monotonic()))
        store = self._store(handover, rank, limit)
        if rank == 0:
            store.set(GO, "")
        gang.assemble(store, rank, world_size, limit)

    def _store(self, handover: Handover, rank: int, limit: timedelta) -> Any:
        if self._hosted is None or self._hosted[0] != handover.generation:
            store = gang_store(handover.master_address, handover.master_port, rank == 0, limit)
            self._hosted = handover.generation, store
        return self._hosted[1]

    def _claim(self) -> Claim:
        run = self._run
        assert run.ledger is not None
        fits = not run.config.compile or self._sizes() <= run.compiled_sizes
        if not self._is_whole:
            return Claim(None, "", "", is_whole=False, fits=fits)
        return Claim(run.state.step, run.ledger.digest, run.ledger.previous, is_whole=True, fits=fits)

    def _sizes(self) -> set[int]:
        """Return the sizes of this rank's micro-batches."""
        run = self._run
        share = len(run.gang.share_of(run.config.global_batch_size))
        size = min(run.micro_batch_size, share)
        return {size, share % size} - {0}

    def _take_state(self, verdict: Verdict, loop: LoopState, reports: Sequence[StepReport]) -> int:
        """Give the source's tensors to the receivers, and its host state to all ranks; return the bytes moved."""
        run, source = self._run, verdict.sources[0]
        gang, state = run.gang, run.state
        carried = gang.ask(source, lambda: self._carried(loop, reports))
        is_receiver = gang.rank in verdict.receivers
        moved = 0
        if verdict.receivers:
            forms = gang.ask(source, self._forms)
            if is_receiver:
                self._is_whole = False
                records = {name: TensorForm(*form) for name, form in forms["tensors"].items()}
                tensors = state.targets(records, forms["optimizer"], forms["extra_states"])
            else:
                tensors = state.tensors()
            moved = exchange(verdict, gang.rank, tensors, gang.device)
            if is_receiver:
                state.set_extra_states(forms["extra_states"])
        if gang.world_size > 1:
            buffers = state.capture().buffers
            for name in sorted(buffers):
                gang.broadcast_(buffers[name], source)
        self._restore(carried, loop)
        self._is_whole, run.is_updating = True, False
        return moved

    def _forms(self) -> dict[str, Any]:
        captured = self._run.state.capture()
        tensors = captured.shared | captured.buffers
        return {
            "tensors": {
                name: (str(each.dtype).removeprefix("torch."), list(each.shape)) for name, each in tensors.items()
            },
            "optimizer": captured.optimizer,
            "extra_states": captured.extra_states,
        }

    def _carried(self, loop: LoopState, reports: Sequence[StepReport]) -> dict[str, Any]:
        """Return the host's state. JSON carries its numbers exactly."""
        run = self._run
        assert run.ledger is not None
        return {
            "step": run.state.step,
            "position": run.state.position,
            "digest": run.ledger.digest,
            "watch": run.watch.state(),
            "patience": run.patience.state(),
            "validation": run.validation,
            "reports": [asdict(report) for report in reports],
            "skips": run.flags.consecutive_skips,
            "micro_batch_size": run.micro_batch_size,
            **loop.carried(),
        }

    def _restore(self, carried: dict[str, Any], loop: LoopState) -> None:
        run, config = self._run, self._run.config
        assert run.ledger is not None
        run.state.step, run.state.position = carried["step"], carried["position"]
        run.ledger.take_over(carried["step"], carried["digest"])
        run.watch = LossWatch(config.recovery, carried["watch"])
        run.patience = Patience(config.early_stopping, carried["patience"])
        validation = carried["validation"]
        assert validation is None or isinstance(validation, ValidationRecord)
        run.validation = validation
        run.flags.restart([StepReport(**report) for report in carried["reports"]], carried["skips"])
        share = len(run.gang.share_of(config.global_batch_size))
        wanted = carried["micro_batch_size"] if config.micro_batch_size == "auto" else config.micro_batch_size
        run.micro_batch_size = min(wanted, share)
        loop.restore(carried)

    def _prime(self) -> None:
        run = self._run
        run.replica.replicate(is_equal=True)
        if run.gang.world_size > 1:
            batch = run.train_batches.example(run.micro_batch_size)
            used = run.replica.prime(run.state.model, batch, run.precision, lambda: None)
            if isinstance(run.uncompiled, MeanLoss):
                run.uncompiled.used = used
        run.compiled_sizes |= self._sizes()

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
        )

    def _finish(self, handover: Handover, cause: Cause, phases: Phases, moved: int, verdict: Verdict) -> None:
        """Derive the random states, move the metrics to rank 0, and tell the supervisor."""
        run, gang = self._run, self._run.gang
        seed_random_state(run.config.seed, gang.rank, run.state.step)
        if not gc.isenabled():
            gc.freeze()  # again: see training.process.garbage_collection
        self._inbox.generation = handover.generation
        if self._watch is None and gang.world_size > 1:
            self._start_watch()
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
        try:
            store = self._store(handover, 0, timedelta(seconds=LIMIT_SECONDS))
        except PeerError as error:  # the supervisors elect another generation if this one is not formed
            logger.warning("generation %d: %s", handover.generation, error)
            return False
        joining = range(handover.survivors * gang.local_world_size, handover.nodes * gang.local_world_size)
        return all(store.check([f"{READY}{rank}"]) for rank in joining)

    def _start_watch(self) -> None:
        run = self._run
        self._watch = Watch(run.run_directory, run.generation, run.gang.break_connections)
