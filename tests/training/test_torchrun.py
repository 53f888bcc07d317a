"""The addresses on which a generation's processes listen."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from bootstrap.supervise.trainers.launch import free_port
from training.process.torchrun import store_on_address

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux answers on all of 127.0.0.0/8")
ADDRESS = "127.64.0.7"
SCRIPT = """
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


def test_neither_torchrun_nor_a_rank_listens_on_all_addresses(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(SCRIPT)
    arguments = ["--nnodes=1", "--node-rank=0", "--nproc-per-node=1", f"--master-addr={ADDRESS}", "--max-restarts=0"]
    done = subprocess.run(
        [sys.executable, "-m", "training.process.torchrun", *arguments, f"--master-port={free_port(ADDRESS)}", script],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    addresses = json.loads(done.stdout.splitlines()[-1])
    assert ADDRESS in addresses
    assert set(addresses) <= {ADDRESS, "127.0.0.1"}


def test_store_answers_on_its_address_only() -> None:
    port = free_port(ADDRESS)
    server, client = (
        store_on_address(ADDRESS, port, 1, is_master, timedelta(seconds=20), multi_tenant=True)
        for is_master in (True, False)
    )
    client.set("key", "value")
    assert server.get("key") == b"value"
    socket.create_connection((ADDRESS, port), timeout=5).close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_address_of_another_machine_is_rejected() -> None:
    with pytest.raises(OSError, match="assign requested address"):
        store_on_address("192.0.2.1", 4321, 1, True, timedelta(seconds=5), multi_tenant=True)
