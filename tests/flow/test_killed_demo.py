"""The demo is interrupted with Ctrl-C or killed, and no process is left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.localcloud.core.command_line import NO_MARK, ROOT, Cli, wait_for

SENTENCE = "a demo that was killed leaves no process, not even a child\n"


@dataclass
class RunningDemo:
    process: subprocess.Popen[str]
    cloud: Cli
    children: list[psutil.Process]

    def left(self) -> list[psutil.Process]:
        """Return the live processes of the demo and of its cloud."""
        alive = [one for one in self.children if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
        return alive + self.cloud.processes()


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[RunningDemo]:
    """A demo with a running cloud, during tokenization and synthesis."""
    text = tmp_path / "text"
    text.mkdir()
    for number in range(200):
        (text / f"{number}.txt").write_text(SENTENCE * 2000)
    command = [sys.executable, "-m", "localcloud.demo", "--data", str(text), "--build", str(tmp_path / "build")]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=NO_MARK,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # As in a terminal: background jobs of a shell, and their children, ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 single-threaded
    )
    running = RunningDemo(process, Cli(tmp_path / "build" / "cloud"), [])
    try:
        wait_for((running.cloud.state / "cloud.json").exists)
        wait_for(lambda: _titles(process.pid) >= {"training", "cdk"})
        running.children = psutil.Process(process.pid).children(recursive=True) + running.cloud.processes()
        yield running
    finally:
        process.kill()
        process.communicate()
        running.cloud.run("down")
        for child in running.left():
            child.kill()


def _titles(pid: int) -> set[str]:
    lines = _command_lines(pid)
    return {title for title in ("training", "cdk") if any(title in line for line in lines)}


def _command_lines(pid: int) -> list[str]:
    """Return the command lines of the live children. A child can exit while its command line is being read."""
    lines = []
    for child in psutil.Process(pid).children():
        with contextlib.suppress(psutil.Error):
            if child.status() != psutil.STATUS_ZOMBIE:
                lines.append(" ".join(child.cmdline()))
    return lines


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_leaves_no_process(demo: RunningDemo, times: int) -> None:
    os.killpg(demo.process.pid, signal.SIGINT)
    if times == 2:
        wait_for(lambda: any("localcloud down" in line for line in _command_lines(demo.process.pid)))
        os.killpg(demo.process.pid, signal.SIGINT)
    output, _ = demo.process.communicate(timeout=30)
    assert demo.process.returncode == 130
    assert "interrupted; all demo processes have been stopped" in output
    assert demo.left() == []


def test_down_ends_the_processes_of_a_killed_demo(demo: RunningDemo) -> None:
    demo.process.kill()
    demo.process.wait()
    assert demo.left() != []
    assert "stopped: ended" in demo.cloud.good("down")
    assert demo.left() == []
