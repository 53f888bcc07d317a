"""The warm standby: real processes with a stand-in for the trainer."""

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
from bootstrap.supervise.membership.control import ControlStore, Observation
from bootstrap.supervise.membership.records import GenerationRecord, Heartbeat, Member
from bootstrap.supervise.membership.scope import RunScope
from bootstrap.supervise.monitors import Board
from bootstrap.supervise.run_loading import RunLoader
from bootstrap.supervise.saved_state import SavedState
from bootstrap.supervise.trainers.launch import launcher_command
from bootstrap.supervise.trainers.standby import Kind, Standby
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


def create(standby: Standby, directory: Path, program: str) -> None:
    package = directory / "training"
    package.mkdir(exist_ok=True)
    (package / "__main__.py").write_text(program)
    standby.create(KIND, sys.executable, {**os.environ, "PYTHONPATH": str(directory)}, directory)


wait = partial(waiting.wait, limit_seconds=60)


def test_a_standby_is_started_once_with_the_given_arguments(standby: Standby, tmp_path: Path) -> None:
    assert standby.needs(KIND)
    create(standby, tmp_path, WAITS)
    assert not standby.needs(KIND)
    wait(lambda: not standby.is_warming())
    assert (standby.take_import_seconds() or 0) > 0 and standby.take_import_seconds() is None

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
    assert standby.needs(KIND)


def test_an_importing_standby_starts_after_its_imports(standby: Standby, tmp_path: Path) -> None:
    (tmp_path / "slow").touch()
    create(standby, tmp_path, WAITS)
    wait(lambda: (tmp_path / "pid").exists())
    started: list[subprocess.Popen[bytes]] = []

    def start_it() -> bool:
        process = standby.start(KIND, ["--nnodes=1"], {}, tmp_path, tmp_path / "log")
        started.extend([process] if process is not None else [])
        return process is not None

    wait(start_it)  # as soon as it has sent its first byte
    before = time.monotonic()
    assert standby.imported_at() >= before  # no other standby competes with it
    (tmp_path / "slow").unlink()
    wait(lambda: standby.imported_at() == standby.imported_at())

    assert started[0].wait(20) == 0
    assert json.loads((tmp_path / "got").read_text())["arguments"] == ["--nnodes=1"]


def test_a_started_standby_may_still_import_when_the_next_is_created(standby: Standby, tmp_path: Path) -> None:
    generation = tmp_path / "gen-1"
    generation.mkdir()
    (tmp_path / "slow").touch()
    create(standby, tmp_path, 'print("imports", flush=True)\n' + WAITS)
    wait(lambda: standby._hear() != b"")
    process = standby.start(KIND, ["--nnodes=1"], {}, generation, generation / "log")
    assert process is not None

    create(standby, tmp_path, "import time\ntime.sleep(60)\n")
    (tmp_path / "slow").unlink()

    assert process.wait(20) == 0, (generation / "standby.log").read_text()
    assert json.loads((tmp_path / "got").read_text())["arguments"] == ["--nnodes=1"]
    assert (generation / "standby.log").read_text() == "imports\n"


def test_a_standby_of_other_code_is_not_used(standby: Standby, tmp_path: Path) -> None:
    create(standby, tmp_path, WAITS)
    wait(lambda: not standby.is_warming())

    assert standby.start(Kind("b" * 64, 1), [], {}, tmp_path, tmp_path / "log") is None
    assert standby.needs(Kind("b" * 64, 1))
    assert not (tmp_path / "got").exists()


def test_code_without_a_standby_starts_cold_and_is_not_retried(standby: Standby, tmp_path: Path) -> None:
    create(standby, tmp_path, "raise SystemExit('invalid choice: standby')")

    assert standby.start(KIND, [], {}, tmp_path, tmp_path / "log") is None  # exited or not
    wait(lambda: not standby.needs(KIND) and not standby.is_warming())
    assert "invalid choice" in (tmp_path / "standby.log").read_text()


def test_an_unused_standby_is_ended(standby: Standby, tmp_path: Path) -> None:
    create(standby, tmp_path, WAITS)
    wait(lambda: not standby.is_warming())

    standby.end()

    assert standby.needs(KIND)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


ME, YOU = Member("i-me", "10.0.0.1"), Member("i-you", "10.0.0.2")
TRAINS = {YOU.instance_id: Heartbeat(YOU.instance_id, YOU.address, 1, "training", 1, 5, "d", 1.0)}


def generation(number: int, *members: Member) -> GenerationRecord:
    return GenerationRecord(number, "d", members, members[0].address, 29500, members[0].instance_id)


def test_only_a_node_that_joins_a_training_gang_waits_for_the_imports(account: Account, tmp_path: Path) -> None:
    context = real(account, tmp_path)
    run, board, root = context.run, Board(), context.layout.root
    assert run is not None
    context.identity = InstanceIdentity(ME.instance_id, "c7i.2xlarge", "us-east-1a", ME.address, "spot", None)
    scope = RunScope(ControlStore(Aws(REGION).client("s3"), **account.scope(run.run)), ME.instance_id)
    board.run = run
    loader = RunLoader(context, board.wake)
    loader.loaded_digest = run.digest()
    package = context.layout.code(run.code.sha256) / "training"
    package.mkdir(parents=True)
    (package / "__main__.py").write_text(WAITS)
    for name in ("mute", "slow"):
        (root / name).touch()
    actor = Actor(context, board, context.identity, SavedState(ME.instance_id, 5.0), loader, launcher_command)

    def see(record: GenerationRecord | None, heartbeats: dict[str, Heartbeat]) -> None:
        now = context.system.monotonic_seconds()
        scope.update(Observation(heartbeats, record, None), now, now)

    try:
        see(None, {})
        assert actor.warm.is_warming(scope, 0)  # a standby is about to be created
        actor.warm.keep(None, is_concluded=False)
        wait(lambda: (root / "pid").exists())
        assert actor.warm.is_warming(scope, 0)  # no first byte yet: the start would be cold
        (root / "mute").unlink()
        wait(lambda: not actor.warm.is_warming(scope, 0))  # no node trains: it can be started while it imports
        assert actor.warm.is_warming(None, 0)  # no observation yet
        see(generation(1, YOU), TRAINS)
        assert actor.warm.is_warming(scope, 0)
        see(generation(1, YOU), {})  # no peers
        assert not actor.warm.is_warming(scope, 0)
        see(generation(2, YOU, ME), TRAINS)  # this node is a member
        assert not actor.warm.is_warming(scope, 0)
        see(generation(3, YOU), TRAINS)
        assert actor.warm.is_warming(scope, 0)
        (root / "slow").unlink()
        wait(lambda: not actor.warm.is_warming(scope, 0))
    finally:
        actor.end_trainer()
