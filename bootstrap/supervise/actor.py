"""Carries out what `decide` asks for, and holds what the node is doing: the generation, its trainers, the judgement."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from bootstrap.documents import RunDocument
from bootstrap.errors import ControlStoreError
from bootstrap.imds import InstanceIdentity
from bootstrap.plan import Context
from bootstrap.steps.code import remove_other_code
from bootstrap.steps.interpreter import find_interpreter
from bootstrap.supervise.decide import somebody_trains
from bootstrap.supervise.launch import (
    Launch,
    LaunchCommand,
    free_port,
    torchrun_arguments,
    torchrun_command,
    trainer_environment,
)
from bootstrap.supervise.memory import Memory, keep
from bootstrap.supervise.monitors import Board
from bootstrap.supervise.preparation import Preparation
from bootstrap.supervise.records import GenerationRecord, RunOutcome
from bootstrap.supervise.results import Results
from bootstrap.supervise.scope import RunScope
from bootstrap.supervise.situation import (
    Action,
    Active,
    Conclude,
    Elect,
    Judgement,
    Kill,
    Leave,
    Prepare,
    RecordRunOutcome,
    RequestSave,
    RequestStop,
    Result,
    Start,
)
from bootstrap.supervise.standby import PAUSE_SECONDS, STANDBY_LOG, Kind, Standby
from bootstrap.supervise.trainer import Trainer, WarmStart, remove_old_directories
from bootstrap.supervise.troubles import ELECTION_REMEDY, GENERATION_REMEDIES

logger = logging.getLogger(__name__)

RUN_DIRECTORIES_KEPT = 5
UPLOAD_LIMIT_SECONDS = 10.0


class Actor:
    """The supervisor's hands; only the main loop uses it."""

    def __init__(
        self,
        context: Context,
        board: Board,
        identity: InstanceIdentity,
        memory: Memory,
        preparation: Preparation,
        command: LaunchCommand,
    ) -> None:
        self._context = context
        self._board = board
        self._identity = identity
        self._preparation = preparation
        self._command = command
        self._standby = Standby(context.layout.root / STANDBY_LOG) if command is torchrun_command else None
        self._results = Results(context)
        self._not_before = 0.0
        self._lost_election = 0
        self._run: RunDocument | None = None
        self.memory = memory
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
        if isinstance(action, Start):
            self._start(action)
        elif isinstance(action, Elect):
            self._elect(action)
        elif isinstance(action, RequestStop):
            self._request_stop(action)
        elif isinstance(action, RequestSave):
            self._request_save()
        elif isinstance(action, Kill):
            self._kill(action)
        elif isinstance(action, Conclude):
            self._conclude(action)
        elif isinstance(action, RecordRunOutcome):
            self._record_outcome(action)
        elif isinstance(action, Prepare):
            assert self._board.run is not None
            self._preparation.start(self._board.run)
        else:
            self._leave(action)

    def watch_trainer(self, seen: frozenset[str]) -> None:
        """Take in what the trainers wrote, whether they ended, and which members were `seen` to take part."""
        if self.active is None or self.trainer is None:
            return
        if seen - self.active.seen:
            self.active = replace(self.active, seen=self.active.seen | seen)
        if self.active.result is not None:
            return
        result = self.trainer.poll()
        for record in self.trainer.new_records():
            self._context.events.emit("trainer", record=record)
        if result is not None:
            now = self._context.system.monotonic_seconds()
            self.active = replace(self.active, result=result, ended_at=now)

    def forget_generation(self) -> None:
        """Begin anew with another run's control records."""
        self.last_result, self.last_generation, self.judgement = None, 0, None

    def forget_judgement(self) -> None:
        """Leave the run's end to its record from now on: when a person removes that, the run is tried again."""
        if self.judgement is not None:
            self.judgement = None
            self.memory = self.memory.forgiven()
            keep(self._context.system, self._context.layout, self.memory)

    def end_trainer(self) -> None:
        """Kill the trainers, if there are any: the supervisor itself ends."""
        if self.trainer is not None and self.active is not None and self.active.result is None:
            self.trainer.kill("failed", "the supervisor ended")
        self._results.finish(UPLOAD_LIMIT_SECONDS)
        if self._standby is not None:
            self._standby.end()

    def keep_standby(self) -> None:
        """Let a process import torch and wait for the next generation, once nothing more urgent wants the cores."""
        run, board, active = self._board.run, self._board, self.active
        if self._standby is not None and (seconds := self._standby.news()) is not None:
            self._context.events.emit("standby_ready", seconds=round(seconds, 3))
        if self._standby is None or run is None or self._preparation.prepared_digest != run.digest():
            return
        if board.notice is not None or board.scale_in_since_unix is not None or self.judgement is not None:
            return
        if active is not None:
            starts_until = max(active.started_at, self._standby.imported_at())
            if self._context.system.monotonic_seconds() - starts_until < PAUSE_SECONDS:
                return
        kind = _kind(run)
        if not self._standby.lacks(kind):
            return
        nobody = GenerationRecord(0, run.digest(), (), self._identity.private_address, 0, self._identity.instance_id)
        launch = self._launch(run, nobody, 0)
        environment = trainer_environment(launch, self._context.system.environment())
        self._standby.make(kind, launch.interpreter, environment, self._context.layout.root)

    def is_warming(self, scope: RunScope | None) -> bool:
        """Return whether this node is not ready to take part yet, because of its standby.

        One that joins is ready when its standby has imported: the others train on meanwhile. Where nobody trains
        nothing is gained by that, for a standby that imports can be started: one word of it is enough, without which
        the start would be cold, and compete with the standby. Nobody waits for the standby of a node that has just
        trained with them: it starts at once, as well as it can.
        """
        if self._standby is None:
            return False
        peers, observed_at, newest, _ = scope.view() if scope is not None else ((), None, None, None)
        if newest is not None and newest.rank_of(self._identity.instance_id) is not None:
            return False
        newest_generation = newest.generation if newest is not None else 0
        timings = self._context.node.supervise
        if observed_at is None or somebody_trains(peers, newest_generation, timings):
            return self._standby.is_warming()
        return self.last_generation == 0 and self._standby.is_silent()

    def _launch(self, run: RunDocument, record: GenerationRecord, rank: int) -> Launch:
        return Launch(
            node=self._context.node,
            run=run,
            record=record,
            rank=rank,
            address=self._identity.private_address,
            interpreter=find_interpreter(self._context),
            layout=self._context.layout,
            instance_type=self._identity.instance_type,
        )

    def _warm_start(self, launch: Launch, environment: Mapping[str, str]) -> WarmStart | None:
        standby = self._standby
        if standby is None:
            return None
        return lambda directory, log: standby.start(
            _kind(launch.run), torchrun_arguments(launch), environment, directory, log
        )

    def _start(self, action: Start) -> None:
        run, record = self._board.run, action.record
        if run is None or run.digest() != record.run_digest:  # it has changed since the decision
            return
        launch = self._launch(run, record, action.rank)
        remove_old_directories(launch.directory.parent, RUN_DIRECTORIES_KEPT)
        remove_other_code(self._context, frozenset({run.code.sha256}))
        self.trainer = Trainer(self._context.system, launch.directory, launch.global_ranks, record.generation)
        environment = trainer_environment(launch, self._context.system.environment())
        self.trainer.start(self._command(launch), environment, run.training, self._warm_start(launch, environment))
        self._run = run
        self.last_result, self.last_generation, self.ready_since = None, record.generation, None
        self.active = Active(record, action.rank, self._context.system.monotonic_seconds())
        self._context.events.emit(
            "generation_started",
            generation=record.generation,
            members=[member.instance_id for member in record.members],
            rank=action.rank,
            world_size=launch.world_size,
            run=run.run,
            run_digest=record.run_digest,
        )

    def _elect(self, action: Elect) -> None:
        scope, run = self._board.scope, self._board.run
        if scope is None or run is None or self._preparation.prepared_digest != run.digest() or self._must_wait():
            return
        record = GenerationRecord(
            generation=action.generation,
            run_digest=run.digest(),
            members=action.members,
            master_address=self._identity.private_address,
            master_port=free_port(),
            created_by=self._identity.instance_id,
        )
        try:
            if scope.store.elect(record):
                scope.note_elected(record)
            elif record.generation != self._lost_election:
                self._lost_election = record.generation
                self._context.events.emit(
                    "election_lost",
                    generation=record.generation,
                    message=f"generation {record.generation} was written already: this node joins it, or waits",
                    remedy=ELECTION_REMEDY,
                )
        except ControlStoreError as error:  # whether it was written is seen by the watch
            logger.warning("%s", error)

    def _request_stop(self, action: RequestStop) -> None:
        assert self.trainer is not None and self.active is not None
        self.trainer.request_stop(action.reason, action.deadline_unix, train_on=action.train_on)
        # From here on the clock of this machine may be set: only the time until the deadline counts.
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
        failed = result.outcome == "failed"
        self._context.events.emit(
            "generation_ended",
            generation=record.generation,
            outcome=result.outcome,
            step=result.step,
            message=result.message,
            remedy=GENERATION_REMEDIES.get(result.outcome),
        )
        self._results.upload(self._run.run, record.generation, active.rank)
        if active.rank == 0:  # one node counts: the others do not know what was saved
            saved_step = self.trainer.saved_step
            self.memory = self.memory.after_generation(record.run_digest, failed=failed, saved_step=saved_step)
            keep(self._context.system, self._context.layout, self.memory)
        if result.outcome == "finished" or result.outcome == "bad_configuration":
            mine = active.rank == 0 or result.outcome == "bad_configuration"
            self.judgement = Judgement(
                result.outcome, record.run_digest, result.step, result.message, mine=mine, since=now
            )
            if result.outcome == "finished" and active.rank == 0:
                self._context.events.emit(
                    "run_finished", run=self._run.run, run_digest=record.run_digest, step=result.step
                )
        elif failed and active.rank == 0 and self.memory.gives_up:
            message = f"{self.memory.failures} failures without a further step saved; the last: {result.message}"
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
        except ControlStoreError as error:  # asked for again until it is there
            logger.warning("%s", error)
            return
        scope.note_outcome(outcome, self._context.system.monotonic_seconds())

    def _leave(self, action: Leave) -> None:
        self._context.events.emit("node_leaving", reason=action.reason)
        self.left = action

    def _must_wait(self) -> bool:
        """Return whether a write was tried a moment ago, so that a refusing bucket is not asked ten times a second."""
        now = self._context.system.monotonic_seconds()
        if now < self._not_before:
            return True
        self._not_before = now + self._context.node.supervise.poll_seconds
        return False


def _kind(run: RunDocument) -> Kind:
    return Kind(run.code.sha256, run.processes_per_node)
