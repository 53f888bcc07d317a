"""The launcher: environment variables, exited ranks, signals, and the addresses on which a generation listens."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from bootstrap.supervise.trainers.launch import free_port
from tests.bootstrap import waiting
from training.process.store import store_on_address

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux answers on all of 127.0.0.0/8")
ADDRESS = "127.64.0.7"
LISTENS = """
import json, os, psutil, torch
from training.process.distributed import join_gang
gang = join_gang()
gang.sum_(torch.ones(1))
processes = [psutil.Process(), psutil.Process().parent()]
print(json.dumps([
    connection.laddr.ip
    for process in processes
    for connection in process.net_connections("tcp")
    if connection.status == psutil.CONN_LISTEN
]), flush=True)
gang.leave()
"""
SHOWS = """
import json, os
open(f"variables-{os.environ['RANK']}", "w").write(json.dumps(dict(os.environ)))
"""
WAITS = """
import os, signal, sys, time
rank = os.environ["RANK"]
signal.signal(signal.SIGTERM, lambda *_: (open(f"told-{rank}", "w").close(), sys.exit(75)))
with open(f"pid-{rank}.new", "w") as file:
    file.write(str(os.getpid()))
os.rename(f"pid-{rank}.new", f"pid-{rank}")
while True:
    time.sleep(0.01)
"""


def start(folder: Path, program: str, processes: int = 2, nodes: int = 1, node_rank: int = 0) -> subprocess.Popen[str]:
    (folder / "rank.py").write_text(program)
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "training.process.launcher", f"--nnodes={nodes}", f"--node-rank={node_rank}"),
            *(f"--nproc-per-node={processes}", f"--master-addr={ADDRESS}", f"--master-port={free_port(ADDRESS)}"),
            *("--exits=exits", "-m", "rank"),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(Path.cwd()), *sys.path])},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait(condition: Callable[[], Any]) -> Any:
    return waiting.wait(condition, limit_seconds=60)


def exit_code(folder: Path, rank: int) -> int | None:
    path = folder / "exits" / f"rank-{rank:05d}.json"
    return json.loads(path.read_text())["exit_code"] if path.exists() else None


def test_a_killed_rank_is_reported_and_the_others_continue(tmp_path: Path) -> None:
    with start(tmp_path, WAITS) as launcher:
        wait(lambda: all((tmp_path / f"pid-{rank}").exists() for rank in (0, 1)))
        os.kill(int((tmp_path / "pid-1").read_text()), signal.SIGKILL)
        assert wait(lambda: exit_code(tmp_path, 1)) == -signal.SIGKILL
        assert launcher.poll() is None and exit_code(tmp_path, 0) is None
        os.kill(int((tmp_path / "pid-0").read_text()), 0)  # alive
        launcher.send_signal(signal.SIGTERM)
        assert launcher.wait(60) == 1
    assert exit_code(tmp_path, 0) == 75


def test_a_stop_signal_reaches_every_rank(tmp_path: Path) -> None:
    with start(tmp_path, WAITS) as launcher:
        wait(lambda: all((tmp_path / f"pid-{rank}").exists() for rank in (0, 1)))
        launcher.send_signal(signal.SIGTERM)
        assert launcher.wait(60) == 1
    assert (tmp_path / "told-0").exists() and (tmp_path / "told-1").exists()


@pytest.mark.slow  # imports torch in torchrun
def test_ranks_get_torchruns_variables(tmp_path: Path) -> None:
    names = ("launcher", "torchrun")
    for name in names:
        (tmp_path / name).mkdir()
    with start(tmp_path / "launcher", SHOWS) as launcher:
        assert launcher.wait(60) == 0
    (tmp_path / "torchrun" / "rank.py").write_text(SHOWS)
    port = free_port(ADDRESS)
    subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes=1", "--node-rank=0", "--nproc-per-node=2"),
            *(f"--master-addr={ADDRESS}", f"--master-port={port}", "--max-restarts=0", "-m", "rank"),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=tmp_path / "torchrun",
        check=True,
        timeout=180,
    )
    for rank in (0, 1):
        ours, theirs = (json.loads((tmp_path / name / f"variables-{rank}").read_text()) for name in names)
        prefixes = ("RANK", "LOCAL_", "WORLD_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_")
        named = [name for name in theirs if name.startswith(prefixes)]
        # torchrun's own error files and the names of its signals: no rank of ours reads them.
        missing = set(named) - ours.keys() - {"TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE"}
        assert not missing
        for name in set(named) & ours.keys() - {"MASTER_PORT", "TORCHELASTIC_RUN_ID"}:
            assert ours[name] == theirs[name], name


def test_neither_the_launcher_nor_a_rank_listens_on_all_addresses(tmp_path: Path) -> None:
    launcher = start(tmp_path, LISTENS, processes=1)
    output, errors = launcher.communicate(timeout=180)
    assert launcher.returncode == 0, errors
    addresses = json.loads(output.splitlines()[-1])
    assert ADDRESS in addresses
    assert set(addresses) <= {ADDRESS, "127.0.0.1"}


def test_store_answers_on_its_address_only() -> None:
    from torch._C._distributed_c10d import TCPStore

    port = free_port(ADDRESS)
    server = store_on_address(ADDRESS, port, timedelta(seconds=20))
    client = TCPStore(ADDRESS, port, None, False, timedelta(seconds=20))
    client.set("key", "value")
    assert server.get("key") == b"value"
    socket.create_connection((ADDRESS, port), timeout=5).close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_address_of_another_machine_is_rejected() -> None:
    with pytest.raises(OSError, match="assign requested address"):
        store_on_address("192.0.2.1", 4321, timedelta(seconds=5))
