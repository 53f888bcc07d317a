"""The supervisor's main loop: observe, decide and act, several times per second, until the node leaves."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
import traceback
from collections.abc import Iterator

from bootstrap.context import (
    FLUSH_SECONDS,
    Context,
    attach_shipper,
    failure_event,
    identify,
    make_context,
    read_node_document,
    report_failure,
)
from bootstrap.documents.supervisor_limits import PING_SECONDS
from bootstrap.errors import BootstrapError, StepError
from bootstrap.events.schema import SupervisorStarted
from bootstrap.imds import InstanceIdentity
from bootstrap.layout import Layout
from bootstrap.supervise import gpu_watches
from bootstrap.supervise.actor import Actor
from bootstrap.supervise.anomalies import Anomalies
from bootstrap.supervise.decide import decide, node_state, reclaim_unix
from bootstrap.supervise.leaving import complete_hook, complete_hook_if_terminating, shut_down, wait_for_reclaim
from bootstrap.supervise.membership.control import ControlStore
from bootstrap.supervise.membership.pings import Pings
from bootstrap.supervise.membership.records import Heartbeat, Member, NodeState, RunOutcome
from bootstrap.supervise.membership.scope import RunScope
from bootstrap.supervise.monitors import (
    RUN_DOCUMENT_POLLS,
    Board,
    ControlWatch,
    HeartbeatWriter,
    MetadataWatch,
    Monitor,
    RunDocumentWatch,
)
from bootstrap.supervise.run_loading import RunLoader
from bootstrap.supervise.run_status import INTERVAL_SECONDS as STATUS_SECONDS
from bootstrap.supervise.run_status import StatusWriter
from bootstrap.supervise.saved_state import load_state, save_state
from bootstrap.supervise.situation import Leave, Situation, Wanted
from bootstrap.supervise.trainers.launch import LaunchCommand, launcher_command
from bootstrap.supervise.trainers.results import EVENT_FILES_INTERVAL_SECONDS
from bootstrap.supervise.trainers.trainer import kill_left_over
from bootstrap.supervise.volume_snapshot import VolumeSnapshot
from bootstrap.system import OUTPUT_TAIL_BYTES, System

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.1
# Between generations, nodes wait for each other's records, so they poll more often for a limited time.
EAGER_FACTOR = 4
EAGER_SECONDS = 30.0


def supervise(system: System, layout: Layout, command: LaunchCommand = launcher_command) -> bool:
    """Supervise until the node leaves. Return False if the supervisor itself failed.

    A supervisor failure is reported in the same way as a boot failure, and the instance shuts down.

    Raises:
        BootstrapError: The node document is missing or invalid.
    """
    context = make_context(system, layout, read_node_document(system, layout))
    shipper = None
    try:
        identify(context)
        assert context.identity is not None
        shipper = attach_shipper(context)
        with signals() as signalled:
            left = Supervisor(context, context.identity, command, signalled).run()
    except Exception as error:  # noqa: BLE001 top level of the process: an idle instance still costs money
        logger.exception("the supervisor failed")
        problem = StepError(
            f"{type(error).__name__}: {error}",
            remedy="see the traceback; report a bug in the supervisor",
            output_tail=traceback.format_exc()[-OUTPUT_TAIL_BYTES:],
        )
        failure = failure_event("supervise", problem)
        context.events.emit(failure)
        report_failure(context, "supervisor-failure.json", failure)
        if shipper is not None:
            shipper.close(FLUSH_SECONDS)
        complete_hook_if_terminating(context)
        shut_down(context)
        return False
    if shipper is not None:
        # Flush events first, such as run_finished: the group may terminate the instance right after the hook.
        shipper.close(FLUSH_SECONDS)
    is_terminating, ends_itself = left.complete_hook, left.shut_down
    if left.shut_down and left.reclaim_unix is not None:
        with signals() as signalled:
            is_terminating, ends_itself = wait_for_reclaim(context, left.reclaim_unix, signalled)
    if is_terminating:
        complete_hook(context, context.identity)
    if ends_itself:
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
        state = load_state(context.system, context.layout, identity.instance_id)
        save_state(context.system, context.layout, state)
        self._loader = RunLoader(context, self._board.wake)
        self._anomalies = Anomalies(context)
        self._pings = Pings(identity.private_address, on_news=self._hurry_records)
        self._actor = Actor(context, self._board, identity, state, self._loader, command, self._pings.tell)
        self._writer = HeartbeatWriter(self._board, self._heartbeat("ready", ""), self._pings.tell)
        timings, wake = context.node.supervise, self._board.wake
        run_seconds = RUN_DOCUMENT_POLLS * timings.poll_seconds
        self._status = StatusWriter(context.system.unix_seconds)
        self._status_monitor = Monitor("run status", STATUS_SECONDS, self._status.check, wake)
        self._beats = Monitor("heartbeat", timings.heartbeat_seconds, self._writer.check, wake)
        self._records = Monitor("control records", timings.poll_seconds, ControlWatch(context, self._board).check, wake)
        self._monitors = [
            Monitor("instance metadata", timings.poll_seconds, MetadataWatch(context, self._board).check, wake),
            Monitor("run document", run_seconds, RunDocumentWatch(context, self._board).check, wake),
            self._records,
            self._beats,
            self._status_monitor,
            Monitor("event files", EVENT_FILES_INTERVAL_SECONDS, self._actor.results.upload_event_files, wake),
        ]
        if context.node.gpus:
            use = gpu_watches.GpuUseWatch(context).check
            self._monitors.append(Monitor("GPU use", gpu_watches.USE_INTERVAL_SECONDS, use, wake))
            faults = gpu_watches.GpuFaultWatch(context, self._board).check
            self._monitors.append(Monitor("GPU faults", gpu_watches.FAULT_INTERVAL_SECONDS, faults, wake))

    @property
    def recorded(self) -> RunOutcome | None:
        """The recorded outcome of the current run document, or None."""
        run, scope = self._board.run, self._board.scope
        return None if run is None or scope is None else _for_digest(scope.view()[3], run.digest())

    def run(self) -> Leave:
        """Supervise until the node leaves. Return the pending actions."""
        snapshot = VolumeSnapshot(self._context)
        left_over = kill_left_over(self._context.layout.root)
        if left_over:
            logger.warning("killed trainers that an earlier supervisor left behind: %s", left_over)
        self._context.events.emit(
            SupervisorStarted(
                instance_type=self._identity.instance_type,
                availability_zone=self._identity.availability_zone,
                market=self._identity.market,
                private_address=self._identity.private_address,
            )
        )
        self._pings.start()
        for monitor in self._monitors:
            monitor.start()
        try:
            while self._actor.left is None:
                self._board.wake.clear()
                self._tick()
                self._board.wake.wait(TICK_SECONDS)
            if self._actor.left.shut_down and self._actor.left.run_continues:
                snapshot.start()
            self._send_last_records()
        finally:
            self._actor.end_trainer()
            for monitor in self._monitors:
                monitor.stop()
            self._pings.stop()
        snapshot.finish()
        return self._actor.left

    def _tick(self) -> None:
        for failure in (*(monitor.failure for monitor in self._monitors), self._loader.failure):
            if failure is not None:
                raise failure
        self._choose_scope()
        self._actor.warm.keep(self._actor.active, is_concluded=self._actor.judgement is not None)
        self._follow()
        situation = self._situation()
        self._anomalies.check(situation)
        if situation is None:
            self._leave_early()
            return
        for action in decide(situation):
            self._actor.act(action)
        self._pace(situation)
        self._follow_status()
        after = self._situation()
        if after is not None and self._writer.update(self._heartbeat(node_state(after), self._reported_digest())):
            self._beats.hurry()

    def _follow_status(self) -> None:
        """Report the status of the active generation if this node is its first member."""
        scope, active, trainer = self._board.scope, self._actor.active, self._actor.trainer
        if scope is not None and trainer is not None:
            record = active.record if active is not None and active.rank == 0 else None
            if self._status.follow(scope.store, record, trainer.progress):
                self._status_monitor.hurry()
        elif self._status.conclude():
            self._status_monitor.hurry()

    def _pace(self, situation: Situation) -> None:
        """Set the interval for reading the control records."""
        since, timings = situation.ready_since, self._context.node.supervise
        poll_seconds = timings.poll_seconds
        active = situation.active
        eager = since is not None and situation.recorded is None and situation.now - since < EAGER_SECONDS
        if active is not None:  # a peer may be lost, or a change in place is under way: check soon
            is_changing = bool(active.pending or active.fenced_by) or active.changing_since is not None
            eager = is_changing or any((peer.unanswered_seconds or 0.0) > PING_SECONDS for peer in situation.peers)
        self._records.interval_seconds = poll_seconds / EAGER_FACTOR if eager else poll_seconds

    def _hurry_records(self) -> None:
        self._records.hurry()

    def _choose_scope(self) -> None:
        """Switch to the control records of another run, after the old run's trainers have exited."""
        run, scope = self._board.run, self._board.scope
        if run is None or self._actor.active is not None or (scope is not None and scope.store.run == run.run):
            return
        s3 = self._context.aws.client("s3", patience="low")
        node = self._context.node
        store = ControlStore(s3, bucket=node.control_bucket, fleet=node.deployment, run=run.run, role_id=node.role_id)
        self._actor.forget_generation()
        poll_seconds = self._context.node.supervise.poll_seconds
        self._board.scope = RunScope(store, self._identity.instance_id, self._pings, poll_seconds)
        self._records.hurry()

    def _follow(self) -> None:
        """Update this node's state: its trainers, its conclusion, and the time when it became ready."""
        run, scope, actor = self._board.run, self._board.scope, self._actor
        if run is None or scope is None:
            return
        digest = run.digest()
        self._loader.follow(digest)
        peers, _, _, outcome = scope.view()
        if actor.active is not None:
            generation = actor.active.record.generation
            actor.watch_trainer(frozenset(peer.instance_id for peer in peers if peer.generation == generation))
        if _for_digest(outcome, digest) is not None:
            actor.forget_judgement()
        if actor.judgement is not None and actor.judgement.run_digest != digest:
            actor.judgement = None
        if actor.active is not None or self._ready_digest() != digest:
            actor.ready_since = None
        elif actor.ready_since is None:
            actor.ready_since = self._context.system.monotonic_seconds()

    def _situation(self) -> Situation | None:
        """Return the current situation, or None until the run document has been read."""
        board, actor, system = self._board, self._actor, self._context.system
        run, scope = board.run, board.scope
        if run is None or scope is None:
            return None
        digest, now = run.digest(), system.monotonic_seconds()
        peers, observed_at, newest, outcome = scope.view()
        loaded = self._ready_digest()
        return Situation(
            now=now,
            now_unix=system.unix_seconds(),
            me=Member(self._identity.instance_id, self._identity.private_address),
            joined_unix_seconds=actor.state.joined_unix_seconds,
            timings=self._context.node.supervise,
            wanted=Wanted(digest, run.nodes, run.min_nodes),
            loaded_digest=loaded,
            loading="running" if self._is_warming() else self._loader.state(digest),
            loading_message=self._loader.message,
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
            last_generation=scope.last_generation,
            stopped_since_unix=board.stopped_since_unix,
            restart_generation=board.desired.restart_generation(run.run),
            free_until_unix=board.free_until_unix,
            signal_seconds=None if self._context.pod is None else self._context.pod.signal_seconds,
            ends_with_run=self._context.pod is not None,
        )

    def _leave_early(self) -> None:
        """Leave, if necessary, before the run document has been read. There is nothing to save yet."""
        board = self._board
        if board.notice is not None or board.scale_in_since_unix is not None or board.gpu_fault or self._signalled:
            hook, signalled = board.scale_in_since_unix is not None, bool(self._signalled)
            reclaim = None
            if board.notice is not None and not hook:
                reclaim = reclaim_unix(board.notice, board.noticed_unix, board.free_until_unix)
            reason = "leaving before the run document was read"
            self._actor.act(Leave(reason, hook, not signalled, reclaim_unix=reclaim))

    def _ready_digest(self) -> str | None:
        """Return the digest of the run document that this node is ready for, or None."""
        return None if self._is_warming() else self._loader.loaded_digest

    def _is_warming(self) -> bool:
        return self._actor.warm.is_warming(self._board.scope, self._actor.last_generation)

    def _reported_digest(self) -> str:
        """Return the heartbeat's digest: that of the active run or of a run that is ready, or an empty string."""
        if self._actor.active is not None:
            return self._actor.active.record.run_digest
        run, ready = self._board.run, self._ready_digest()
        return ready if run is not None and ready == run.digest() else ""

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
            joined_unix_seconds=actor.state.joined_unix_seconds,
            outcome=ended.outcome if ended is not None else None,
            port=self._pings.port,
        )

    def _send_last_records(self) -> None:
        """Write the ended generation's status if it is still unwritten, and notify the peers of the departure."""
        with contextlib.suppress(BootstrapError):  # the next generation's first member writes a newer status
            self._status.check()
        self._writer.update(self._heartbeat("draining", self._reported_digest()))
        with contextlib.suppress(BootstrapError):  # the peers will detect the missing heartbeats
            self._writer.check()


def _for_digest(outcome: RunOutcome | None, digest: str) -> RunOutcome | None:
    return outcome if outcome is not None and outcome.run_digest == digest else None


@contextlib.contextmanager
def signals() -> Iterator[list[float]]:
    """Return a list that is empty until the first SIGTERM or SIGINT, and then contains its time."""
    received: list[float] = []

    def note(number: int, frame: object) -> None:
        if not received:
            received.append(time.time())

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
