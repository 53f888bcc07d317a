"""The demo ended in the middle, by Ctrl-C or without a word: nothing stays behind."""

from __future__ import annotations

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

SENTENCE = "a demo that was killed leaves nothing behind, not even its children\n"


@dataclass
class RunningDemo:
    process: subprocess.Popen[str]
    cloud: Cli
    children: list[psutil.Process]

    def left(self) -> list[psutil.Process]:
        """Return what still runs of the demo and of its cloud."""
        alive = [one for one in self.children if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
        return alive + self.cloud.processes()


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[RunningDemo]:
    """A demo whose cloud is up, while it tokenizes and synthesises."""
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
        # As in a terminal: a shell's background jobs, and what they start, ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 there is one thread
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
    lines = []
    for child in psutil.Process(pid).children():
        try:
            lines.append(" ".join(child.cmdline()))
        except psutil.Error:
            continue
    return {title for title in ("training", "cdk") if any(title in line for line in lines)}


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_leaves_nothing(demo: RunningDemo, times: int) -> None:
    os.killpg(demo.process.pid, signal.SIGINT)
    if times == 2:
        wait_for(lambda: any("localcloud down" in " ".join(c.cmdline()) for c in _children(demo.process.pid)))
        os.killpg(demo.process.pid, signal.SIGINT)
    output, _ = demo.process.communicate(timeout=30)
    assert demo.process.returncode == 130
    assert "stopped; nothing is left running" in output
    assert demo.left() == []


def _children(pid: int) -> list[psutil.Process]:
    return [child for child in psutil.Process(pid).children() if child.status() != psutil.STATUS_ZOMBIE]


def test_down_ends_what_a_killed_demo_left(demo: RunningDemo) -> None:
    demo.process.kill()
    demo.process.wait()
    assert demo.left() != []
    assert "processes ended" in demo.cloud.good("down")
    assert demo.left() == []
