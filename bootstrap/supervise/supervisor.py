"""The supervisor: monitors see, `decide` decides, the actor acts, several times a second, until the node leaves."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
import traceback
from collections.abc import Iterator

from bootstrap.boot import (
    FLUSH_SECONDS,
    attach_shipper,
    failure_record,
    make_context,
    read_node_document,
    report_failure,
)
from bootstrap.errors import BootstrapError, StepError
from bootstrap.imds import InstanceIdentity
from bootstrap.layout import Layout
from bootstrap.plan import Context
from bootstrap.supervise import gpu_faults, gpu_use
from bootstrap.supervise.actor import Actor
from bootstrap.supervise.control import ControlStore
from bootstrap.supervise.decide import decide, node_state
from bootstrap.supervise.launch import LaunchCommand, torchrun_command
from bootstrap.supervise.leaving import complete_hook, shut_down
from bootstrap.supervise.memory import keep, recall
from bootstrap.supervise.monitors import (
    RUN_DOCUMENT_POLLS,
    Board,
    ControlWatch,
    HeartbeatWriter,
    MetadataWatch,
    Monitor,
    RunDocumentWatch,
)
from bootstrap.supervise.pings import Pings
from bootstrap.supervise.preparation import Preparation
from bootstrap.supervise.records import Heartbeat, Member, NodeState, RunOutcome
from bootstrap.supervise.scope import RunScope
from bootstrap.supervise.situation import Leave, Situation, Wanted
from bootstrap.supervise.trainer import kill_left_over
from bootstrap.supervise.troubles import Troubles
from bootstrap.supervise.volume_snapshot import VolumeSnapshot
from bootstrap.system import OUTPUT_TAIL_BYTES, System

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.1
# Between two generations the nodes wait for each other's records: they look oftener, for as long as it is worth.
EAGER_FACTOR = 4
EAGER_SECONDS = 30.0


def supervise(system: System, layout: Layout, command: LaunchCommand = torchrun_command) -> bool:
    """Supervise until the node leaves; returns False when the supervisor itself failed.

    A failure of the supervisor is reported like one of boot, and the machine is given back: nobody else would.

    Raises:
        BootstrapError: There is no sound node document.
    """
    context = make_context(system, layout, read_node_document(system, layout))
    shipper = None
    try:
        context.identity = context.metadata.identity()
        context.events.set_instance(context.identity.instance_id)
        shipper = attach_shipper(context)
        with _signals() as signalled:
            left = Supervisor(context, context.identity, command, signalled).run()
    except Exception as error:  # noqa: BLE001 top level of the process: a machine without a supervisor only costs money
        logger.exception("the supervisor failed")
        problem = StepError(
            f"{type(error).__name__}: {error}",
            remedy="see the traceback; a defect of the supervisor is to be reported",
            output_tail=traceback.format_exc()[-OUTPUT_TAIL_BYTES:],
        )
        failure = failure_record("supervise", problem)
        context.events.emit("boot_failed", **failure)
        report_failure(context, "supervisor-failure.json", failure)
        if shipper is not None:
            shipper.close(FLUSH_SECONDS)
        shut_down(context)
        return False
    if shipper is not None:
        # Before the group may end the machine, and with it what was not said yet: that the run is finished, perhaps.
        shipper.close(FLUSH_SECONDS)
    if left.complete_hook:
        complete_hook(context, context.identity)
    if left.shut_down:
        shut_down(context)
    return True


class Supervisor:
    """One node's supervisor."""

    def __init__(
        self,
        context: Context,
        identity: InstanceIdentity,
        command: LaunchCommand,
        signalled: list[float],
    ) -> None:
        self._context = context
        self._identity = identity
        self._signalled = signalled
        self._board = Board()
        memory = recall(context.system, context.layout, identity.instance_id)
        keep(context.system, context.layout, memory)
        self._preparation = Preparation(context, self._board.wake)
        self._actor = Actor(context, self._board, identity, memory, self._preparation, command)
        self._troubles = Troubles(context)
        self._pings = Pings(identity.private_address)
        self._writer = HeartbeatWriter(self._board, self._heartbeat("ready", ""))
        timings, wake = context.node.supervise, self._board.wake
        run_seconds = RUN_DOCUMENT_POLLS * timings.poll_seconds
        self._beats = Monitor("heart-beat", timings.heartbeat_seconds, self._writer.look, wake)
        self._records = Monitor("control records", timings.poll_seconds, ControlWatch(context, self._board).look, wake)
        self._monitors = [
            Monitor("instance metadata", timings.poll_seconds, MetadataWatch(context, self._board).look, wake),
            Monitor("run document", run_seconds, RunDocumentWatch(context, self._board).look, wake),
            self._records,
            self._beats,
        ]
        if context.node.gpus:
            look = gpu_use.GpuUseWatch(context).look
            self._monitors.append(Monitor("GPU use", gpu_use.INTERVAL_SECONDS, look, wake))
            faults = gpu_faults.GpuFaultWatch(context, self._board).look
            self._monitors.append(Monitor("GPU faults", gpu_faults.INTERVAL_SECONDS, faults, wake))

    def run(self) -> Leave:
        """Supervise until the node leaves; returns what is left to do then."""
        snapshot = VolumeSnapshot(self._context)
        left_over = kill_left_over(self._context.layout.root)
        if left_over:
            logger.warning("killed trainers that an earlier supervisor left: %s", left_over)
        self._context.events.emit(
            "supervisor_started",
            instance_type=self._identity.instance_type,
            availability_zone=self._identity.availability_zone,
            market=self._identity.market,
            private_address=self._identity.private_address,
        )
        self._pings.start()
        for monitor in self._monitors:
            monitor.start()
        try:
            while self._actor.left is None:
                self._board.wake.clear()
                self._tick()
                self._board.wake.wait(TICK_SECONDS)
            if self._actor.left.shut_down and self._actor.left.run_goes_on:
                snapshot.begin()
            self._say_last_word()
        finally:
            self._actor.end_trainer()
            for monitor in self._monitors:
                monitor.stop()
            self._pings.stop()
        snapshot.finish()
        return self._actor.left

    def _tick(self) -> None:
        for failure in (*(monitor.failure for monitor in self._monitors), self._preparation.failure):
            if failure is not None:
                raise failure
        self._choose_scope()
        self._actor.keep_standby()
        self._follow()
        situation = self._situation()
        self._troubles.look(situation)
        if situation is None:
            self._leave_early()
            return
        for action in decide(situation):
            self._actor.act(action)
        self._pace(situation)
        after = self._situation()
        if after is not None and self._writer.say(self._heartbeat(node_state(after), self._said_digest())):
            self._beats.hurry()

    def _pace(self, situation: Situation) -> None:
        since, timings = situation.ready_since, self._context.node.supervise
        poll_seconds = timings.poll_seconds
        eager = since is not None and situation.recorded is None and situation.now - since < EAGER_SECONDS
        if situation.active is not None:  # is one of them gone? The next look tells
            eager = any((peer.unanswered_seconds or 0.0) > timings.heartbeat_seconds for peer in situation.peers)
        self._records.interval_seconds = poll_seconds / EAGER_FACTOR if eager else poll_seconds

    def _choose_scope(self) -> None:
        """Follow the run document to another run's control records, once the trainers of the old one are gone."""
        run, scope = self._board.run, self._board.scope
        if run is None or self._actor.active is not None or (scope is not None and scope.store.run == run.run):
            return
        s3 = self._context.aws.client("s3", impatient=True)
        store = ControlStore(s3, bucket=self._context.node.checkpoint_bucket, run=run.run)
        self._actor.forget_generation()
        poll_seconds = self._context.node.supervise.poll_seconds
        self._board.scope = RunScope(store, self._identity.instance_id, self._pings, poll_seconds)
        self._records.hurry()

    def _follow(self) -> None:
        """Bring what this node knows of itself up to date: its trainers, its judgement, since when it is ready."""
        run, scope, actor = self._board.run, self._board.scope, self._actor
        if run is None or scope is None:
            return
        digest = run.digest()
        self._preparation.follow(digest)
        peers, _, _, outcome = scope.view()
        if actor.active is not None:
            generation = actor.active.record.generation
            actor.watch_trainer(frozenset(peer.instance_id for peer in peers if peer.generation == generation))
        if _for_digest(outcome, digest) is not None:
            actor.forget_judgement()
        if actor.judgement is not None and actor.judgement.run_digest != digest:
            actor.judgement = None
        if actor.active is not None or self._prepared_digest() != digest:
            actor.ready_since = None
        elif actor.ready_since is None:
            actor.ready_since = self._context.system.monotonic_seconds()

    def _situation(self) -> Situation | None:
        """Return what is known now, or None before the run document was read for the first time."""
        board, actor, system = self._board, self._actor, self._context.system
        run, scope = board.run, board.scope
        if run is None or scope is None:
            return None
        digest, now = run.digest(), system.monotonic_seconds()
        peers, observed_at, newest, outcome = scope.view()
        prepared = self._prepared_digest()
        return Situation(
            now=now,
            now_unix=system.unix_seconds(),
            me=Member(self._identity.instance_id, self._identity.private_address),
            joined_unix_seconds=actor.memory.joined_unix_seconds,
            timings=self._context.node.supervise,
            wanted=Wanted(digest, run.nodes, run.min_nodes),
            prepared_digest=prepared,
            preparation="running" if self._is_warming() else self._preparation.state(digest),
            preparation_message=self._preparation.message,
            notice=board.notice,
            noticed_unix=board.noticed_unix,
            scale_in_since_unix=board.scale_in_since_unix,
            signalled_since_unix=self._signalled[0] if self._signalled else None,
            rebalance_pending=board.rebalance_time != actor.rebalance_handled,
            peers=peers,
            observed_at=observed_at,
            newest=newest,
            floor=scope.floor,
            active=actor.active,
            ready_since=actor.ready_since,
            recorded=_for_digest(outcome, digest),
            judgement=actor.judgement,
            gpu_fault=board.gpu_fault,
        )

    def _leave_early(self) -> None:
        """Leave when it is time to before the run document could be read: there is nothing to save."""
        board = self._board
        if board.notice is not None or board.scale_in_since_unix is not None or board.gpu_fault or self._signalled:
            hook, signalled = board.scale_in_since_unix is not None, bool(self._signalled)
            self._actor.act(Leave("told to leave before the run document was read", hook, not signalled))

    def _prepared_digest(self) -> str | None:
        """Return the digest of the run document that this node is ready for, or None."""
        return None if self._is_warming() else self._preparation.prepared_digest

    def _is_warming(self) -> bool:
        return self._actor.is_warming(self._board.scope)

    def _said_digest(self) -> str:
        """Return the digest to say: of what trains, else of what this node is ready for, else none."""
        if self._actor.active is not None:
            return self._actor.active.record.run_digest
        run, prepared = self._board.run, self._prepared_digest()
        return prepared if run is not None and prepared == run.digest() else ""

    def _heartbeat(self, state: NodeState, run_digest: str) -> Heartbeat:
        actor = self._actor
        active, ended = actor.active, actor.last_result
        if active is not None:
            ended = active.result
        return Heartbeat(
            instance_id=self._identity.instance_id,
            address=self._identity.private_address,
            sequence=0,
            state=state,
            generation=actor.last_generation,
            step=actor.trainer.step if actor.trainer is not None else ended.step if ended is not None else 0,
            run_digest=run_digest,
            joined_unix_seconds=actor.memory.joined_unix_seconds,
            outcome=ended.outcome if ended is not None else None,
            port=self._pings.port,
        )

    def _say_last_word(self) -> None:
        """Let the peers know at once that this node is gone."""
        self._writer.say(self._heartbeat("draining", self._said_digest()))
        with contextlib.suppress(BootstrapError):  # they will notice the silence
            self._writer.look()


def _for_digest(outcome: RunOutcome | None, digest: str) -> RunOutcome | None:
    return outcome if outcome is not None and outcome.run_digest == digest else None


@contextlib.contextmanager
def _signals() -> Iterator[list[float]]:
    """Turn SIGTERM and SIGINT into the time at which the first of them came (in a list, empty until then)."""
    came: list[float] = []

    def note(number: int, frame: object) -> None:
        if not came:
            came.append(time.time())

    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
