"""Waits for collectives whose connections are broken, also those that gloo does not end before their timeout."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import struct
import time
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.training.conftest import free_port
from training.process.distributed import Gang, adopt_gang, join_gang
from training.process.reform.breakage import Breakage
from training.process.reform.connections import (
    SILENCE_LIMIT_SECONDS,
    Connection,
    are_open,
    limit_silence,
    shut_down,
    tcp_connections,
)

LARGE_BYTES = 256 << 20
"""More than the kernel buffers, so the receiver has received a part when the sender stops."""
PART_BYTES = 1 << 20
ENDS_SECONDS = 180.0
"""Limit for all waits here. The collectives' own timeout is 15 minutes."""


def _join(rank: int, port: int) -> Gang:
    variables = {"RANK": rank, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 1}
    os.environ.update({key: str(value) for key, value in variables.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TRAINSTACK_STORE_HOST="rank 0")
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    return join_gang()


def _send_in_part(port: int) -> None:
    """As rank 1, stop while a large message is being sent."""
    gang = _join(1, port)
    dist.broadcast(torch.zeros(LARGE_BYTES, dtype=torch.uint8), src=1, group=gang._host_group, async_op=True)
    while all(_acknowledged(each) < PART_BYTES for each in gang._connections):
        time.sleep(0.001)  # polling: the kernel has no notification of an acknowledgement
    os.kill(os.getpid(), signal.SIGSTOP)


def _acknowledged(connection: Connection) -> int:
    """Return the bytes that the other end has acknowledged: `tcpi_bytes_acked` in linux/tcp.h."""
    with socket.socket(fileno=os.dup(connection.descriptor)) as own:
        information = own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 128)
    return int(struct.unpack_from("Q", information, 120)[0])


def _receive_in_part(port: int, pipe: Pipe) -> None:
    """As rank 0, break the connections while a large message arrives, and form another group."""
    gang = _join(0, port)
    work = dist.broadcast(torch.zeros(LARGE_BYTES, dtype=torch.uint8), src=1, group=gang._host_group, async_op=True)
    pipe.send("receives")
    pipe.recv()
    gang.break_connections()
    try:
        gang.breakage.wait(work)
    except RuntimeError as error:
        pipe.send(f"{type(error).__name__}: {error}")
    del work
    gang.disband(is_held=True, meeting=frozenset())
    pipe.send(gang.abandoned)


def test_a_message_that_has_arrived_in_part_does_not_hold_the_rank() -> None:
    context = multiprocessing.get_context("spawn")
    port, (here, there) = free_port(), context.Pipe()
    sender = context.Process(target=_send_in_part, args=(port,))
    receiver = context.Process(target=_receive_in_part, args=(port, there))
    try:
        receiver.start()
        sender.start()
        assert here.poll(ENDS_SECONDS) and here.recv() == "receives"
        deadline = time.monotonic() + ENDS_SECONDS
        while Path(f"/proc/{sender.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < deadline
            time.sleep(0.01)  # polling: a stopped process has no notification
        here.send("break")
        assert here.poll(ENDS_SECONDS), "the rank waits for the message"
        assert "DistNetworkError" in here.recv()
        assert here.poll(ENDS_SECONDS), "the rank waits for the destruction of the group"
        assert here.recv() == 1, "gloo has ended the wait itself; remove training.process.reform.breakage"
        receiver.join(ENDS_SECONDS)
        assert receiver.exitcode == 0
    finally:
        for each in (sender, receiver):
            if each.pid is not None:
                each.kill()
                each.join()


@pytest.fixture
def pair() -> object:
    with socket.create_server(("127.0.0.1", 0)) as server:
        before = tcp_connections()
        with socket.create_connection(server.getsockname()) as client, server.accept()[0] as peer:
            yield client, peer, tcp_connections() - before


def test_connections_end_if_the_other_machine_does_not_answer(
    pair: tuple[socket.socket, socket.socket, frozenset[Connection]],
) -> None:
    client, _, connections = pair
    assert len(connections) == 2
    limit_silence(connections)
    assert client.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == SILENCE_LIMIT_SECONDS * 1000
    assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) < SILENCE_LIMIT_SECONDS


def test_a_connection_that_its_owner_has_closed_is_noticed(
    pair: tuple[socket.socket, socket.socket, frozenset[Connection]],
) -> None:
    client, peer, connections = pair
    shut_down(connections)
    assert peer.recv(1) == b""
    assert are_open(connections)
    client.close()
    assert not are_open(connections)


def test_an_exchange_completes_with_the_own_gradients_if_the_connections_break() -> None:
    breakage, inner, own = Breakage(), torch.futures.Future(), torch.ones(2)
    future = breakage.exchange(lambda: inner, own)
    assert not future.done()
    breakage.mark("a test")
    assert future.wait() is own
    with pytest.raises(dist.DistNetworkError, match="a test"):
        breakage.check()
    inner.set_result(torch.zeros(2))  # too late: the future is complete
    assert breakage.exchange(lambda: inner, own).wait() is own
    breakage.clear()
    breakage.check()


def test_an_exchange_that_fails_breaks_the_next_collective() -> None:
    breakage, inner, own = Breakage(), torch.futures.Future(), torch.ones(2)
    future = breakage.exchange(lambda: inner, own)
    inner.set_exception(RuntimeError("gloo: closed by peer"))
    assert future.wait() is own
    with pytest.raises(dist.DistNetworkError, match="closed by peer"):
        breakage.check()


def test_an_exchange_completes_with_the_sums() -> None:
    breakage, inner = Breakage(), torch.futures.Future()
    future = breakage.exchange(lambda: inner, torch.ones(2))
    inner.set_result(torch.full((2,), 4.0))
    assert future.wait().tolist() == [4.0, 4.0]
    breakage.check()


def test_a_gang_on_the_host_adopts_its_group_without_a_list_of_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that saves checkpoints may run where `/proc` is not mounted, for example on macOS."""

    def no_proc(path: str) -> None:
        raise FileNotFoundError(path)

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    monkeypatch.setattr("os.scandir", no_proc)
    try:
        gang = adopt_gang(torch.device("cpu"))
        numbers = torch.ones(2)
        gang.pass_gate(numbers)
        assert numbers.tolist() == [1.0, 1.0]
        assert gang.gather("here") == ["here"]
    finally:
        monkeypatch.undo()
        dist.destroy_process_group()
