"""Trainer processes: started, watched, ended whole; and how they are launched."""

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

from bootstrap.collectives import collective_variables
from bootstrap.documents import NodeDocument, RunDocument
from bootstrap.layout import Layout
from bootstrap.supervise import guardian, trainer
from bootstrap.supervise.launch import (
    Launch,
    checkpoint_store,
    free_port,
    interface_of,
    torchrun_command,
    trainer_environment,
)
from bootstrap.supervise.records import GenerationRecord, Member
from bootstrap.supervise.situation import Result
from bootstrap.supervise.trainer import Trainer, kill_left_over, remove_old_directories
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


# Starts a child in a session of its own that starts another; writes the ids of all three.
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
def test_guardian_leaves_nothing(tmp_path: Path, how: str) -> None:
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


def test_guardian_ends_stragglers_and_passes_the_exit_code_on(tmp_path: Path) -> None:
    (tmp_path / "leaves.py").write_text(
        "import subprocess, sys\nchild = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "open('pid-0', 'w').write(str(child.pid))\nsys.exit(75)\n"
    )
    command = [sys.executable, "-I", "-S", guardian.__file__, sys.executable, "leaves.py"]
    process = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE)
    assert process.wait(DEADLINE_SECONDS) == 75
    assert not alive(pids(tmp_path)[0])


def test_guardian_says_what_cannot_be_started(tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-S", guardian.__file__, "/no/such/program"]
    done = subprocess.run(command, stdin=subprocess.PIPE, capture_output=True, timeout=DEADLINE_SECONDS)
    assert done.returncode == 127
    assert b"/no/such/program: cannot be started" in done.stderr


def make(directory: Path, *ranks: int) -> Trainer:
    return Trainer(System(), directory / "gen-3", ranks or (0,), 3)


def begin(trainer: Trainer, script: str) -> None:
    trainer.start([sys.executable, "-c", script], os.environ, {"steps": 5})


OVERTAKEN = Result("lost_peer", 7, "superseded: rank 3: because superseded")

# What a rank does at its end: argument 1 is a list of [rank, outcome, step, checkpoint_step].
SAY = """
import json, os, sys
os.makedirs("outcomes", exist_ok=True)
for rank, outcome, step, saved in %s:
    text = dict(generation=3, rank=rank, outcome=outcome, step=step, checkpoint_step=saved)
    text["message"] = "because " + outcome
    open(f"outcomes/rank-{rank:05d}.json", "w").write(json.dumps(text))
"""


@pytest.mark.parametrize(
    ("said", "expected"),
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
def test_outcome_files_count(tmp_path: Path, said: list[Any], expected: Result) -> None:
    trainer = make(tmp_path, 2, 3)
    begin(trainer, SAY % said)
    assert wait(trainer.poll, "the end") == expected


def test_a_rank_without_a_word_is_a_failure_with_its_last_lines(tmp_path: Path) -> None:
    trainer = make(tmp_path, 0, 1)
    begin(trainer, SAY % [[0, "stopped", 4, 4]] + "print('out of memory', flush=True); sys.exit(9)")
    result = wait(trainer.poll, "the end")
    assert (result.outcome, result.step) == ("failed", 4)
    assert "ranks [1] ended without a word (exit code 9)" in result.message and "out of memory" in result.message


def test_a_standby_that_fails_before_it_is_torchrun_is_quoted(tmp_path: Path) -> None:
    trainer = make(tmp_path, 0)
    begin(trainer, "import pathlib; pathlib.Path('standby.log').write_text('no module named torch'); exit(1)")
    result = wait(trainer.poll, "the end")
    assert "ranks [0] ended without a word (exit code 1): no module named torch" in result.message


def test_outcomes_of_an_older_generation_do_not_count(tmp_path: Path) -> None:
    trainer = make(tmp_path)
    begin(trainer, (SAY % [[0, "finished", 4, 4]]).replace("generation=3", "generation=2"))
    assert wait(trainer.poll, "the end").outcome == "failed"


def test_processes_that_linger_after_their_last_word_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "EXIT_GRACE_SECONDS", 0.2)
    lingering = make(tmp_path)
    begin(lingering, SAY % [[0, "finished", 9, 9]] + "import time; time.sleep(600)")
    assert wait(lingering.poll, "the end") == Result("finished", 9, "")


def test_requests_are_files_and_a_fresh_generation_has_none(tmp_path: Path) -> None:
    first = make(tmp_path)
    begin(first, "import time; time.sleep(600)")
    first.request_stop("scale-in", 12.5, train_on=False)
    first.request_save()
    stop = json.loads((tmp_path / "gen-3" / "stop").read_text())
    assert stop == {"reason": "scale-in", "deadline_unix_seconds": 12.5, "train_on": False}
    assert (tmp_path / "gen-3" / "save").exists()
    first.kill("lost_peer", "i-2 is silent")
    assert first.poll() == Result("lost_peer", 0, "i-2 is silent")
    second = make(tmp_path)
    begin(second, "")
    assert sorted(path.name for path in (tmp_path / "gen-3").iterdir()) == ["run.json", "trainer.log"]
    assert json.loads((tmp_path / "gen-3" / "run.json").read_text()) == {"steps": 5}
    wait(second.poll, "the end")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="whose a process is, is read from /proc")
def test_ranks_that_hang_say_where_before_they_are_killed(tmp_path: Path) -> None:
    trainer = make(tmp_path)
    script = """
import pathlib, threading
from training.stack_dump import answer_with_stacks
def waits_for_a_peer():
    threading.Event().wait()
answer_with_stacks(pathlib.Path("."), 0)
pathlib.Path("ready").touch()
waits_for_a_peer()
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "TRAINSTACK_TRAINER_OF": str(tmp_path)}
    trainer.start([sys.executable, "-c", script], environment, {})
    wait(lambda: (tmp_path / "gen-3" / "ready").exists(), "the rank")

    trainer.kill("lost_peer", "somebody is silent")

    (stacks,) = (tmp_path / "gen-3" / "stacks").iterdir()
    assert "in waits_for_a_peer" in stacks.read_text()


# What ProcessGroupNCCL.hpp's DumpPipe does of torch 2.13, and the records as long as those of many collectives.
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
def test_nccl_is_asked_for_its_records_before_the_ranks_are_killed(tmp_path: Path, silent: list[str]) -> None:
    trainer = make(tmp_path)
    directory = tmp_path / "gen-3"
    variables = collective_variables(fabric="tcp", run_directory=directory, interface=None)
    trainer.start([sys.executable, "-c", NCCL, "0", "1", *silent], {**os.environ, **variables}, {})
    wait(lambda: (directory / "ready").exists(), "the rank")
    os.mkfifo(directory / "collectives-pipe-2.pipe")  # of a rank that has ended: nobody reads it

    trainer.kill("lost_peer", "somebody is silent")

    sizes = {path.name: path.stat().st_size for path in directory.glob("collectives-rank-*")}
    assert sizes == {"collectives-rank-0": 5_000_000, "collectives-rank-1": 5_000_000}


def test_metrics_are_tailed_by_whole_lines(tmp_path: Path) -> None:
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
        stream.write('{"record": "start", "step": 7, "resumed_from_step": 7}\n{"record": "start", "step": 0}\n')
    assert len(trainer.new_records()) == 2
    assert trainer.saved_step == 7, "a writer that outlived its trainers saved it, and told nobody"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="environments are read from /proc")
def test_left_over_trainers_are_known_by_their_mark(tmp_path: Path) -> None:
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


def test_old_run_directories_go_in_order_of_their_numbers(tmp_path: Path) -> None:
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


def test_command_line_is_the_one_of_the_architecture(tmp_path: Path) -> None:
    command = torchrun_command(launch(tmp_path))
    directory = tmp_path / "runs" / "first" / "gen-7"
    assert " ".join(command) == (
        "/usr/bin/py -m torch.distributed.run --nnodes=2 --node-rank=1 --nproc-per-node=8 --master-addr=10.0.0.1 "
        "--master-port=4321 --max-restarts=0 --rdzv-conf=timeout=90 -m training train "
        f"--config {directory}/run.json --dataset {tmp_path}/datasets/stdlib "
        "--dataset-url s3://data/datasets/stdlib "
        f"--checkpoints s3://checkpoints/runs/first/checkpoints --run-directory {directory} --generation 7"
    )
    assert list(launch(tmp_path).global_ranks) == list(range(8, 16))
    assert launch(tmp_path).world_size == 16


def test_checkpoints_are_also_kept_on_the_volume_where_it_is_mounted(tmp_path: Path) -> None:
    kept = {"kind": "checkpoint", "device": "/dev/sdg", "mount": "/mnt/kept", "read_only": False, "warm": False}
    made = {**kept, "kind": "dataset", "mount": "/mnt/dataset", "read_only": True}
    with_volume = launch(tmp_path, volumes=[made, kept])
    durable = "s3://checkpoints/runs/first/checkpoints"
    assert checkpoint_store(with_volume, lambda path: True) == f"/mnt/kept/runs/first/checkpoints,{durable}"
    assert checkpoint_store(with_volume, lambda path: path != "/mnt/kept") == durable


def test_environment_of_the_trainers(tmp_path: Path) -> None:
    environment = trainer_environment(launch(tmp_path), {"PATH": "/bin", "NCCL_SOCKET_IFNAME": "mine"})
    assert environment["PYTHONPATH"] == str(tmp_path / "code" / ("1" * 64))
    assert environment["AWS_REGION"] == "us-east-1"
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment["FI_PROVIDER"] == "efa"
    assert environment["NCCL_SOCKET_IFNAME"] == "mine"
    assert "FI_PROVIDER" not in trainer_environment(launch(tmp_path, fabric="tcp"), {})


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="interfaces are asked of Linux")
def test_interface_of_an_address() -> None:
    assert interface_of("127.64.3.9") == "lo"
    assert interface_of("192.0.2.1") is None


def test_free_port_can_be_bound() -> None:
    import socket

    with socket.socket() as probe:
        probe.bind(("", free_port()))
