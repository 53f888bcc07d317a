"""Carries out the actions from `decide`, and holds the node's generation, trainers and conclusion."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from bootstrap.boot_steps.code import remove_other_code
from bootstrap.context import Context
from bootstrap.documents import RunDocument
from bootstrap.errors import ControlStoreError
from bootstrap.events.schema import (
    ElectionLost,
    GenerationEnded,
    GenerationStarted,
    NodeLeaving,
    RunFinished,
    TrainerOutput,
)
from bootstrap.events.schema import Trainer as TrainerRecord
from bootstrap.imds import InstanceIdentity
from bootstrap.supervise.anomalies import ELECTION_REMEDY, GENERATION_REMEDIES
from bootstrap.supervise.membership.records import GenerationRecord, RunOutcome
from bootstrap.supervise.monitors import Board
from bootstrap.supervise.run_loading import RunLoader
from bootstrap.supervise.saved_state import SavedState, save_state
from bootstrap.supervise.situation import (
    Action,
    Active,
    AwaitChange,
    Conclude,
    Elect,
    Fence,
    HandOver,
    Hold,
    Judgement,
    Kill,
    Leave,
    LoadRun,
    RecordRunOutcome,
    RequestSave,
    RequestStop,
    Result,
    Start,
)
from bootstrap.supervise.trainers.launch import (
    LaunchCommand,
    free_port,
    launcher_command,
    trainer_environment,
)
from bootstrap.supervise.trainers.results import Results
from bootstrap.supervise.trainers.trainer import Trainer, remove_old_directories
from bootstrap.supervise.warm_starts import WarmStarts

logger = logging.getLogger(__name__)

MAX_RUN_DIRECTORIES = 5
UPLOAD_LIMIT_SECONDS = 10.0


class Actor:
    """Carries out actions. Only the main loop uses this class."""

    def __init__(
        self,
        context: Context,
        board: Board,
        identity: InstanceIdentity,
        state: SavedState,
        loader: RunLoader,
        command: LaunchCommand,
        tell: Callable[[], None] = lambda: None,
    ) -> None:
        self._context = context
        self._tell = tell
        self._board = board
        self._identity = identity
        self._loader = loader
        self._command = command
        self.warm = WarmStarts(context, board, identity, loader, is_enabled=command is launcher_command)
        self.results = Results(context)
        self._not_before = 0.0
        self._lost_election = 0
        self._run: RunDocument | None = None
        self._launched = (0, 0)
        self.state = state
        self.active: Active | None = None
        self.trainer: Trainer | None = None
        self.judgement: Judgement | None = None
        self.last_result: Result | None = None
        self.last_generation = 0
        self.ready_since: float | None = None
        self.rebalance_handled: str | None = None
        self.left: Leave | None = None

    def act(self, action: Action) -> None:
        """Carry out one action."""
        match action:
            case Start():
                self._start(action)
            case Elect():
                self._elect(action)
            case HandOver():
                self._hand_over(action)
            case Fence():
                self._fence(action)
            case Hold():
                assert self.trainer is not None and self.active is not None
                self.trainer.hold(action.is_needed)
                self.active = replace(self.active, is_blind=action.is_needed)
            case AwaitChange():
                assert self.active is not None
                now = self._context.system.monotonic_seconds()
                self.active = replace(self.active, changing_since=now if action.is_needed else None)
            case RequestStop():
                self._request_stop(action)
            case RequestSave():
                self._request_save()
            case Kill():
                self._kill(action)
            case Conclude():
                self._conclude(action)
            case RecordRunOutcome():
                self._record_outcome(action)
            case LoadRun():
                assert self._board.run is not None
                self._loader.start(self._board.run)
            case Leave():
                self._context.events.emit(NodeLeaving(action.reason))
                self.left = action

    def watch_trainer(self, seen: frozenset[str]) -> None:
        """Read the trainers' records and result, and add the members `seen` in the generation."""
        if self.active is None or self.trainer is None:
            return
        if seen - self.active.seen:
            self.active = replace(self.active, seen=self.active.seen | seen)
        if self.active.result is not None:
            return
        self._note_formed()
        result = self.trainer.poll()
        for record in self.trainer.new_records():
            self._context.events.emit(TrainerRecord(record))
        now = self._context.system.monotonic_seconds()
        output = self.trainer.new_output(now, is_last=result is not None)
        if output is not None:
            event = TrainerOutput(
                generation=self.active.record.generation,
                rank=self.active.rank,
                text=output.text,
                dropped_bytes=output.dropped_bytes,
            )
            self._context.events.emit(event)
        if result is not None:
            self.active = replace(self.active, result=result, ended_at=now)

    def _note_formed(self) -> None:
        """Follow the trainers to the generation that they have formed."""
        assert self.active is not None and self.trainer is not None and self._run is not None
        before, pending, generation = self.active, self.active.pending, self.trainer.formed()
        if generation is None:
            return
        if pending is None or generation != pending.generation:
            if not before.is_formed and generation == before.record.generation:
                self.active = replace(before, is_formed=True)
            return
        rank = pending.rank_of(self._identity.instance_id)
        assert rank is not None, "a node that leaves does not form the next generation"
        self.active = Active(pending, rank, self._context.system.monotonic_seconds(), is_formed=True)
        self.last_generation = generation
        message = f"its trainers continue in place in generation {generation}"
        self._context.events.emit(GenerationEnded(before.record.generation, "stopped", self.trainer.step, message))
        self._context.events.emit(
            GenerationStarted(
                generation=generation,
                members=tuple(member.instance_id for member in pending.members),
                rank=rank,
                world_size=len(pending.members) * self._run.processes_per_node,
                run=self._run.run,
                run_digest=pending.run_digest,
            )
        )

    def forget_generation(self) -> None:
        """Reset the state that belongs to another run's control records."""
        self.last_result, self.last_generation, self.judgement = None, 0, None

    def forget_judgement(self) -> None:
        """Clear the conclusion once the outcome has been recorded, so that deleting the record restarts the run."""
        if self.judgement is not None:
            self.judgement = None
            self.state = self.state.without_failures()
            save_state(self._context.system, self._context.layout, self.state)

    def end_trainer(self) -> None:
        """Before the supervisor exits, kill the trainers, finish uploading results, and end the standby."""
        if self.trainer is not None and self.active is not None and self.active.result is None:
            self.trainer.kill("failed", "the supervisor exited")
        self.results.finish(UPLOAD_LIMIT_SECONDS)
        self.warm.end()

    def _start(self, action: Start) -> None:
        run, record = self._board.run, action.record
        if run is None or run.digest() != record.run_digest:  # the run document has changed since the decision
            return
        launch = self.warm.plan(run, record, action.rank)
        remove_old_directories(launch.directory.parent, MAX_RUN_DIRECTORIES)
        remove_other_code(self._context, frozenset({run.code.sha256}))
        self.trainer = Trainer(self._context.system, launch.directory, launch.global_ranks, record.generation)
        environment = trainer_environment(launch, self._context.system.environment())
        self.trainer.start(self._command(launch), environment, run.training, self.warm.start(launch, environment))
        self._run = run
        if record.survivors:
            self.trainer.hand_over(record, action.rank)
        self._launched = record.generation, action.rank
        self.results.follow(run.run, record.generation, action.rank)
        self.last_result, self.last_generation, self.ready_since = None, record.generation, None
        self.active = Active(record, action.rank, self._context.system.monotonic_seconds())
        self._context.events.emit(
            GenerationStarted(
                generation=record.generation,
                members=tuple(member.instance_id for member in record.members),
                rank=action.rank,
                world_size=launch.world_size,
                run=run.run,
                run_digest=record.run_digest,
            )
        )

    def _elect(self, action: Elect) -> None:
        scope, run = self._board.scope, self._board.run
        if scope is None or run is None or self._loader.loaded_digest != run.digest() or self._must_wait():
            return
        record = GenerationRecord(
            generation=action.generation,
            run_digest=run.digest(),
            members=action.members,
            master_address=self._identity.private_address,
            master_port=free_port(self._identity.private_address),
            created_by=self._identity.instance_id,
            survivors=action.survivors,
            planned=action.planned,
        )
        try:
            if scope.store.elect(record):
                scope.note_elected(record)
                self._tell()
            elif record.generation != self._lost_election:
                self._lost_election = record.generation
                message = f"lost the election for generation {record.generation}; joining it"
                self._context.events.emit(ElectionLost(record.generation, message, ELECTION_REMEDY))
        except ControlStoreError as error:  # the monitor will read the record if it was written
            logger.warning("%s", error)

    def _hand_over(self, action: HandOver) -> None:
        assert self.trainer is not None and self.active is not None
        if action.rank is None or action.record.planned and self._board.notice is not None:
            self.trainer.request_save()  # everybody may be taken
        self.trainer.hand_over(action.record, action.rank)
        now = self._context.system.monotonic_seconds()
        self.active = replace(self.active, pending=action.record, handed_at=now, changing_since=None)

    def _fence(self, action: Fence) -> None:
        assert self.trainer is not None and self.active is not None
        self.trainer.hand_over(action.record, None)
        fenced_at = self.active.fenced_at
        if self.active.fenced_by is None:
            fenced_at = self._context.system.monotonic_seconds()
            message = f"generation {action.record.generation} continues without this node; its trainers wait to join"
            logger.warning("%s", message)
        self.active = replace(
            self.active, fenced_by=action.record, fenced_at=fenced_at, pending=None, changing_since=None
        )

    def _request_stop(self, action: RequestStop) -> None:
        assert self.trainer is not None and self.active is not None
        self.trainer.request_stop(action.reason, action.deadline_unix, train_on=action.train_on)
        # This machine's clock may be changed later, so convert the deadline to the monotonic clock.
        left_seconds = action.deadline_unix - self._context.system.unix_seconds()
        self.active = replace(
            self.active,
            stop_reason=action.reason,
            stop_deadline_unix=action.deadline_unix,
            stop_deadline=self._context.system.monotonic_seconds() + left_seconds,
        )

    def _request_save(self) -> None:
        assert self.trainer is not None
        self.trainer.request_save()
        self.rebalance_handled = self._board.rebalance_time

    def _kill(self, action: Kill) -> None:
        assert self.trainer is not None
        self.trainer.kill(action.outcome, action.message)

    def _conclude(self, action: Conclude) -> None:
        assert self.active is not None and self.trainer is not None and self._run is not None
        active, result, now = self.active, action.result, self._context.system.monotonic_seconds()
        record = active.record
        outcome = result.outcome
        assert outcome != "killed", "`decide` concludes a killed rank as failed or as a lost peer"
        failed = outcome == "failed"
        remedy = GENERATION_REMEDIES.get(result.outcome)
        self._context.events.emit(GenerationEnded(record.generation, outcome, result.step, result.message, remedy))
        self.trainer.finish()
        self.results.upload(self._run.run, *self._launched)
        if active.rank == 0:  # only rank 0 counts failures, because other ranks may not have seen the last save
            saved_step = self.trainer.saved_step
            self.state = self.state.after_generation(record.run_digest, failed=failed, saved_step=saved_step)
            save_state(self._context.system, self._context.layout, self.state)
        if result.outcome == "finished" or result.outcome == "bad_configuration":
            mine = active.rank == 0 or result.outcome == "bad_configuration"
            self.judgement = Judgement(
                result.outcome, record.run_digest, result.step, result.message, mine=mine, since=now
            )
            if result.outcome == "finished" and active.rank == 0:
                self._context.events.emit(RunFinished(self._run.run, record.run_digest, result.step))
        elif failed and active.rank == 0 and self.state.has_failed:
            message = f"{self.state.failures} failures without a new checkpoint; the last: {result.message}"
            self.judgement = Judgement("failed", record.run_digest, result.step, message, mine=True, since=now)
        scope = self._board.scope
        if scope is not None:
            scope.floor = max(scope.floor, record.generation)
        self.last_result = result
        self.active, self.trainer = None, None

    def _record_outcome(self, action: RecordRunOutcome) -> None:
        scope, run = self._board.scope, self._board.run
        if scope is None or run is None or self._must_wait():
            return
        outcome = RunOutcome(run.run, run.digest(), action.verdict, action.step, action.message)
        try:
            scope.store.record_outcome(outcome)
        except ControlStoreError as error:  # `decide` repeats the action
            logger.warning("%s", error)
            return
        scope.note_outcome(outcome, self._context.system.monotonic_seconds())

    def _must_wait(self) -> bool:
        """Return True if less than `poll_seconds` have passed since the last attempt to write."""
        now = self._context.system.monotonic_seconds()
        if now < self._not_before:
            return True
        self._not_before = now + self._context.node.supervise.poll_seconds
        return False
