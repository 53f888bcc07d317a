"""The gang: the processes that train together, and collectives that do not make a GPU wait.

The gang's collectives use gloo and host tensors, separately from the gradient all-reduce. The all-reduce of control
flags is deferred: flags are posted after one step and collected after the next, which hides the latency.
"""

from __future__ import annotations

import datetime
import gc
import logging
import os
import sys
import weakref
from collections.abc import Callable
from dataclasses import astuple, dataclass, fields
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from training.errors import ConfigurationError, PeerError
from training.process.messages import decode, encode
from training.process.reform.breakage import Breakage, destroy
from training.process.reform.connections import Connection, are_open, limit_silence, shut_down, tcp_connections
from training.process.store import host_store

logger = logging.getLogger(__name__)

RENDEZVOUS_TIMEOUT = datetime.timedelta(seconds=180)
"""Timeout for all processes to join. Their times for boot, imports and dataset checks differ by less than this."""
COLLECTIVE_TIMEOUT = datetime.timedelta(minutes=15)
"""Timeout for a collective. The longest legitimate delay is a `torch.compile` on one rank."""
MAX_MESSAGE_BYTES = 1 << 30
DESTROY_LIMIT_SECONDS = 1.0
"""Time to wait for the destruction of a process group. Usually it takes milliseconds."""

Answer = TypeVar("Answer")
_c10d: Any = dist  # torch exports its stores and rendezvous at runtime, but not in its annotations


@dataclass(frozen=True)
class ControlFlags:
    """A rank's flags after a step; the all-reduce sums them over all ranks.

    Attributes:
        loss: this rank's share of the loss; the sum over all ranks is the mean over all tokens.
        non_finite: 1 if a step's loss or gradient was NaN or infinite on this rank.
        stop: 1 if this rank received a request to save and stop.
        save: 1 if this rank received a request for an extra checkpoint.
        due: 1 on rank 0 if the next checkpoint is due.
        busy: 1 while a save is in flight on this rank.
        failed: 1 if a save failed on this rank.
        leaving: 1 if this rank will stop soon, so that a save that begins now would delay the last save.
        next: the generation that this rank is ready to change to; 0: none.
        next_squared: its square. All ranks are ready for the same generation g if and only if the sums are W * g and
            W * g * g (equality in the Cauchy-Schwarz inequality).
    """

    loss: float = 0.0
    non_finite: float = 0.0
    stop: float = 0.0
    save: float = 0.0
    due: float = 0.0
    busy: float = 0.0
    failed: float = 0.0
    leaving: float = 0.0
    next: float = 0.0
    next_squared: float = 0.0


class Gang:
    """This process as a member of the gang.

    Attributes:
        rank: this process's rank, 0 to world_size - 1 over all nodes.
        world_size: number of processes.
        local_rank: this process's rank on its node.
        local_world_size: number of processes on this node.
        device: this process's device.
        store: the rendezvous key-value store, for threads that must not use collectives.
        breakage: ends this rank's waits if the connections are broken.
        abandoned: number of destroyed process groups that still waited for a collective.
    """

    def __init__(
        self, rank: int, world_size: int, local_rank: int, local_world_size: int, device: torch.device, store: Any
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.local_rank = local_rank
        self.local_world_size = local_world_size
        self.device = device
        self.store = store
        self.breakage = Breakage()
        self.abandoned = 0
        self._host_group: Any = None
        self._host_connections: frozenset[Connection] = frozenset()
        self._form_host_group(COLLECTIVE_TIMEOUT)
        self._posted: ControlFlags | tuple[Tensor, dist.Work] | None = None
        self._connections: frozenset[Connection] = frozenset()
        self._watched: frozenset[Connection] = frozenset()
        self._others: frozenset[Connection] | None = None

    def _form_host_group(self, timeout: datetime.timedelta) -> None:
        if self.device.type != "cuda":  # all of the gang's connections are gloo's
            self._host_group = dist.new_group(backend="gloo", timeout=timeout)
            return
        before = tcp_connections()
        self._host_group = dist.new_group(backend="gloo", timeout=timeout)
        self._host_connections = tcp_connections() - before

    def post(self, flags: ControlFlags) -> None:
        """Start an all-reduce of this rank's control flags. All ranks must post the same number of times."""
        assert self._posted is None, "flags must be collected before the next are posted"
        # With a single process, a collective would be the most expensive work between steps.
        if self.world_size == 1:
            self._posted = flags
            return
        self.breakage.check()
        sums = torch.tensor(astuple(flags), dtype=torch.float64)
        self._posted = (sums, dist.all_reduce(sums, group=self._host_group, async_op=True))

    def collect(self) -> ControlFlags | None:
        """Wait for the most recent all-reduce; return the sums, equal on all ranks, or None if none was posted."""
        posted, self._posted = self._posted, None
        if posted is None or isinstance(posted, ControlFlags):
            return posted
        sums, work = posted
        self.breakage.wait(work)
        return ControlFlags(**dict(zip((field.name for field in fields(ControlFlags)), sums.tolist(), strict=True)))

    def agree(self, flags: ControlFlags) -> ControlFlags:
        """Post flags and collect their sums immediately. Blocks until all ranks have posted."""
        self.post(flags)
        agreed = self.collect()
        assert agreed is not None, "posted above"
        return agreed

    def ask_rank_zero(self, question: Callable[[], Answer]) -> Answer:
        """Call ``question`` on rank 0 and return its result, or raise its exception, on every rank."""
        return self.ask(0, question)

    def ask(self, source: int, question: Callable[[], Answer]) -> Answer:
        """Call ``question`` on rank ``source`` and return its result, or raise its exception, on every rank."""
        failure: Exception | None = None
        answer: Any = None
        if self.rank == source:
            try:
                answer = question()
                message = encode(answer)
            # Raise the exception below, on all ranks. Raising it here would leave the other ranks waiting.
            except Exception as error:  # noqa: BLE001
                failure, message = error, encode(error)
        else:
            message = b""
        if self.world_size > 1:
            size = torch.tensor([len(message)])
            self._on_host(dist.broadcast, size, src=source)
            content = _buffer(message, _checked_size(size))
            self._on_host(dist.broadcast, content, src=source)
            if self.rank != source:
                answer = decode(content.numpy().tobytes())
                failure = answer if isinstance(answer, Exception) else None
        if failure is not None:
            raise failure
        return answer  # type: ignore[no-any-return]

    def raise_together(self, error: Exception | None) -> None:
        """Raise the lowest failing rank's exception on every rank."""
        for rank, candidate in enumerate(self.gather(error)):
            if candidate is not None:
                raise error if rank == self.rank and error is not None else candidate

    def gather(self, value: Answer) -> list[Answer]:
        """Return all ranks' values, in rank order, on every rank."""
        message = encode(value)
        if self.world_size == 1:
            return [decode(message)]
        sizes = [torch.empty(1, dtype=torch.int64) for _ in range(self.world_size)]
        self._on_host(dist.all_gather, sizes, torch.tensor([len(message)]))
        longest = max(_checked_size(size) for size in sizes)
        own = _buffer(message, longest)
        contents = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.world_size)]
        self._on_host(dist.all_gather, contents, own)
        return [decode(content.numpy()[: int(size)].tobytes()) for content, size in zip(contents, sizes, strict=True)]

    def broadcast_(self, tensor: Tensor, source: int) -> None:
        """Overwrite ``tensor`` (any type, host or device) on every rank with the tensor of rank ``source``."""
        content = tensor.contiguous()
        # Gloo and NCCL support only some types, so send bytes.
        content_bytes = content.as_strided((content.numel(),), (1,)).view(torch.uint8)
        self._run(dist.broadcast, content_bytes, src=source)
        if content.data_ptr() != tensor.data_ptr():
            tensor.copy_(content)

    def sum_(self, tensor: Tensor) -> None:
        """Replace ``tensor`` with its sum over all ranks. Does not make the host wait for a GPU."""
        if self.world_size > 1:
            self._run(dist.all_reduce, tensor)

    def pass_gate(self, numbers: Tensor) -> None:
        """Replace ``numbers`` with their sums over all ranks, after all earlier collectives of the gradient exchange.

        They use the same communicator as the gradients. Does not make the host wait for a GPU.
        """
        self._run(dist.all_reduce, numbers, group=None)

    def wait_for_message(self, work: Any) -> None:
        """Wait for a message between two ranks. Raises an error if the connections break."""
        if self.device.type == "cpu":
            self.breakage.wait_for_message(work)
        else:
            work.wait()

    def _run(self, collective: Callable[..., Any], tensor: Tensor, **options: Any) -> None:
        """Run a collective of one tensor: on the host, by default in the host group, and wait for it."""
        if tensor.device.type == "cpu":
            self._on_host(collective, tensor, **options)
        else:
            collective(tensor, **options)

    def _on_host(self, collective: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        """Run a collective of host tensors, and wait for it."""
        self.breakage.check()
        options = {"group": self._host_group, **options}
        self.breakage.wait(collective(*arguments, async_op=True, **options))

    def share_of(self, count: int) -> range:
        """Return this rank's contiguous share of ``range(count)``. Share sizes differ by at most one."""
        return range(self.rank * count // self.world_size, (self.rank + 1) * count // self.world_size)

    def leave(self) -> None:
        """Destroy the process groups. All ranks call it after their last collective."""
        if self._posted is not None:
            self.collect()
        dist.destroy_process_group()

    def break_connections(self) -> None:
        """Make the collective in flight fail on this rank, and on the ranks connected to it. Called from any thread."""
        if self.device.type == "cuda" and dist.is_initialized():
            _c10d.distributed_c10d._abort_process_group()  # aborts every NCCL communicator of this process
        others = self._others
        shut_down(self._connections if others is None else tcp_connections() - others)
        self.breakage.mark("they were shut down for the next generation")

    def notice_lost_connections(self) -> None:
        """End this rank's waits if a connection has been closed: its rank has ended, or its machine is cut off."""
        if self._others is None and not are_open(self._watched):
            self.breakage.mark("a rank has ended, or its machine does not answer")

    def limit_silence(self) -> None:
        """Let gloo's connections end if another machine does not respond. NCCL has connections of other kinds."""
        self._watched = self._host_connections if self.device.type == "cuda" else self._connections
        limit_silence(self._watched)

    def disband(self, *, is_held: bool, meeting: frozenset[Connection]) -> None:
        """Destroy the process groups, regardless of their state. The caller has dropped every reference to them.

        From now on until :meth:`assemble` has ended, :meth:`break_connections` shuts down every connection that this
        process has opened since, and those to the next store: the rank may be waiting at the store, or for another
        rank's connection.

        Args:
            is_held: True if unreachable objects may refer to the groups, to the model's wrapper or to broken work.
            meeting: connections to the next generation's store that are already open.
        """
        self.break_connections()
        groups = [each for each in (self._host_group, _c10d.group.WORLD) if each is not None]
        alive = [weakref.ref(each) for each in groups]
        self._posted, self._host_group, self.store = None, None, None
        if is_held:
            _collect()
        if dist.is_initialized():  # otherwise aborted above, or not formed
            dist.destroy_process_group()
        waiting = destroy(groups, DESTROY_LIMIT_SECONDS)
        if not waiting and any(each() is not None for each in alive):  # the garbage would keep threads and connections
            groups += [each() for each in alive]
            _collect()
            waiting = destroy(groups, DESTROY_LIMIT_SECONDS)
        if waiting:
            self.abandoned += waiting
            logger.warning("%d process groups of rank %d wait for a collective until its timeout", waiting, self.rank)
        self.breakage.clear()
        # A group that could not be formed has used a number. All ranks must give the next group the same name.
        _c10d.distributed_c10d._world.group_count = 0
        self._others = tcp_connections() - meeting

    def assemble(self, store: Any, rank: int, world_size: int, timeout: datetime.timedelta) -> None:
        """Form new process groups, with this process as a member, after :meth:`disband`.

        Args:
            store: a store that no other generation uses.
            rank: this process's new rank.
            world_size: number of processes.
            timeout: limit for each collective until :meth:`settle`. Connecting has half of it, because nothing
                interrupts a rank that waits for the connection of another that has just died.
        """
        before, hook = tcp_connections(), sys.excepthook
        _initialize(_c10d.PrefixStore("collectives", store), rank, world_size, self.device, timeout / 2)
        sys.excepthook = hook  # torch wraps it once more for every process group
        self.rank, self.world_size, self.store = rank, world_size, _c10d.PrefixStore("gang", store)
        self._form_host_group(timeout / 2)
        self._connections = tcp_connections() - before
        self.limit_silence()
        self._others = None
        self.settle(timeout)
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size))

    def settle(self, timeout: datetime.timedelta = COLLECTIVE_TIMEOUT) -> None:
        """Set the limit for collectives, by default the usual one."""
        for group in (None, self._host_group):
            _c10d.distributed_c10d._set_pg_timeout(timeout, group)


def _collect() -> None:
    """Collect all garbage. It takes 0.2 s of CPU time in a trainer's process (300,000 objects)."""
    gc.unfreeze()  # the model's wrapper may be among the objects that garbage collections skip
    gc.collect()


def join_gang(alone: bool = False) -> Gang:
    """Join the processes started by the launcher or torchrun; without their variables, form a gang with one process.

    Args:
        alone: True for a process that joins a running gang later.

    Raises:
        ConfigurationError: This node runs more processes than it has GPUs.
    """
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if alone:
        rank, world_size = 0, 1
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    device = _device(local_rank, local_world_size)
    master = os.environ.get("MASTER_ADDR", "127.0.0.1")
    if master == "localhost" or master.startswith("127."):
        # If the master uses the loopback interface, all processes are on this machine, so gloo does not need other
        # interfaces.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if "RANK" in os.environ and not alone:
        host_store()
        store, rank, world_size = next(_c10d.rendezvous("env://", timeout=RENDEZVOUS_TIMEOUT))
    else:
        store = _c10d.HashStore()
    before = tcp_connections()
    _initialize(_c10d.PrefixStore("collectives", store), rank, world_size, device, COLLECTIVE_TIMEOUT)
    logger.info("rank %d of %d on %s", rank, world_size, device)
    gang = Gang(rank, world_size, local_rank, local_world_size, device, _c10d.PrefixStore("gang", store))
    gang._connections = tcp_connections() - before
    return gang


def _initialize(store: Any, rank: int, world_size: int, device: torch.device, timeout: datetime.timedelta) -> None:
    dist.init_process_group(
        backend="gloo" if device.type == "cpu" else "nccl",
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=timeout,
        device_id=None if device.type == "cpu" else device,
    )


def adopt_gang(device: torch.device) -> Gang:
    """Return the gang for the default process group, which the caller has initialized."""
    local_rank, local_world_size = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    store = _c10d.PrefixStore("checkpoints", _c10d.distributed_c10d._get_default_store())
    return Gang(dist.get_rank(), dist.get_world_size(), local_rank, local_world_size, device, store)


def _checked_size(size: Tensor) -> int:
    if not 0 < int(size) <= MAX_MESSAGE_BYTES:
        raise PeerError(f"a rank announced a message of {int(size)} bytes; must be 1 to {MAX_MESSAGE_BYTES}")
    return int(size)


def _buffer(message: bytes, size: int) -> Tensor:
    """Return a host tensor with the message, padded with zeros. Shapes: [size] uint8."""
    buffer = torch.zeros(size, dtype=torch.uint8)
    if message:
        buffer[: len(message)] = torch.frombuffer(bytearray(message), dtype=torch.uint8)
    return buffer


def _device(local_rank: int, local_world_size: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    gpus = torch.cuda.device_count()
    if local_world_size > gpus:
        raise ConfigurationError(
            [f"processes per node: {local_world_size} exceeds this node's {gpus} GPUs; start one process per GPU"]
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device
