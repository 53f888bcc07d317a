"""Keeps a warm standby for the node's next trainers, and starts trainers from it."""

from __future__ import annotations

from collections.abc import Mapping

from bootstrap.context import Context
from bootstrap.documents import RunDocument
from bootstrap.events.schema import StandbyReady
from bootstrap.imds import InstanceIdentity
from bootstrap.interpreter import find_interpreter
from bootstrap.supervise.decide import is_anyone_training
from bootstrap.supervise.membership.records import GenerationRecord
from bootstrap.supervise.membership.scope import RunScope
from bootstrap.supervise.monitors import Board
from bootstrap.supervise.run_loading import RunLoader
from bootstrap.supervise.situation import Active
from bootstrap.supervise.trainers.launch import Launch, launcher_arguments, trainer_environment
from bootstrap.supervise.trainers.standby import PAUSE_SECONDS, STANDBY_LOG, Kind, Standby
from bootstrap.supervise.trainers.trainer import WarmStart


class WarmStarts:
    """The node's standby. Only the main loop uses this class.

    Args:
        context: the node.
        board: what the monitors have read.
        identity: the instance.
        loader: loads the run's code.
        is_enabled: False if the trainers are not started by the launcher, so that no standby can become one.
    """

    def __init__(
        self, context: Context, board: Board, identity: InstanceIdentity, loader: RunLoader, *, is_enabled: bool
    ) -> None:
        self._context, self._board, self._identity, self._loader = context, board, identity, loader
        self._standby = Standby(context.layout.root / STANDBY_LOG) if is_enabled else None

    def plan(self, run: RunDocument, record: GenerationRecord, rank: int) -> Launch:
        """Return the inputs for starting a generation's trainers on this node."""
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

    def keep(self, active: Active | None, *, is_concluded: bool) -> None:
        """Create a standby for the next generation when the current trainers no longer need all cores.

        Args:
            active: the running generation.
            is_concluded: True if this node has concluded that the run has ended.
        """
        run, board = self._board.run, self._board
        if self._standby is not None and (seconds := self._standby.take_import_seconds()) is not None:
            self._context.events.emit(StandbyReady(round(seconds, 3)))
        if self._standby is None or run is None or self._loader.loaded_digest != run.digest():
            return
        if board.notice is not None or board.scale_in_since_unix is not None or is_concluded:
            return
        if active is not None:
            busy_until = max(active.started_at, self._standby.imported_at())
            if self._context.system.monotonic_seconds() - busy_until < PAUSE_SECONDS:
                return
        kind = _kind(run)
        if not self._standby.needs(kind):
            return
        # The standby's environment does not depend on its generation, which has not been elected yet.
        placeholder = GenerationRecord(
            0, run.digest(), (), self._identity.private_address, 0, self._identity.instance_id
        )
        launch = self.plan(run, placeholder, 0)
        environment = trainer_environment(launch, self._context.system.environment())
        self._standby.create(kind, launch.interpreter, environment, self._context.layout.root)

    def is_warming(self, scope: RunScope | None, last_generation: int) -> bool:
        """Return True if this node is not ready to take part yet because its standby is not ready.

        A node that joins a training gang waits until its standby has finished its imports, because the gang keeps
        training. If no node is training, it waits only for the standby's first byte: a standby that is still importing
        can be used, but a cold start would compete with it for the cores. A member of the newest generation starts
        immediately, with a cold start if necessary.

        Args:
            scope: the run's control records; None before the run document has been read.
            last_generation: the last generation in which this node took part; 0: none.
        """
        if self._standby is None:
            return False
        peers, observed_at, newest, _ = scope.view() if scope is not None else ((), None, None, None)
        if newest is not None and newest.rank_of(self._identity.instance_id) is not None:
            return False
        newest_generation = newest.generation if newest is not None else 0
        timings = self._context.node.supervise
        if observed_at is None or is_anyone_training(peers, newest_generation, timings):
            return self._standby.is_warming()
        return last_generation == 0 and self._standby.is_silent()

    def start(self, launch: Launch, environment: Mapping[str, str]) -> WarmStart | None:
        """Return the function that makes the standby the launcher; None without a standby."""
        standby = self._standby
        if standby is None:
            return None
        return lambda directory, log: standby.start(
            _kind(launch.run), launcher_arguments(launch), environment, directory, log
        )

    def end(self) -> None:
        """End the standby."""
        if self._standby is not None:
            self._standby.end()


def _kind(run: RunDocument) -> Kind:
    return Kind(run.code.sha256, run.processes_per_node)
