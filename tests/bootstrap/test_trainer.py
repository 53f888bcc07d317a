"""Trainer processes: launch, monitoring and termination."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bootstrap.documents import NodeDocument, RunDocument
from bootstrap.gpus.collectives import collective_variables
from bootstrap.layout import Layout
from bootstrap.supervise.membership.records import GenerationRecord, Member
from bootstrap.supervise.situation import Result
from bootstrap.supervise.trainers import guardian, trainer
from bootstrap.supervise.trainers.launch import (
    Launch,
    checkpoint_store,
    free_port,
    interface_of,
    launcher_command,
    trainer_environment,
)
from bootstrap.supervise.trainers.trainer import Trainer, kill_left_over, remove_old_directories
from bootstrap.system import System
from tests.bootstrap.test_documents import node, run

DEADLINE_SECONDS = 60.0


def wait(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    return pytest.fail(f"waited for: {what}")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


# Starts a child in a new session that starts another; writes the process ids of all three.
TREE = """
import os, subprocess, sys, time
depth = int(sys.argv[1])
open(f"pid-{depth}", "w").write(str(os.getpid()))
if depth:
    subprocess.Popen([sys.executable, sys.argv[0], str(depth - 1)], start_new_session=True)
time.sleep(float(sys.argv[2]) if len(sys.argv) > 2 else 600)
"""


def pids(directory: Path) -> list[int]:
    found = [directory / f"pid-{depth}" for depth in range(3)]
    return [int(path.read_text()) for path in found if path.exists() and path.read_text()]


def guard(directory: Path, *arguments: str) -> subprocess.Popen[bytes]:
    (directory / "tree.py").write_text(TREE)
    return subprocess.Popen(
        [sys.executable, "-I", "-S", guardian.__file__, sys.executable, "tree.py", *arguments],
        cwd=directory,
        stdin=subprocess.PIPE,
    )


@pytest.mark.parametrize("how", ["input ends", "terminated"])
def test_guardian_kills_all_descendants(tmp_path: Path, how: str) -> None:
    process = guard(tmp_path, "2")
    tree = wait(lambda: len(pids(tmp_path)) == 3 and pids(tmp_path), "three processes")
    assert all(map(alive, tree))
    if how == "terminated":
        process.terminate()
    else:
        assert process.stdin is not None
        process.stdin.close()
    assert process.wait(DEADLINE_SECONDS) == 128 + signal.SIGKILL
    assert not any(map(alive, tree))


def test_guardian_kills_stragglers_and_returns_the_exit_code(tmp_path: Path) -> None:
    (tmp_path / "leaves.py").write_text(
        "import subprocess, sys\nchild = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "open('pid-0', 'w').write(str(child.pid))\nsys.exit(75)\n"
    )
    command = [sys.executable, "-I", "-S", guardian.__file__, sys.executable, "leaves.py"]
    process = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE)
    assert process.wait(DEADLINE_SECONDS) == 75
    assert not alive(pids(tmp_path)[0])


def test_guardian_reports_a_program_that_cannot_start(tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-S", guardian.__file__, "/no/such/program"]
    done = subprocess.run(command, stdin=subprocess.PIPE, capture_output=True, timeout=DEADLINE_SECONDS)
    assert done.returncode == 127
    assert b"/no/such/program: cannot start" in done.stderr


def make(directory: Path, *ranks: int) -> Trainer:
    return Trainer(System(), directory / "gen-3", ranks or (0,), 3)


def begin(trainer: Trainer, script: str) -> None:
    trainer.start([sys.executable, "-c", script], os.environ, {"steps": 5})


# Writes outcome files as ranks do at their end, from a list of [rank, outcome, step, checkpoint_step].
REPORT = """
import json, os, sys
os.makedirs("outcomes", exist_ok=True)
for rank, outcome, step, saved in %s:
    text = dict(generation=3, rank=rank, outcome=outcome, step=step, checkpoint_step=saved)
    text["message"] = "because " + outcome
    open(f"outcomes/rank-{rank:05d}.json", "w").write(json.dumps(text))
"""


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ([[2, "finished", 9, 9], [3, "finished", 9, 9]], Result("finished", 9, "")),
        ([[2, "stopped", 8, 8], [3, "stopped", 8, 8]], Result("stopped", 8, "rank 2: because stopped")),
        ([[2, "finished", 9, 9], [3, "stopped", 9, 9]], Result("stopped", 9, "rank 3: because stopped")),
        ([[2, "stopped", 7, 5], [3, "failed", 7, 5]], Result("failed", 7, "rank 3: because failed")),
        (
            [[2, "failed", 7, 5], [3, "superseded", 7, 5]],
            Result("lost_peer", 7, "superseded: rank 3: because superseded"),
        ),
        (
            [[2, "bad_configuration", 0, None], [3, "failed", 0, 0]],
            Result("bad_configuration", 0, "rank 2: because bad_configuration"),
        ),
    ],
)
def test_outcome_files_decide_the_result(tmp_path: Path, outcomes: list[Any], expected: Result) -> None:
    trainer = make(tmp_path, 2, 3)
    begin(trainer, REPORT % outcomes)
    assert wait(trainer.poll, "the end") == expected


def test_a_rank_without_an_outcome_is_a_failure_with_the_end_of_the_log(tmp_path: Path) -> None:
    trainer = make(tmp_path, 0, 1)
    begin(trainer, REPORT % [[0, "stopped", 4, 4]] + "print('out of memory', flush=True); sys.exit(9)")
    result = wait(trainer.poll, "the end")
    assert (result.outcome, result.step) == ("failed", 4)
    assert "ranks [1] exited without an outcome (exit code 9)" in result.message and "out of memory" in result.message


def test_the_log_of_a_failed_standby_is_quoted(tmp_path: Path) -> None:
    trainer = make(tmp_path, 0)
    begin(trainer, "import pathlib; pathlib.Path('standby.log').write_text('no module named torch'); exit(1)")
    result = wait(trainer.poll, "the end")
    assert "ranks [0] exited without an outcome (exit code 1): no module named torch" in result.message


def test_outcomes_of_an_older_generation_are_ignored(tmp_path: Path) -> None:
    trainer = make(tmp_path)
    begin(trainer, (REPORT % [[0, "finished", 4, 4]]).replace("generation=3", "generation=2"))
    assert wait(trainer.poll, "the end").outcome == "failed"


def test_processes_that_run_on_after_their_outcome_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "EXIT_GRACE_SECONDS", 0.2)
    lingering = make(tmp_path)
    begin(lingering, REPORT % [[0, "finished", 9, 9]] + "import time; time.sleep(600)")
    assert wait(lingering.poll, "the end") == Result("finished", 9, "")


def test_requests_are_files_and_a_new_generation_starts_without_them(tmp_path: Path) -> None:
    first = make(tmp_path)
    begin(first, "import time; time.sleep(600)")
    first.request_stop("scale-in", 12.5, train_on=False)
    first.request_save()
    stop = json.loads((tmp_path / "gen-3" / "stop").read_text())
    assert stop == {"reason": "scale-in", "deadline_unix_seconds": 12.5, "train_on": False}
    assert (tmp_path / "gen-3" / "save").exists()
    first.kill("lost_peer", "i-2 is lost")
    assert first.poll() == Result("lost_peer", 0, "i-2 is lost")
    second = make(tmp_path)
    begin(second, "")
    assert sorted(path.name for path in (tmp_path / "gen-3").iterdir()) == ["run.json", "trainer.log"]
    assert json.loads((tmp_path / "gen-3" / "run.json").read_text()) == {"steps": 5}
    wait(second.poll, "the end")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_hanging_ranks_dump_their_stacks_before_they_are_killed(tmp_path: Path) -> None:
    trainer = make(tmp_path)
    script = """
import pathlib, threading
from training.process.stack_dump import dump_stacks_on_signal
def waits_for_a_peer():
    threading.Event().wait()
dump_stacks_on_signal(pathlib.Path("."), 0)
pathlib.Path("ready").touch()
waits_for_a_peer()
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "TRAINSTACK_TRAINER_OF": str(tmp_path)}
    trainer.start([sys.executable, "-c", script], environment, {})
    wait(lambda: (tmp_path / "gen-3" / "ready").exists(), "the rank")

    trainer.kill("lost_peer", "a peer is lost")

    (stacks,) = (tmp_path / "gen-3" / "stacks").iterdir()
    assert "in waits_for_a_peer" in stacks.read_text()


# Simulates DumpPipe of ProcessGroupNCCL.hpp (torch 2.13), with records of the size of many collectives.
NCCL = """
import os, pathlib, sys, time
pipes = []
for rank in sys.argv[1:]:
    pipe = os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + rank + ".pipe"
    os.mkfifo(pipe)
    pipes.append((rank, os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)))
pathlib.Path("ready").touch()
while True:
    for rank, pipe in pipes:
        if rank != "7" and os.read(pipe, 128):
            with open(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + rank, "wb") as records:
                for _ in range(50):
                    records.write(b"x" * 100_000)
    time.sleep(0.05)
"""


@pytest.mark.parametrize("silent", [[], ["7"]])
def test_nccl_dumps_its_records_before_the_ranks_are_killed(tmp_path: Path, silent: list[str]) -> None:
    trainer = make(tmp_path)
    directory = tmp_path / "gen-3"
    variables = collective_variables(fabric="tcp", run_directory=directory, interface=None)
    trainer.start([sys.executable, "-c", NCCL, "0", "1", *silent], {**os.environ, **variables}, {})
    wait(lambda: (directory / "ready").exists(), "the rank")
    os.mkfifo(directory / "collectives-pipe-2.pipe")  # of a rank that has exited: no reader

    trainer.kill("lost_peer", "a peer is lost")

    sizes = {path.name: path.stat().st_size for path in directory.glob("collectives-rank-*")}
    assert sizes == {"collectives-rank-0": 5_000_000, "collectives-rank-1": 5_000_000}


def test_metrics_are_read_line_by_line(tmp_path: Path) -> None:
    trainer = make(tmp_path)
    (tmp_path / "gen-3").mkdir()
    path = tmp_path / "gen-3" / "metrics.jsonl"
    assert trainer.new_records() == []
    path.write_text('{"record": "step", "step": 1}\n{"record": "st')
    assert trainer.new_records() == [{"record": "step", "step": 1}]
    with path.open("a") as stream:
        stream.write('ep", "step": 2}\nnonsense\n{"record": "checkpoint", "step": 2}\n')
    assert [record["step"] for record in trainer.new_records()] == [2, 2]
    assert (trainer.step, trainer.saved_step) == (2, 2)
    assert trainer.new_records() == []
    with path.open("a") as stream:
        stream.write('{"record": "start", "step": 7, "resumed_from_step": 7}\n')
    assert len(trainer.new_records()) == 1
    assert trainer.saved_step == 7, "a writer that outlived its trainers saved it without a record"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_left_over_trainers_are_identified_by_their_environment(tmp_path: Path) -> None:
    environment = {**os.environ, "TRAINSTACK_TRAINER_OF": str(tmp_path)}
    mine = subprocess.Popen(["sleep", "600"], env=environment, start_new_session=True)
    other = subprocess.Popen(["sleep", "600"], env={**environment, "TRAINSTACK_TRAINER_OF": f"{tmp_path}x"})
    try:
        wait(lambda: b"TRAINER_OF" in Path(f"/proc/{mine.pid}/environ").read_bytes(), "exec")
        assert kill_left_over(tmp_path) == [mine.pid]
        assert mine.wait(DEADLINE_SECONDS) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        for process in (mine, other):
            process.kill()
            process.wait()


def test_the_oldest_run_directories_are_removed(tmp_path: Path) -> None:
    for number in (1, 2, 9, 10, 11):
        (tmp_path / f"gen-{number}").mkdir()
    remove_old_directories(tmp_path, 2)
    remove_old_directories(tmp_path / "none", 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gen-10", "gen-11"]


def launch(root: Path, address: str = "127.0.0.9", **changes: Any) -> Launch:
    members = (Member("i-1", "10.0.0.1"), Member("i-2", address))
    record = GenerationRecord(7, "d", members, "10.0.0.1", 4321, "i-1")
    document = RunDocument.from_json(run())
    return Launch(
        NodeDocument.from_json({**node(), **changes}), document, record, 1, address, "/usr/bin/py", Layout(root)
    )


def test_the_command_line_matches_the_architecture(tmp_path: Path) -> None:
    command = launcher_command(launch(tmp_path))
    directory = tmp_path / "runs" / "first" / "gen-7"
    assert " ".join(command) == (
        "/usr/bin/py -m training.process.launcher --nnodes=2 --node-rank=1 --nproc-per-node=8 --master-addr=10.0.0.1 "
        f"--master-port=4321 --exits={directory}/exits -m training train "
        f"--config {directory}/run.json --dataset {tmp_path}/datasets/stdlib "
        "--dataset-url s3://data/datasets/stdlib "
        f"--checkpoints s3://checkpoints/runs/demo/first/checkpoints --run-directory {directory} --generation 7"
    )
    assert list(launch(tmp_path).global_ranks) == list(range(8, 16))
    assert launch(tmp_path).world_size == 16


def test_checkpoints_also_go_to_the_mounted_volume(tmp_path: Path) -> None:
    kept = {"kind": "checkpoint", "device": "/dev/sdg", "mount": "/mnt/kept", "read_only": False, "warm": False}
    made = {**kept, "kind": "dataset", "mount": "/mnt/dataset", "read_only": True}
    with_volume = launch(tmp_path, volumes=[made, kept])
    durable = "s3://checkpoints/runs/demo/first/checkpoints"
    assert checkpoint_store(with_volume, lambda path: True) == f"/mnt/kept/runs/demo/first/checkpoints,{durable}"
    assert checkpoint_store(with_volume, lambda path: path != "/mnt/kept") == durable


def test_environment_of_the_trainers(tmp_path: Path) -> None:
    environment = trainer_environment(launch(tmp_path), {"PATH": "/bin", "NCCL_SOCKET_IFNAME": "mine"})
    assert environment["PYTHONPATH"] == str(tmp_path / "code" / ("1" * 64))
    assert environment["AWS_REGION"] == "us-east-1"
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment["FI_PROVIDER"] == "efa"
    assert environment["NCCL_SOCKET_IFNAME"] == "mine"
    assert "FI_PROVIDER" not in trainer_environment(launch(tmp_path, fabric="tcp"), {})


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")
def test_interface_of_an_address() -> None:
    assert interface_of("127.64.3.9") == "lo"
    assert interface_of("192.0.2.1") is None


def test_free_port_can_be_bound() -> None:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.64.0.9", free_port("127.64.0.9")))
