"""The guardian kills all descendants, but lets a checkpoint writer finish."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bootstrap.supervise.trainers import guardian

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="orphans are adopted on Linux only")

TRAINER = """
import os, subprocess, sys
for name, code in (("writer", "# training.checkpoint.save.writer_process"), ("other", "")):
    # Each creates a file at its start, waits for the file `go`, and creates another file.
    subprocess.Popen(
        [sys.executable, "-c", sys.argv[1] + code, sys.argv[2], name], start_new_session=True, stdin=subprocess.DEVNULL
    )
while True:
    os.wait()
"""
CHILD = """
import pathlib, sys, time
folder, name = pathlib.Path(sys.argv[1]), sys.argv[2]
(folder / f"{name}-up").touch()
while not (folder / "go").exists():
    time.sleep(0.01)
(folder / f"{name}-done").touch()
"""


def test_a_checkpoint_writer_may_finish_while_others_are_killed(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", guardian.__file__, sys.executable, "-c", TRAINER, CHILD, str(tmp_path)],
        stdin=subprocess.PIPE,
    )
    assert process.stdin is not None
    deadline = time.monotonic() + 60
    while not ((tmp_path / "writer-up").exists() and (tmp_path / "other-up").exists()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.stdin.close()
    while _running(tmp_path, "other"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert process.poll() is None
    (tmp_path / "go").touch()
    process.wait(60)
    assert (tmp_path / "writer-done").exists()
    assert not (tmp_path / "other-done").exists()
    assert not _running(tmp_path, "writer")


def _running(folder: Path, name: str) -> bool:
    wanted = f"{folder}\0{name}\0".encode()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                if Path(entry.path, "cmdline").read_bytes().endswith(wanted):
                    return True
            except OSError:  # it has just exited
                continue
    return False
