"""The decisions of a Slurm job, and its commands with recorded responses of Slurm."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bootstrap.slurm import commands
from bootstrap.slurm import job as job_module
from bootstrap.slurm.commands import SlurmError, lost_nodes
from bootstrap.slurm.decide import Seen, decide
from bootstrap.slurm.health import all_faults
from bootstrap.slurm.job import NOT_TRAINING, Job
from bootstrap.slurm.records import Generations, JobDocument, RecordError, read_document, write_json

ROOT = Path(__file__).resolve().parents[2]
NODES = ("n1", "n2")


def outcome(kind: str, step: int | None = None, message: str = "") -> dict[str, Any]:
    return {"outcome": kind, "checkpoint_step": step, "message": message}


def seen(*kinds: str | None, step: int | None = None, **values: Any) -> Seen:
    outcomes = {rank: outcome(kind, step) for rank, kind in enumerate(kinds) if kind is not None}
    return Seen(ranks=len(kinds), outcomes=outcomes, nodes=NODES, **values)


@pytest.mark.parametrize(
    ("state", "action", "cause"),
    [
        (seen("finished", "finished"), "finished", "finished"),
        (seen("finished", None, lost=frozenset({"n2"})), "finished", "finished"),
        (seen("bad_configuration", "bad_configuration"), "failed", "bad_configuration"),
        (seen("superseded", "failed", has_later=True), "superseded", "superseded"),
        (seen("superseded", "superseded"), "failed", "superseded"),
        (seen("stopped", "stopped", stopping=("preempted",)), "continue", "preempted"),
        (seen("stopped", "stopped", reason="time_limit"), "continue", "time_limit"),
        (seen(None, None, reason="time_limit"), "continue", "time_limit"),
        (seen("stopped", "stopped"), "continue", "stopped"),
        (seen("stopped", "stopped", stopped=True, reason="terminated"), "stopped", "stopped"),
        (seen(None, None, cancelled=True, stopping=("preempted",)), "stopped", "cancelled"),
        (seen("stopped", "stopped", stopping=("spot_notice",), avoided=frozenset({"n2"})), "continue", "node_avoided"),
        (seen("failed", None, lost=frozenset({"n2"})), "continue", "node_lost"),
        (seen("failed", None, lost=frozenset({"n2"}), reason="terminated", failures=2), "continue", "node_lost"),
        (seen("failed", "failed"), "again", "failed"),
        (seen("failed", "failed", failures=2), "failed", "failed"),
        (seen("failed", "failed", failures=2, checkpoint_before=5, step=9), "again", "failed"),
        (seen("failed", "failed", failures=2, checkpoint_before=9, step=9), "failed", "failed"),
        (seen("failed", "failed", reason="time_limit"), "continue", "failed"),
    ],
)
def test_decision(state: Seen, action: str, cause: str) -> None:
    found = decide(state, min_nodes=2, max_failures=3)
    assert (found.action, found.cause) == (action, cause)


def test_the_job_continues_on_enough_remaining_nodes() -> None:
    for state in (
        seen("failed", None, lost=frozenset({"n2"})),
        seen("stopped", "stopped", stopping=("spot_notice",), avoided=frozenset({"n2"})),
    ):
        found = decide(state, min_nodes=1, max_failures=3)
        assert (found.action, found.excluded, found.failures) == ("again", ("n2",), 0)


def test_preemptions_never_exhaust_the_failures() -> None:
    for _ in range(100):
        found = decide(seen("stopped", "stopped", stopping=("preempted",), failures=2), min_nodes=2, max_failures=3)
        assert (found.action, found.failures) == ("continue", 0)


def test_a_killed_rank_is_named_before_its_peers() -> None:
    found = decide(seen("failed", None), min_nodes=2, max_failures=3)
    assert "rank 1 was killed" in found.message


class Slurm:
    """Responses of Slurm's commands, in the formats of version 22.05, and the calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.states = {"7": "RUNNING"}
        self.nodes = "n1 allocated\nn2 allocated\nn3 idle"
        self.failures = 0

    def __call__(self, *command: str, variables: Any = None) -> str:
        self.calls.append(command)
        if self.failures:
            self.failures -= 1
            raise SlurmError("slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
        if command[:3] == ("scontrol", "--oneliner", "show") and command[3] == "job":
            if command[4] not in self.states:
                raise SlurmError("code 1: slurm_load_jobs error: Invalid job id specified")
            return f"JobId={command[4]} JobName=x JobState={self.states[command[4]]} Reason=None"
        if command[3:4] == ("partition",):
            return "PartitionName=gpu Default=YES GraceTime=120 Hidden=NO"
        if command[:3] == ("scontrol", "--oneliner", "show"):
            return "\n".join(f"NodeName={name} NodeAddr=127.0.0.1 Port=1" for name in command[4].split(","))
        if command[:2] == ("scontrol", "show"):
            return "n1\nn2" if command[2] == "hostnames" else "KillWait = 30 sec\nSlurmdPort              = 6818"
        if command[0] == "sinfo":
            return self.nodes
        if command[0] == "sbatch":
            self.states["8"] = "PENDING"
            return "8;cluster"
        return ""

    def submissions(self) -> list[tuple[str, ...]]:
        return [call for call in self.calls if call[0] == "sbatch"]


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    made = Slurm()
    monkeypatch.setattr(commands, "call", made)
    monkeypatch.setattr(job_module.time, "sleep", lambda seconds: None)
    return made


Make = Callable[..., Job]


@pytest.fixture
def make(tmp_path: Path, slurm: Slurm) -> Make:
    def job(environment: dict[str, str] | None = None, **values: Any) -> Job:
        settings = {
            "name": "x",
            "run": "run-1",
            "folder": str(tmp_path),
            "script": "/shared/job.sh",
            "array_index": None,
            "nodes": 2,
            "min_nodes": 2,
            "processes_per_node": 1,
            "gpus": 0,
            "interpreter": "python3",
            "dataset": "/d",
            "checkpoints": "/c",
            "fabric": "tcp",
            "launch": "launcher",
            "continue_by": "resubmit",
            "max_failures": 3,
            "signal_seconds": 60,
            "watch_spot_notices": False,
            "health_check": False,
        }
        document = JobDocument(**{**settings, **values})
        return Job(document, {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", **(environment or {})})

    return job


def ended(job: Job, generation: int, *kinds: str, step: int | None = None) -> None:
    for rank, kind in enumerate(kinds):
        path = job.generations.folder(generation) / "outcomes" / f"rank-{rank:05d}.json"
        path.write_text(json.dumps({"rank": rank, **outcome(kind, step)}))


def test_begin_claims_one_generation_after_the_other(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    job = make()
    assert (job.begin(), job.begin()) == (0, 0)
    lines = capsys.readouterr().out.splitlines()
    assert "generation=1" in lines and "generation=2" in lines and "nodes=n1,n2" in lines
    assert job.generations.numbers() == [1, 2]


def test_a_preempted_job_submits_its_successor_once(make: Make, slurm: Slurm) -> None:
    job = make()
    job.begin()
    write_json(job.generations.folder(1) / "stopping-n1.json", reason="preempted")
    assert job.notice(1, "") == "submitted job 8"
    ended(job, 1, "stopped", "stopped", step=5)
    assert job.conclude(1, "") == "continue"
    assert slurm.submissions() == [("sbatch", "--parsable", "--dependency=afterany:7", "/shared/job.sh")]


def test_a_finished_run_cancels_its_successor_and_later_jobs_do_not_train(make: Make, slurm: Slurm) -> None:
    job = make(continue_by="spare")
    job.begin()
    assert len(slurm.submissions()) == 1
    ended(job, 1, "finished", "finished", step=9)
    assert job.conclude(1, "") == "finished"
    assert ("scancel", "8") in slurm.calls
    assert make({"SLURM_JOB_ID": "8"}).begin() == NOT_TRAINING


def test_a_cancelled_job_is_not_continued(make: Make, slurm: Slurm) -> None:
    job = make(continue_by="spare")
    job.begin()
    slurm.states["7"] = "CANCELLED"
    assert job.notice(1, "") == "the user ends the run"
    assert job.conclude(1, "") == "stopped"
    assert ("scancel", "8") in slurm.calls
    assert make({"SLURM_JOB_ID": "8", job_module.PREDECESSOR: "7"}).begin() == NOT_TRAINING


def test_a_requeued_job_leaves_the_run_to_its_successor(make: Make) -> None:
    job = make()
    job.begin()
    job.notice(1, "time_limit")
    assert make({"SLURM_RESTART_COUNT": "1"}).begin() == NOT_TRAINING
    assert job.generations.numbers() == [1]


@pytest.mark.parametrize(("preempted", "action"), [("None", "again"), ("2026-11-30T12:00:00", "continue")])
def test_a_failure_that_ends_the_other_nodes_is_not_a_preemption(
    make: Make, slurm: Slurm, preempted: str, action: str
) -> None:
    job = make()
    job.begin()
    write_json(job.generations.folder(1) / "failed-n1.json")
    write_json(job.generations.folder(1) / "stopping-n2.json", reason="preempted")
    slurm.states["7"] = f"RUNNING PreemptTime={preempted}"
    job.notice(1, "")
    ended(job, 1, "failed", "stopped")
    assert job.conclude(1, "") == action
    assert bool(slurm.submissions()) is (action == "continue")


def test_requeue_keeps_the_number(make: Make, slurm: Slurm) -> None:
    job = make(continue_by="requeue")
    job.begin()
    ended(job, 1, "stopped", "stopped")
    assert job.conclude(1, "time_limit") == "continue"
    assert slurm.calls[-1] == ("scontrol", "requeue", "7") and not slurm.submissions()


def test_a_task_of_an_array_resubmits_only_itself(make: Make, slurm: Slurm) -> None:
    job = make(array_index=3)
    job.begin()
    ended(job, 1, "stopped", "stopped")
    job.conclude(1, "time_limit")
    assert "--array=3" in slurm.submissions()[0]


def test_failures_are_bounded_until_the_user_resumes(make: Make, tmp_path: Path) -> None:
    job = make()
    actions = []
    for generation in (1, 2, 3):
        job.begin()
        ended(job, generation, "failed", "failed", step=4 if generation == 1 else None)
        actions.append(job.conclude(generation, ""))
    assert actions == ["again", "again", "failed"]
    assert "3 consecutive failures" in json.loads((tmp_path / "failed.json").read_text())["message"]
    assert job.begin() == NOT_TRAINING
    (tmp_path / "failed.json").unlink()
    write_json(tmp_path / "resumed.json", generation=3)
    assert job.begin() == 0
    ended(job, 4, "failed", "failed")
    assert job.conclude(4, "") == "again"


def test_the_next_job_avoids_a_node_with_a_notice(make: Make, slurm: Slurm) -> None:
    for nodes, option in (
        ("n1 allocated\nn2 allocated\nn3 idle", "--exclude=n2"),
        ("n1 idle\nn2 idle", "--begin=now+"),
    ):
        slurm.nodes = nodes
        job = make({"SLURM_JOB_ID": "7"})
        job.begin()
        generation = job.generations.numbers()[-1]
        reclaim = job_module.time.time() + 120
        write_json(job.generations.folder(generation) / "leaving-n2.json", reclaim_unix_seconds=reclaim)
        write_json(job.generations.folder(generation) / "stopping-n2.json", reason="spot_notice")
        ended(job, generation, "stopped", "stopped")
        slurm.states.pop("8", None)
        assert job.conclude(generation, "") == "continue"
        assert any(each.startswith(option) for each in slurm.submissions()[-1])


def test_a_job_continues_without_a_lost_node(make: Make, slurm: Slurm, capsys: pytest.CaptureFixture[str]) -> None:
    job = make(min_nodes=1)
    job.begin()
    slurm.nodes = "n1 allocated\nn2 down*"
    ended(job, 1, "failed", "failed")
    assert job.conclude(1, "") == "again"
    slurm.nodes = "n1 allocated\nn2 allocated"
    capsys.readouterr()
    assert job.begin() == 0
    assert "nodes=n1" in capsys.readouterr().out.splitlines()


def test_a_killed_rank_on_a_silent_node_is_a_lost_node(make: Make, slurm: Slurm) -> None:
    """Slurm reports a dead node only after its timeout; nothing listens on the ports of the nodes here."""
    job = make()
    job.begin()
    ended(job, 1, "failed")
    assert job.conclude(1, "") == "continue"
    assert (job.generations.end(1) or {})["cause"] == "node_lost"


def test_a_restarting_controller_does_not_end_the_run(make: Make, slurm: Slurm) -> None:
    job = make()
    job.begin()
    ended(job, 1, "stopped", "stopped")
    slurm.failures = 3
    assert job.conclude(1, "time_limit") == "continue"
    assert len(slurm.submissions()) == 1


def test_the_grace_time_is_the_partitions_or_the_clusters(slurm: Slurm) -> None:
    assert (commands.grace_seconds("gpu"), commands.grace_seconds("")) == (120, 30)


def test_node_states(slurm: Slurm) -> None:
    slurm.nodes = "n1 allocated\nn2 allocated*\nn3 down\nn4 draining\nn5 mixed"
    assert lost_nodes(["n1", "n2", "n3", "n4", "n5"]) == {"n2", "n3"}


def test_two_jobs_never_claim_the_same_generation(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from bootstrap.slurm.records import Generations\n"
        "print(*[Generations(Path(sys.argv[1])).claim(job_id='1') for _ in range(40)])"
    )
    racing = [
        subprocess.Popen([sys.executable, "-c", script, tmp_path], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    claimed = [int(word) for each in racing for word in each.communicate()[0].split()]
    assert sorted(claimed) == list(range(1, 121))


def test_a_document_of_another_version_is_refused(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    document = json.loads(make().document.to_text())
    path.write_text(json.dumps(document))
    assert read_document(path) == make().document
    path.write_text(json.dumps({**document, "surprise": 1}))
    with pytest.raises(RecordError, match="surprise: written by another version"):
        read_document(path)


def test_damaged_outcomes_count_as_missing(tmp_path: Path) -> None:
    generations = Generations(tmp_path)
    number = generations.claim(job_id="1")
    (generations.folder(number) / "outcomes" / "rank-00000.json").write_text("{")
    assert generations.outcomes(number) == {}


def test_a_node_without_a_driver_has_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert [fault.action for fault in all_faults(8)] == ["terminate"]
    assert all_faults(0) == []


@pytest.mark.parametrize("name", ["__init__", "__main__", "commands", "decide", "job", "records"])
def test_the_job_commands_parse_under_python_3_9(name: str) -> None:
    import ast

    ast.parse((ROOT / "bootstrap" / "slurm" / f"{name}.py").read_text(), feature_version=(3, 9))
