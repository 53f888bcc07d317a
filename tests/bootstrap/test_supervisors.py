"""Supervisors as real processes, each with its own root and metadata service, sharing one S3, SSM and Logs."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from bootstrap.documents.desired_state import DesiredState, Restart
from tests.bootstrap.account import Account
from tests.bootstrap.metadata_server import MetadataServer
from tests.bootstrap.waiting import wait_or_fail

HERE = Path(__file__).parent
DEADLINE_SECONDS = 90.0


COPIED_VOLUME = {
    "kind": "checkpoint",
    "device": "/dev/sdg",
    "mount": "/proc",
    "read_only": False,
    "warm": False,
    "volume_id": "vol-0123456789abcdef0",
    "availability_zone": "us-east-1a",
    "restored_elsewhere": True,
}


class Node:
    """A supervisor process and its simulated machine."""

    def __init__(
        self,
        account: Account,
        directory: Path,
        shared: Path,
        number: int,
        *arguments: str,
        timings: Mapping[str, float],
    ) -> None:
        self.arguments = arguments
        self.instance_id = f"i-{number:04d}"
        self.root = directory / self.instance_id
        self.root.mkdir()
        document = account.node(volumes=[COPIED_VOLUME])
        document["supervise"].update(timings)
        (self.root / "node.json").write_text(json.dumps(document))
        self.metadata = MetadataServer(self.instance_id, f"127.0.0.{10 + number}")
        self.environment = {
            **os.environ,
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": self.metadata.endpoint,
            "PYTHONPATH": str(HERE.parent.parent),
            "STANDIN_SHARED": str(shared),
        }
        self.start()

    def start(self) -> None:
        with (self.root / "console.log").open("ab") as console:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "node_process.py"), str(self.root), *self.arguments],
                env=self.environment,
                stdout=console,
                stderr=subprocess.STDOUT,
            )

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        path = self.root / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [event for event in map(json.loads, lines) if name is None or event["event"] == name]

    def trainer(self, record: str) -> list[dict[str, Any]]:
        return [event["record"] for event in self.events("trainer") if event["record"]["record"] == record]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.metadata.close()


class Fleet:
    """Starts nodes and kills them after the test."""

    def __init__(self, account: Account, directory: Path, code: dict[str, str]) -> None:
        self.account, self.code = account, code
        self._directory, self._shared = directory, directory / "shared"
        self._shared.mkdir()
        self.nodes: list[Node] = []

    def launch(self, *arguments: str, **timings: float) -> Node:
        """Start a node; the mount point of its checkpoint volume is a file system without saves."""
        number = len(self.nodes) + 1
        node = Node(self.account, self._directory, self._shared, number, *arguments, timings=timings)
        self.nodes.append(node)
        return node

    def run(self, **changes: Any) -> dict[str, Any]:
        run = self.account.run(**{"code": self.code, **changes})
        self.account.put_run(run)
        return run

    @property
    def saved_step(self) -> int:
        return int((self._shared / "checkpoint").read_text())

    def trainer_pids(self, generation: int) -> list[int]:
        return [int(path.read_text()) for path in (self._shared / f"gen-{generation}").glob("here-*")]

    def outcome(self) -> Any:
        try:
            return self.account.control("outcome.json")
        except self.account.s3.exceptions.NoSuchKey:
            return None

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        def consoles() -> str:
            return "\n".join(f"== {node.root}\n{(node.root / 'console.log').read_text()}" for node in self.nodes)

        return wait_or_fail(condition, DEADLINE_SECONDS, what, consoles)


@pytest.fixture
def fleet(account: Account, tmp_path: Path, stand_in: str) -> Iterator[Fleet]:
    # The launcher imports only the standard library.
    launcher = Path(__file__).parents[2] / "training" / "process" / "launcher.py"
    files = {"training/__init__.py": "", "training/__main__.py": stand_in, "training/process/__init__.py": ""}
    code = account.put_code({**files, "training/process/launcher.py": launcher.read_text()})
    account.put_dataset({"train-00000.bin": b"\1\0" * 100})
    fleet = Fleet(account, tmp_path, code)
    yield fleet
    for node in fleet.nodes:
        node.close()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_run_finishes_and_nodes_wait_for_scale_in(fleet: Fleet) -> None:
    fleet.run()
    first, second = fleet.launch(), fleet.launch()
    fleet.wait(lambda: fleet.outcome(), "the outcome")
    assert fleet.outcome()["outcome"] == "finished"
    record = fleet.account.control("generations/00000001.json")
    assert sorted(member["instance_id"] for member in record["members"]) == ["i-0001", "i-0002"]
    master = next(node for node in fleet.nodes if node.instance_id == record["created_by"])
    assert record["members"][0]["instance_id"] == master.instance_id
    assert record["master_address"] == master.metadata.paths["local-ipv4"]
    fleet.wait(lambda: master.events("run_finished"), "the event")
    status = fleet.account.control("status.json")
    last = fleet.account.control(f"generations/{status['generation']:08d}.json")
    assert (status["run"], status["members"]) == ("first", [member["instance_id"] for member in last["members"]])
    sent = "".join(each["text"] for each in master.events("trainer_output") if each["generation"] == 1)
    assert sent == (master.root / "runs" / "first" / "gen-1" / "trainer.log").read_text()
    assert [each["step"] for each in master.trainer("step")] == list(range(1, 21))
    (uploaded,) = fleet.wait(lambda: master.events("results_uploaded"), "the results")
    assert uploaded["url"].endswith("/first/results/gen-1/node-0/") and uploaded["bytes"] > 0
    second.metadata.paths["autoscaling/target-lifecycle-state"] = "Terminated"
    assert second.process.wait(DEADLINE_SECONDS) == 0
    assert (second.root / "shut-down").exists()
    assert first.process.poll() is None
    assert not second.events("checkpoint_snapshot"), "the run has ended: no snapshot"
    stream = fleet.account.logs.get_log_events(logGroupName=fleet.account.log_group, logStreamName="i-0002")
    assert "node_leaving" in [json.loads(event["message"])["event"] for event in stream["events"]]


def test_a_notice_saves_and_the_replacement_resumes(fleet: Fleet) -> None:
    fleet.run(training={"steps": 400, "step_seconds": 0.01, "save_every": 1000})
    fleet.launch(), fleet.launch()
    fleet.wait(lambda: any(len(node.trainer("step")) > 20 for node in fleet.nodes), "steps")
    leaving = fleet.nodes[1]
    leaving.metadata.notice(60)
    assert leaving.process.wait(DEADLINE_SECONDS) == 0
    assert (leaving.root / "shut-down").exists()
    concurrent = ("trainer", "results_uploaded")
    names = [event["event"] for event in leaving.events() if event["event"] not in concurrent]
    assert names[-4:] == ["interruption_notice", "generation_ended", "node_leaving", "checkpoint_snapshot"]
    (snapshot,) = leaving.events("checkpoint_snapshot")
    assert (snapshot["outcome"], snapshot["message"]) == ("not_needed", "the volume does not contain a save")
    assert leaving.events("generation_ended")[0]["outcome"] == "stopped"
    saved = fleet.saved_step
    assert saved > 20
    fleet.launch()
    fleet.wait(lambda: fleet.outcome(), "the outcome")
    starts = [start for node in fleet.nodes for start in node.trainer("start")]
    assert [start["resumed_from_step"] for start in sorted(starts, key=lambda each: each["unix_seconds"])] == [
        None,
        saved,
    ]
    assert fleet.outcome()["step"] == 400
    # The survivor joined first, so it is the master of the second generation.
    assert fleet.account.control("generations/00000002.json")["members"][0]["instance_id"] == "i-0001"


def test_a_silent_node_is_detected_and_its_trainers_are_killed(fleet: Fleet) -> None:
    fleet.run(training={"steps": 300, "step_seconds": 0.01})
    fleet.launch(), fleet.launch()
    fleet.wait(lambda: any(len(node.trainer("checkpoint")) > 1 for node in fleet.nodes), "checkpoints")
    survivor, lost = fleet.nodes
    pids = fleet.trainer_pids(1)
    lost.process.send_signal(signal.SIGKILL)
    lost.process.wait()
    fleet.wait(lambda: survivor.events("generation_ended"), "the end of the generation")
    assert survivor.events("generation_ended")[0]["outcome"] == "lost_peer"
    fleet.wait(lambda: not any(map(alive, pids)), "the trainers to exit")
    fleet.launch()
    fleet.wait(lambda: fleet.outcome(), "the outcome")
    assert fleet.outcome()["outcome"] == "finished"


def test_a_node_without_heart_beats_and_pongs_is_lost_before_the_time_out(fleet: Fleet) -> None:
    fleet.run(min_nodes=1, training={"steps": 100_000, "step_seconds": 0.01, "save_every": 1000})
    survivor, frozen = [fleet.launch(heartbeat_timeout_seconds=12) for _ in range(2)]
    fleet.wait(lambda: any(node.trainer("step") for node in fleet.nodes), "steps")
    fleet.wait(lambda: "pings: i-0002 responds" in (survivor.root / "console.log").read_text(), "an answer to a ping")
    frozen.process.send_signal(signal.SIGSTOP)
    (event,) = fleet.wait(lambda: survivor.events("generation_ended"), "the end of the generation")
    frozen.process.send_signal(signal.SIGCONT)
    assert (event["outcome"], event["message"]) == (
        "lost_peer",
        "i-0002 does not send heartbeats or respond to pings",
    )


def test_a_changed_run_document_restarts_in_place(fleet: Fleet, stand_in: str) -> None:
    fleet.run(training={"steps": 10000, "step_seconds": 0.01})
    first, second = fleet.launch(), fleet.launch()
    fleet.wait(lambda: any(len(node.trainer("step")) > 10 for node in fleet.nodes), "steps")
    changed = fleet.account.put_code({"training/__init__.py": "VERSION = 2", "training/__main__.py": stand_in}, "2.zip")
    fleet.run(code=changed, training={"steps": 1, "step_seconds": 0.01})
    fleet.wait(lambda: fleet.outcome(), "the outcome")
    for node in (first, second):
        assert node.process.poll() is None
        assert [event["outcome"] for event in node.events("generation_ended")][:1] == ["stopped"]
        digests = [event["run_digest"] for event in node.events("generation_started")]
        assert digests == [node.events("run_document_changed")[0][key] for key in ("old_digest", "new_digest")]
        assert (node.root / "code" / changed["sha256"]).is_dir()


def test_a_restart_keeps_the_instances_and_a_stop_ends_them(fleet: Fleet) -> None:
    fleet.run(training={"steps": 100_000, "step_seconds": 0.01})
    nodes = [fleet.launch(), fleet.launch()]
    fleet.wait(lambda: any(node.trainer("step") for node in nodes), "the first step")
    restart = DesiredState(restart=Restart("first", 1), requested_by="arn:aws:iam::1:user/ada", unix_seconds=1.0)
    fleet.account.put_desired(restart)
    fleet.wait(lambda: all(len(node.events("generation_started")) == 2 for node in nodes), "the second generation")
    ended = [node.events("generation_ended")[0] for node in nodes]
    assert {each["outcome"] for each in ended} == {"stopped"}
    resumed = fleet.wait(
        lambda: [one["resumed_from_step"] for node in nodes for one in node.trainer("start") if one["step"]], "a resume"
    )
    assert resumed == [ended[0]["step"]]
    fleet.account.put_desired(dataclasses.replace(restart, state="stopped"))
    for node in nodes:
        assert node.process.wait(timeout=DEADLINE_SECONDS) == 0
    last = [node.events("generation_ended")[1] for node in nodes]
    assert {(each["generation"], each["outcome"]) for each in last} == {(2, "stopped")}
    assert last[0]["step"] == fleet.saved_step
    status = fleet.account.control("status.json")
    assert (status["generation"], status["checkpoint"]["step"]) == (2, status["step"]), "the status has the last save"
    assert status["step"] == fleet.saved_step
    assert fleet.outcome() is None
    assert all(node.events("node_leaving")[0]["reason"] == "an operator stopped the run" for node in nodes)
    assert [each["state"] for each in nodes[0].events("desired_state_changed")] == ["running", "stopped"]


def test_a_restarted_supervisor_kills_old_trainers_and_rejoins(fleet: Fleet) -> None:
    fleet.run(nodes=1, min_nodes=1, training={"steps": 200, "step_seconds": 0.01})
    node = fleet.launch()
    fleet.wait(lambda: node.trainer("checkpoint"), "a checkpoint")
    node.process.kill()
    node.process.wait()
    node.start()
    fleet.wait(lambda: fleet.outcome(), "the outcome")
    assert [event["generation"] for event in node.events("generation_started")] == [1, 2]
    assert not any(map(alive, fleet.trainer_pids(1)))


def test_a_run_fails_after_three_tries(fleet: Fleet) -> None:
    fleet.run(training={"steps": 100, "step_seconds": 0.01, "fail_at": 15})
    fleet.launch(), fleet.launch()
    fleet.wait(lambda: fleet.outcome(), "the outcome")
    outcome = fleet.outcome()
    assert outcome["outcome"] == "failed"
    assert "the loss is not a number" in outcome["message"]
    prefix = f"runs/{fleet.account.name}/{fleet.account.run()['run']}/results/gen-1/"
    logs = fleet.account.s3.list_objects_v2(Bucket=fleet.account.checkpoints, Prefix=prefix)["Contents"]
    assert sorted(item["Key"] for item in logs if item["Key"].endswith("/trainer.log")) == [
        f"{prefix}node-{rank}/trainer.log" for rank in (0, 1)
    ]


def test_a_real_launcher_on_each_node(fleet: Fleet) -> None:
    fleet.run(processes_per_node=2, training={"steps": 1000, "step_seconds": 0.01})
    first, second = fleet.launch("launcher"), fleet.launch("launcher")
    fleet.wait(lambda: any(len(node.trainer("step")) > 5 for node in fleet.nodes), "steps")
    assert len(fleet.trainer_pids(1)) == 4
    fleet.run(processes_per_node=2, training={"steps": 1, "step_seconds": 0.01})
    fleet.wait(lambda: fleet.outcome(), "the outcome")
    for node in (first, second):  # rank 0 records the outcome while the launcher still exits on the other node
        fleet.wait(lambda node=node: len(node.events("generation_ended")) == 2, "both generations to end")
        assert [event["outcome"] for event in node.events("generation_ended")] == ["stopped", "finished"]
    assert not any(map(alive, fleet.trainer_pids(1) + fleet.trainer_pids(2)))


def test_a_bad_configuration_is_not_retried(fleet: Fleet) -> None:
    fleet.run(nodes=1, min_nodes=1, training={"steps": 1, "step_seconds": 0.01, "bad": True})
    node = fleet.launch()
    fleet.wait(lambda: fleet.outcome(), "the outcome")
    assert fleet.outcome()["outcome"] == "bad_configuration"
    assert "learning_rate" in fleet.outcome()["message"]
    fleet.run(nodes=1, min_nodes=1, training={"steps": 2, "step_seconds": 0.01})
    fleet.wait(lambda: fleet.outcome()["outcome"] == "finished", "the corrected run to finish")
    assert len(node.events("generation_started")) == 2
