"""`python -m localcloud` as processes: what a person types, and what is left after a crash."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.localcloud.core.command_line import NO_MARK, ROOT, Cli, wait_for


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    made = Cli(tmp_path / "cloud")
    yield made
    made.run("down")
    for process in made.processes():
        process.kill()


def test_up_status_env_and_down(cli: Cli) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        assert "up: http://127.0.0.1:" in cli.good("up", "--port", str(port))
    first = cli.status()
    assert first["endpoint_url"] != f"http://127.0.0.1:{port}"
    assert cli.good("up") == f"already up: {first['endpoint_url']}\n"
    assert cli.status() == first

    script = f"{cli.good('env')}\nexec {shlex.quote(sys.executable)} -c 'import boto3\n"
    script += 'print(boto3.client("sts").get_caller_identity()["Arn"])\''
    clean = {"PATH": os.environ["PATH"], "HOME": str(cli.state)}
    told = subprocess.run(["sh", "-c", script], env=clean, capture_output=True, text=True, timeout=60)
    assert told.stdout == "arn:aws:iam::123456789012:root\n", told.stderr
    assert json.loads(cli.good("env", "--json"))["AWS_ENDPOINT_URL"] == first["endpoint_url"]

    assert "'i-0123456789abcdef0' does not exist" in cli.refused("interrupt", "i-0123456789abcdef0")
    assert "no such instance" in cli.refused("logs", "i-0123456789abcdef0")
    assert cli.good("down") == "down: 1 processes ended\n"
    assert cli.processes() == []
    assert cli.good("down") == "down: nothing was running\n"
    assert f"python -m localcloud up --state {cli.state}" in cli.refused("status")


def test_down_ends_what_runs_in_machines_and_functions(cli: Cli) -> None:
    cli.good("up", "--port", "0")
    lost, kept = cli.run_instances(2)
    function = psutil.Process(cli.invoke_function())
    assert function in cli.processes()
    assert {one["id"] for one in cli.status()["instances"]} == {lost, kept}
    assert lost in cli.good("status")
    assert cli.good("interrupt", lost, "--no-notice") == f"{lost}: gone\n"
    wait_for(lambda: cli.sleepers() == 2)
    cli.good("down")
    assert cli.processes() == []
    assert "booted" in cli.good("logs", kept)


def is_at_work(process: psutil.Process) -> bool:
    """Tell whether a process runs; one that has ended and waits for init to take note of it does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("is_down_called", [True, False])
def test_nothing_is_left_of_a_killed_cloud(cli: Cli, is_down_called: bool) -> None:
    cli.good("up", "--port", "0")
    cli.run_instances()
    cli.invoke_function()
    left = cli.processes()
    os.kill(cli.status()["pid"], signal.SIGKILL)
    if is_down_called:
        cli.good("down")
        assert cli.processes() == []
        assert "no cloud runs" in cli.refused("status")
    cli.good("up", "--port", "0")
    assert not any(is_at_work(process) for process in left)
    assert len(cli.processes()) == 1
    assert cli.status()["instances"] == []
    assert cli.client("iam").list_roles()["Roles"] == []


def test_down_finds_a_cloud_in_the_foreground(cli: Cli) -> None:
    command = [sys.executable, "-m", "localcloud", "up", "--foreground", "--port", "0", "--state", str(cli.state)]
    terminal = subprocess.Popen(command, cwd=ROOT, env=NO_MARK, stderr=subprocess.DEVNULL)
    try:
        wait_for((cli.state / "cloud.json").exists)
        again = subprocess.run(command, cwd=ROOT, env=NO_MARK, capture_output=True, text=True, timeout=60)
        assert (again.returncode, again.stdout[:11]) == (0, "already up:")
        assert cli.good("down") == "down: 1 processes ended\n"
        assert terminal.wait(timeout=10) == 0
    finally:
        terminal.kill()
        terminal.wait()


@pytest.mark.parametrize(
    ("options", "words"),
    [(("--port", "70000"), "65535"), (("--state", __file__), "is a file")],
)
def test_wrong_options_are_refused_in_words(cli: Cli, options: tuple[str, ...], words: str) -> None:
    done = cli.run("up", *options)
    assert done.returncode == 2
    assert words in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not cli.state.exists()
