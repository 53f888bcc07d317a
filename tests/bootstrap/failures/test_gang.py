"""Failures between nodes lead to one event with a remedy in CloudWatch Logs, and the run continues."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path
from typing import Any

import psutil

from bootstrap.aws import Aws
from bootstrap.context import FLUSH_SECONDS, attach_shipper
from bootstrap.imds import InstanceIdentity
from bootstrap.supervise.actor import Actor
from bootstrap.supervise.membership.control import ControlStore
from bootstrap.supervise.membership.records import Member
from bootstrap.supervise.membership.scope import RunScope
from bootstrap.supervise.monitors import Board
from bootstrap.supervise.run_loading import RunLoader
from bootstrap.supervise.saved_state import SavedState
from bootstrap.supervise.situation import Elect
from bootstrap.supervise.trainers.launch import launcher_command
from tests.bootstrap.account import REGION, Account
from tests.bootstrap.test_steps import real
from tests.bootstrap.test_supervisors import Fleet, Node, fleet

__all__ = ["fleet"]


def uploaded(account: Account, instance_id: str, event: str) -> list[dict[str, Any]]:
    """Return the events with this name that a node has delivered."""
    try:
        stream = account.logs.get_log_events(logGroupName=account.log_group, logStreamName=instance_id)
    except account.logs.exceptions.ResourceNotFoundException:
        return []
    found = [json.loads(each["message"]) for each in stream["events"]]
    return [each for each in found if each["event"] == event]


def the_one(fleet: Fleet, node: Node, event: str) -> dict[str, Any]:
    """Wait for the delivery of exactly one event with this name; check its remedy."""
    fleet.wait(lambda: uploaded(fleet.account, node.instance_id, event), f"the event {event}")
    (found,) = uploaded(fleet.account, node.instance_id, event)
    assert found["remedy"] and found["message"]
    return found


def freeze(node: Node) -> list[psutil.Process]:
    """Stop a node's supervisor and its descendants, which simulates a machine that hangs."""
    supervisor = psutil.Process(node.process.pid)
    frozen = [supervisor, *supervisor.children(recursive=True)]
    for process in frozen:
        process.send_signal(signal.SIGSTOP)
    return frozen


def test_missing_peers_are_reported_and_waited_for(fleet: Fleet) -> None:
    fleet.run(nodes=3, min_nodes=2)
    node = fleet.launch()
    event = the_one(fleet, node, "gang_incomplete")
    assert (event["ready_instance_ids"], event["nodes"], event["min_nodes"]) == ([node.instance_id], 3, 2)
    assert "capacity.min_nodes" in event["remedy"]
    assert node.events("generation_started") == []
    fleet.launch()  # late
    fleet.wait(lambda: fleet.outcome(), "the outcome")
    assert len(node.events("gang_incomplete")) == 1


def test_a_frozen_node_that_was_declared_lost_ends_its_part_and_rejoins(fleet: Fleet) -> None:
    fleet.run(nodes=2, min_nodes=1, training={"steps": 100_000, "step_seconds": 0.01})
    nodes = [fleet.launch(), fleet.launch()]
    fleet.wait(lambda: any(len(node.trainer("checkpoint")) > 1 for node in nodes), "checkpoints")
    first = fleet.account.control("generations/00000001.json")["members"][0]["instance_id"]
    lost, survivor = sorted(nodes, key=lambda node: node.instance_id != first)  # rank 0, which would commit
    frozen = freeze(lost)
    try:
        fleet.wait(lambda: len(survivor.events("generation_started")) == 2, "a generation of the survivor")
    finally:
        for process in reversed(frozen):
            process.send_signal(signal.SIGCONT)
    event = the_one(fleet, lost, "generation_ended")
    assert (event["generation"], event["outcome"]) == (1, "lost_peer")
    assert "refused" in event["remedy"]
    fleet.wait(lambda: len(lost.events("generation_started")) == 2, "the node in a gang again")
    assert not any(process.is_running() and process.pid != lost.process.pid for process in frozen)
    assert lost.process.poll() is None


def test_a_clock_jump_is_reported_and_changes_nothing(fleet: Fleet) -> None:
    fleet.run(training={"steps": 300, "step_seconds": 0.01})
    nodes = [fleet.launch(), fleet.launch()]
    fleet.wait(lambda: any(node.trainer("checkpoint") for node in nodes), "a checkpoint")
    (nodes[1].root / "clock-offset-seconds").write_text("3600")
    assert the_one(fleet, nodes[1], "clock_jumped")["seconds"] > 3500
    fleet.wait(lambda: fleet.outcome(), "the outcome")
    assert fleet.outcome()["outcome"] == "finished"
    assert [len(node.events("generation_started")) for node in nodes] == [1, 1]


class Elector:
    """A ready node that acts as the first to have joined."""

    def __init__(self, account: Account, root: Path, number: int) -> None:
        context = real(account, root / str(number))
        run = context.run
        assert run is not None
        self.me = Member(f"i-{number}", f"127.0.0.{number}")
        identity = InstanceIdentity(self.me.instance_id, "c7i.2xlarge", "us-east-1a", self.me.address, "spot", None)
        context.identity = identity
        context.events.set_instance(identity.instance_id)
        shipper = attach_shipper(context)
        assert shipper is not None
        self.shipper = shipper
        board = Board()
        self.scope = RunScope(ControlStore(Aws(REGION).client("s3"), **account.scope(run.run)), identity.instance_id)
        board.run, board.scope = run, self.scope
        loader = RunLoader(context, board.wake)
        loader.loaded_digest = run.digest()
        state = SavedState(identity.instance_id, 5.0)
        self.actor = Actor(context, board, identity, state, loader, launcher_command)

    def elect(self, members: tuple[Member, ...]) -> None:
        self.actor.act(Elect(1, members))


def test_one_of_two_simultaneous_electors_wins_and_the_other_reports_it(account: Account, tmp_path: Path) -> None:
    nodes = [Elector(account, tmp_path, number) for number in (1, 2)]
    both = tuple(node.me for node in nodes)
    barrier = threading.Barrier(2)

    def race(node: Elector, members: tuple[Member, ...]) -> None:
        barrier.wait()
        node.elect(members)

    threads = [
        threading.Thread(target=race, args=(node, members))
        for node, members in zip(nodes, (both, both[::-1]), strict=False)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    record = account.control("generations/00000001.json")
    (loser,) = [node for node in nodes if node.me.instance_id != record["created_by"]]
    for node in nodes:
        assert node.shipper.close(FLUSH_SECONDS)
    lost = [event for node in nodes for event in uploaded(account, node.me.instance_id, "election_lost")]
    assert [(event["instance_id"], event["generation"]) for event in lost] == [(loser.me.instance_id, 1)]
    assert lost[0]["remedy"]
    newest = loser.scope.store.observe().newest
    assert newest is not None and newest.rank_of(loser.me.instance_id) == 1  # its rank in that generation
