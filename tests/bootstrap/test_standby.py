"""The warm standby: real processes around a program that stands in for the trainer's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from bootstrap.aws import Aws
from bootstrap.imds import InstanceIdentity
from bootstrap.supervise.actor import Actor
from bootstrap.supervise.control import ControlStore, Observation
from bootstrap.supervise.launch import torchrun_command
from bootstrap.supervise.memory import Memory
from bootstrap.supervise.monitors import Board
from bootstrap.supervise.preparation import Preparation
from bootstrap.supervise.records import GenerationRecord, Heartbeat, Member
from bootstrap.supervise.scope import RunScope
from bootstrap.supervise.standby import Kind, Standby
from tests.bootstrap import waiting
from tests.bootstrap.account import REGION, Account
from tests.bootstrap.test_steps import real

KIND = Kind("a" * 64, 1)
WAITS = """
import os, socket, time
supervisor = socket.socket(fileno=int(os.environ["TRAINSTACK_STANDBY_FD"]))
open("pid", "w").write(str(os.getpid()))
while os.path.exists("mute"):
    time.sleep(0.01)
supervisor.sendall(b"i")
while os.path.exists("slow"):
    time.sleep(0.01)
supervisor.sendall(b"r")
text = supervisor.makefile().read()
open("got", "w").write(text)
"""


@pytest.fixture
def standby(tmp_path: Path) -> Iterator[Standby]:
    made = Standby(tmp_path / "standby.log")
    yield made
    made.end()


def make(standby: Standby, folder: Path, program: str) -> None:
    package = folder / "training"
    package.mkdir(exist_ok=True)
    (package / "__main__.py").write_text(program)
    standby.make(KIND, sys.executable, {**os.environ, "PYTHONPATH": str(folder)}, folder)


wait = partial(waiting.wait, limit_seconds=60)


def test_it_is_told_what_to_become_once(standby: Standby, tmp_path: Path) -> None:
    assert standby.lacks(KIND)
    make(standby, tmp_path, WAITS)
    assert not standby.lacks(KIND)
    wait(lambda: not standby.is_warming())
    assert (standby.news() or 0) > 0 and standby.news() is None

    process = standby.start(KIND, ["--nnodes=1"], {"RUN": "x"}, tmp_path, tmp_path / "log")

    assert process is not None
    assert process.wait(20) == 0
    start = json.loads((tmp_path / "got").read_text())
    assert start == {
        "arguments": ["--nnodes=1"],
        "environment": {"RUN": "x"},
        "directory": str(tmp_path),
        "log": str(tmp_path / "log"),
    }
    assert standby.start(KIND, [], {}, tmp_path, tmp_path / "log") is None
    assert standby.lacks(KIND)


def test_one_that_still_imports_starts_when_it_has(standby: Standby, tmp_path: Path) -> None:
    (tmp_path / "slow").touch()
    make(standby, tmp_path, WAITS)
    wait(lambda: (tmp_path / "pid").exists())
    started: list[subprocess.Popen[bytes]] = []

    def takes_it() -> bool:
        process = standby.start(KIND, ["--nnodes=1"], {}, tmp_path, tmp_path / "log")
        started.extend([process] if process is not None else [])
        return process is not None

    wait(takes_it)  # as soon as it has said that it imports
    before = time.monotonic()
    assert standby.imported_at() >= before  # so that no other one competes with it
    (tmp_path / "slow").unlink()
    wait(lambda: standby.imported_at() == standby.imported_at())

    assert started[0].wait(20) == 0
    assert json.loads((tmp_path / "got").read_text())["arguments"] == ["--nnodes=1"]


def test_one_that_was_started_may_still_import_when_the_next_is_made(standby: Standby, tmp_path: Path) -> None:
    generation = tmp_path / "gen-1"
    generation.mkdir()
    (tmp_path / "slow").touch()
    make(standby, tmp_path, 'print("imports", flush=True)\n' + WAITS)
    wait(lambda: standby._hear() != b"")
    process = standby.start(KIND, ["--nnodes=1"], {}, generation, generation / "log")
    assert process is not None

    make(standby, tmp_path, "import time\ntime.sleep(60)\n")
    (tmp_path / "slow").unlink()

    assert process.wait(20) == 0, (generation / "standby.log").read_text()
    assert json.loads((tmp_path / "got").read_text())["arguments"] == ["--nnodes=1"]
    assert (generation / "standby.log").read_text() == "imports\n"


def test_one_of_other_code_is_no_use(standby: Standby, tmp_path: Path) -> None:
    make(standby, tmp_path, WAITS)
    wait(lambda: not standby.is_warming())

    assert standby.start(Kind("b" * 64, 1), [], {}, tmp_path, tmp_path / "log") is None
    assert standby.lacks(Kind("b" * 64, 1))
    assert not (tmp_path / "got").exists()


def test_code_without_a_standby_starts_cold_and_is_not_asked_again(standby: Standby, tmp_path: Path) -> None:
    make(standby, tmp_path, "raise SystemExit('invalid choice: standby')")

    assert standby.start(KIND, [], {}, tmp_path, tmp_path / "log") is None  # whether it has ended yet or not
    wait(lambda: not standby.lacks(KIND) and not standby.is_warming())
    assert "invalid choice" in (tmp_path / "standby.log").read_text()


def test_it_ends_without_a_word_when_nobody_needs_it(standby: Standby, tmp_path: Path) -> None:
    make(standby, tmp_path, WAITS)
    wait(lambda: not standby.is_warming())

    standby.end()

    assert standby.lacks(KIND)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


ME, YOU = Member("i-me", "10.0.0.1"), Member("i-you", "10.0.0.2")
TRAINS = {YOU.instance_id: Heartbeat(YOU.instance_id, YOU.address, 1, "training", 1, 5, "d", 1.0)}


def generation(number: int, *members: Member) -> GenerationRecord:
    return GenerationRecord(number, "d", members, members[0].address, 29500, members[0].instance_id)


def test_only_who_joins_a_gang_that_trains_waits_for_the_imports(account: Account, tmp_path: Path) -> None:
    context = real(account, tmp_path)
    run, board, root = context.run, Board(), context.layout.root
    assert run is not None
    context.identity = InstanceIdentity(ME.instance_id, "c7i.2xlarge", "us-east-1a", ME.address, "spot", None)
    scope = RunScope(ControlStore(Aws(REGION).client("s3"), bucket=account.checkpoints, run=run.run), ME.instance_id)
    board.run = run
    preparation = Preparation(context, board.wake)
    preparation.prepared_digest = run.digest()
    package = context.layout.code(run.code.sha256) / "training"
    package.mkdir(parents=True)
    (package / "__main__.py").write_text(WAITS)
    for name in ("mute", "slow"):
        (root / name).touch()
    actor = Actor(context, board, context.identity, Memory(ME.instance_id, 5.0), preparation, torchrun_command)

    def see(record: GenerationRecord | None, heartbeats: dict[str, Heartbeat]) -> None:
        now = context.system.monotonic_seconds()
        scope.take(Observation(heartbeats, record, None), now, now)

    try:
        see(None, {})
        assert actor.is_warming(scope)  # one is still to be made
        actor.keep_standby()
        wait(lambda: (root / "pid").exists())
        assert actor.is_warming(scope)  # it has not said a word: the start would be cold
        (root / "mute").unlink()
        wait(lambda: not actor.is_warming(scope))  # nobody trains: it can be started while it imports
        assert actor.is_warming(None)  # who trains is not known
        see(generation(1, YOU), TRAINS)
        assert actor.is_warming(scope)
        see(generation(1, YOU), {})  # they are gone
        assert not actor.is_warming(scope)
        see(generation(2, YOU, ME), TRAINS)  # it is one of them
        assert not actor.is_warming(scope)
        see(generation(3, YOU), TRAINS)
        assert actor.is_warming(scope)
        (root / "slow").unlink()
        wait(lambda: not actor.is_warming(scope))
    finally:
        actor.end_trainer()
