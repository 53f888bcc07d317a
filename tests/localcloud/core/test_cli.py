"""`python -m localcloud` in separate processes: its commands, and clean-up after a crash."""

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
        assert "running: http://127.0.0.1:" in cli.good("up", "--port", str(port))
    first = cli.status()
    assert first["endpoint_url"] != f"http://127.0.0.1:{port}"
    assert cli.good("up") == f"already running: {first['endpoint_url']}\n"
    assert cli.status() == first

    script = f"{cli.good('env')}\nexec {shlex.quote(sys.executable)} -c 'import boto3\n"
    script += 'print(boto3.client("sts").get_caller_identity()["Arn"])\''
    clean = {"PATH": os.environ["PATH"], "HOME": str(cli.state)}
    caller = subprocess.run(["sh", "-c", script], env=clean, capture_output=True, text=True, timeout=60)
    assert caller.stdout == "arn:aws:iam::123456789012:root\n", caller.stderr
    assert json.loads(cli.good("env", "--json"))["AWS_ENDPOINT_URL"] == first["endpoint_url"]

    assert "'i-0123456789abcdef0' does not exist" in cli.refused("interrupt", "i-0123456789abcdef0")
    assert "no such instance" in cli.refused("logs", "i-0123456789abcdef0")
    assert cli.good("down") == "stopped: ended 1 processes\n"
    assert cli.processes() == []
    assert cli.good("down") == "nothing was running\n"
    assert f"python -m localcloud up --state {cli.state}" in cli.refused("status")


def test_down_ends_processes_of_instances_and_functions(cli: Cli) -> None:
    cli.good("up", "--port", "0")
    lost, kept = cli.run_instances(2)
    function = psutil.Process(cli.invoke_function())
    assert function in cli.processes()
    assert {one["id"] for one in cli.status()["instances"]} == {lost, kept}
    shown = next(line for line in cli.good("status").splitlines() if lost in line)
    assert "c7i.large" in shown and "us-east-1" in shown, "words are complete although the terminal is narrow"
    assert cli.good("interrupt", lost, "--no-notice") == f"{lost}: terminated\n"
    wait_for(lambda: cli.sleepers() == 2)
    cli.good("down")
    assert cli.processes() == []
    assert "booted" in cli.good("logs", kept)


def is_running(process: psutil.Process) -> bool:
    """Return True if a process is running and not a zombie."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("is_down_called", [True, False])
def test_processes_of_a_killed_cloud_are_ended(cli: Cli, is_down_called: bool) -> None:
    cli.good("up", "--port", "0")
    cli.run_instances()
    cli.invoke_function()
    left = cli.processes()
    os.kill(cli.status()["pid"], signal.SIGKILL)
    if is_down_called:
        cli.good("down")
        assert cli.processes() == []
        assert "no cloud is running" in cli.refused("status")
    cli.good("up", "--port", "0")
    assert not any(is_running(process) for process in left)
    assert len(cli.processes()) == 1
    assert cli.status()["instances"] == []
    assert cli.client("iam").list_roles()["Roles"] == []


def test_down_finds_a_cloud_in_the_foreground(cli: Cli) -> None:
    command = [sys.executable, "-m", "localcloud", "up", "--foreground", "--port", "0", "--state", str(cli.state)]
    terminal = subprocess.Popen(command, cwd=ROOT, env=NO_MARK, stderr=subprocess.DEVNULL)
    try:
        wait_for((cli.state / "cloud.json").exists)
        again = subprocess.run(command, cwd=ROOT, env=NO_MARK, capture_output=True, text=True, timeout=60)
        assert (again.returncode, again.stdout[:16]) == (0, "already running:")
        assert cli.good("down") == "stopped: ended 1 processes\n"
        assert terminal.wait(timeout=10) == 0
    finally:
        terminal.kill()
        terminal.wait()


@pytest.mark.parametrize(
    ("options", "words"),
    [(("--port", "70000"), "65535"), (("--state", __file__), "is a file")],
)
def test_invalid_options_are_rejected_with_the_reason(cli: Cli, options: tuple[str, ...], words: str) -> None:
    done = cli.run("up", *options)
    assert done.returncode == 2
    assert words in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not cli.state.exists()


def test_up_starts_an_account_with_defects(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "account.yaml"
    file.write_text("zone: [a]\nquotas: {L-3819A6DF: many}\n")
    refused = cli.refused("up", "--account", str(file))
    assert "zone: unknown key" in refused and "quotas.L-3819A6DF: 'many': must be float" in refused
    file.write_text("zones: [b]\nquotas: {L-3819A6DF: 8}\n")
    cli.good("up", "--port", "0", "--account", str(file))
    zones = cli.client("ec2").describe_availability_zones()["AvailabilityZones"]
    assert [one["ZoneName"] for one in zones] == ["us-east-1b"]
