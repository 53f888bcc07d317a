"""The gang of processes that trains: joining it, and agreeing on things without making a GPU wait.

Agreement runs on gloo over the hosts' memory, beside the collectives of the gradients. A vote is posted after one step
and collected after the next, so that its latency hides behind a step's work.
"""

from __future__ import annotations

import datetime
import logging
import os
from collections.abc import Callable
from dataclasses import astuple, dataclass, fields
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from training.errors import ConfigurationError

logger = logging.getLogger(__name__)

RENDEZVOUS_TIMEOUT = datetime.timedelta(seconds=180)
"""How long a process waits for the others to arrive: their boot, imports and dataset checks differ by less."""
COLLECTIVE_TIMEOUT = datetime.timedelta(minutes=15)
"""How long a collective waits for the slowest rank; `torch.compile` on one rank is the longest honest delay."""

Answer = TypeVar("Answer")
_c10d: Any = dist  # torch exports its stores and rendezvous, but its annotations do not say so


@dataclass(frozen=True)
class Votes:
    """What a rank has to say after a step; summed over all ranks when collected.

    Attributes:
        loss: this rank's share of a loss, such that the sum over all ranks is the mean over all tokens.
        non_finite: 1 if a step's loss or gradient was NaN or infinite here.
        stop: 1 if this rank was asked to save and stop.
        save: 1 if this rank was asked for an extra checkpoint.
        due: 1 if rank 0 says that the next checkpoint is due.
        busy: 1 while a save is in flight here.
        failed: 1 if a save failed here.
        leaving: 1 if this rank will soon want to stop: a save that begins now would be in the way of the last one.
    """

    loss: float = 0.0
    non_finite: float = 0.0
    stop: float = 0.0
    save: float = 0.0
    due: float = 0.0
    busy: float = 0.0
    failed: float = 0.0
    leaving: float = 0.0


class Gang:
    """This process's place among all that train together.

    Attributes:
        rank: 0 to world_size - 1 over all nodes.
        world_size: number of processes.
        local_rank: place on this node.
        local_world_size: processes on this node.
        device: where this process computes.
        store: the rendezvous key-value store, for threads that may not use collectives.
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
        self._host_group = dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT)
        self._posted: tuple[Tensor, dist.Work | None] | None = None

    def post(self, votes: Votes) -> None:
        """Start adding up this step's votes; every rank must post as often as the others."""
        assert self._posted is None, "votes are collected before the next ones are posted"
        tally = torch.tensor(astuple(votes), dtype=torch.float64)
        # A gang of one agrees with itself: the collective would cost more than all else that surrounds a step.
        alone = self.world_size == 1
        self._posted = (tally, None if alone else dist.all_reduce(tally, group=self._host_group, async_op=True))

    def collect(self) -> Votes | None:
        """Wait for the votes posted last and return their sums, the same on all ranks; None if none are out."""
        if self._posted is None:
            return None
        tally, work = self._posted
        if work is not None:
            work.wait()
        self._posted = None
        return Votes(**dict(zip((field.name for field in fields(Votes)), tally.tolist(), strict=True)))

    def agree(self, votes: Votes) -> Votes:
        """Post and collect at once: all ranks wait for each other."""
        self.post(votes)
        agreed = self.collect()
        assert agreed is not None, "just posted"
        return agreed

    def ask_rank_zero(self, question: Callable[[], Answer]) -> Answer:
        """Run ``question`` on rank 0 and return its answer on every rank; what it raises is raised on every rank."""
        box: list[Any] = [None]
        if self.rank == 0:
            try:
                box = [(True, question())]
            # Not a rescue: the same exception is raised below, on all ranks rather than on one while the others wait.
            except Exception as error:  # noqa: BLE001
                box = [(False, error)]
        dist.broadcast_object_list(box, src=0, group=self._host_group)
        succeeded, answer = box[0]
        if not succeeded:
            raise answer
        return answer  # type: ignore[no-any-return]

    def raise_together(self, error: Exception | None) -> None:
        """Raise the same exception on every rank if any rank has one: that of the lowest such rank."""
        for candidate in self.gather(error):
            if candidate is not None:
                raise candidate

    def gather(self, value: Answer) -> list[Answer]:
        """Every rank's value, in rank order, on every rank."""
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self._host_group)
        return values

    def broadcast_(self, tensor: Tensor, source: int) -> None:
        """Overwrite ``tensor`` everywhere with rank ``source``'s; works for tensors of the host and of the device."""
        group = self._host_group if tensor.device.type == "cpu" else None
        dist.broadcast(tensor, src=source, group=group)

    def share_of(self, count: int) -> range:
        """The contiguous part of ``range(count)`` that is this rank's; parts differ by at most one."""
        return range(self.rank * count // self.world_size, (self.rank + 1) * count // self.world_size)

    def leave(self) -> None:
        """Tear the process groups down; all ranks do so, after their last collective."""
        if self._posted is not None:
            self.collect()
        dist.destroy_process_group()


def join_gang() -> Gang:
    """Meet the other processes that torchrun started, or be a gang of one without torchrun's variables.

    Raises:
        ConfigurationError: more processes on this node than it has GPUs.
    """
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    device = _device(local_rank, local_world_size)
    master = os.environ.get("MASTER_ADDR", "127.0.0.1")
    if master == "localhost" or master.startswith("127."):
        # A gang whose first node is on the loopback network is on this machine whole: gloo need not listen outside.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if "RANK" in os.environ:
        store, rank, world_size = next(_c10d.rendezvous("env://", timeout=RENDEZVOUS_TIMEOUT))
    else:
        store = _c10d.HashStore()
    dist.init_process_group(
        backend="gloo" if device.type == "cpu" else "nccl",
        store=_c10d.PrefixStore("collectives", store),
        rank=rank,
        world_size=world_size,
        timeout=COLLECTIVE_TIMEOUT,
        device_id=None if device.type == "cpu" else device,
    )
    logger.info("rank %d of %d computes on %s", rank, world_size, device)
    return Gang(rank, world_size, local_rank, local_world_size, device, _c10d.PrefixStore("gang", store))


def adopt_gang(device: torch.device) -> Gang:
    """The gang of the default process group that the caller has made."""
    local_rank, local_world_size = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    store = _c10d.PrefixStore("checkpoints", _c10d.distributed_c10d._get_default_store())
    return Gang(dist.get_rank(), dist.get_world_size(), local_rank, local_world_size, device, store)


def _device(local_rank: int, local_world_size: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    gpus = torch.cuda.device_count()
    if local_world_size > gpus:
        raise ConfigurationError(
            [f"processes per node: {local_world_size} is more than the {gpus} GPUs of this node; start one per GPU"]
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device
