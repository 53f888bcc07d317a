"""The save methods that the checkpoint benchmark compares; all of them sync to disk."""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, async_save, save

from benchmarks.checkpoint.state import Workload
from training.checkpoint.log import LogWriter
from training.checkpoint.manifest import Manifest
from training.checkpoint.save.executors import choose_placement
from training.checkpoint.save.rank_save import SavePlan, SaveResult
from training.checkpoint.save.writer import CheckpointWriter
from training.checkpoint.storage.backend import Backend
from training.checkpoint.storage.urls import open_backend

Durable = Callable[[], bool]
"""Function that returns True when the last save is durable, and raises its error if it failed."""


class Method(Protocol):
    """A save method."""

    def begin(self) -> Durable:
        """Start a save; return when training could continue."""

    def close(self) -> None:
        """Release the resources kept between saves."""


class OwnWriter:
    """This project's writer.

    Args:
        workload: the state to save.
        url: URL of the store.
        training_threads: number of cores that the writer process leaves for training.
        compress: whether to compress chunks where it saves space.
    """

    def __init__(self, workload: Workload, url: str, training_threads: int, compress: bool = True) -> None:
        self._workload = workload
        self.backend: Backend = open_backend(url)
        log = LogWriter(self.backend, 0)
        placement = choose_placement(0, 1, training_threads, on_gpu=False)
        plan = SavePlan(0, 1, log.fence, threads=placement.threads, compress=compress, yields=placement.shares_cores)
        self.writer = CheckpointWriter(self.backend, plan, log, placement)
        self._step = 0

    def begin(self) -> Durable:
        """Copy the state into the host buffer."""
        self._step += 1
        self.writer.begin(self._workload.tensors(), {}, _manifest(self._step), "interval")
        return self._is_durable

    def _is_durable(self) -> bool:
        if self.writer.is_busy:
            return False
        if self.writer.error is not None:
            raise self.writer.error
        return True

    def save(self) -> SaveResult:
        """Save, and wait for the commit."""
        self.begin()
        self.writer.wait()
        if self.writer.error is not None:
            raise self.writer.error
        return self.writer.take_results()[-1]

    def close(self) -> None:
        """End the writer process."""
        self.writer.close()


class TorchSave:
    """``torch.save`` to a file, synced: training is blocked for the entire save."""

    def __init__(self, workload: Workload, folder: Path) -> None:
        self._workload, self._folder = workload, folder

    def begin(self) -> Durable:
        """Save synchronously."""
        path = self._folder / "state.pt"
        with path.open("wb") as file:
            torch.save(self._workload.tensors(), file)
            file.flush()
            os.fsync(file.fileno())
        return lambda: True

    def close(self) -> None:
        """Do nothing."""


class Dcp:
    """``torch.distributed.checkpoint``: ``save``, or ``async_save`` in a thread or a process, or with a kept stager."""

    def __init__(self, workload: Workload, folder: Path, kind: str) -> None:
        self._workload, self._folder, self._kind = workload, folder, kind
        self._stager: Any = None
        if kind == "async kept stager":
            # The stager's other options require a GPU; this option reuses its buffers.
            self._stager = DefaultStager(StagingOptions(False, False, False, False))
        elif kind == "async process" and not dist.is_initialized():
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            dist.init_process_group(
                "cpu:gloo", init_method=f"file://{folder}/rendezvous-{uuid.uuid4().hex}", rank=0, world_size=1
            )

    def begin(self) -> Durable:
        """Save, or start an asynchronous save."""
        target = self._folder / "dcp"
        writer = FileSystemWriter(target, sync_files=True, overwrite=True)
        state: dict[str, Any] = dict(self._workload.tensors())
        if self._kind == "save":
            save(state, storage_writer=writer)
            return lambda: True
        kind = AsyncCheckpointerType.PROCESS if self._kind == "async process" else AsyncCheckpointerType.THREAD
        future: Any = async_save(state, storage_writer=writer, async_checkpointer_type=kind, async_stager=self._stager)

        def is_durable() -> bool:
            if not future.done():
                return False
            future.result()
            return True

        return is_durable

    def close(self) -> None:
        """Free the stager's buffers."""
        if self._stager is not None:
            self._stager.close()
        shutil.rmtree(self._folder / "dcp", ignore_errors=True)


def _manifest(step: int) -> Manifest:
    return Manifest(
        step=step,
        position=0,
        generation=0,
        world_size=1,
        config={},
        config_digest="",
        scaler={},
        precision="fp32",
        device_type="cpu",
        torch_version=str(torch.__version__),
        parts=[],
    )


def wait_until(is_durable: Durable) -> None:
    """Wait for the save in flight."""
    while not is_durable():
        time.sleep(0.005)
