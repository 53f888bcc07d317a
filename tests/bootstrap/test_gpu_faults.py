"""A GPU that fails during training, detected from the kernel log, or only from nvidia-smi."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bootstrap.context import Context, PodSettings
from bootstrap.errors import BootstrapError, CommandError
from bootstrap.supervise.gpu_watches import GpuFaultWatch
from bootstrap.supervise.monitors import Board

from .fake_system import FakeSystem
from .recorded_events import RecordedEvents

HEALTHY = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-370ec676-e407-3115-836a-8ebcb3c4f62a)\n"
XID = "[ 9912.1] NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
LOST = "Unable to determine the device handle for GPU 0000:1B:00.0: GPU is lost.  Reboot the system to recover this GPU"


def make_watch(
    dmesg: str | CommandError, smi: str | CommandError, pod: PodSettings | None = None
) -> tuple[GpuFaultWatch, Board, list[dict[str, Any]]]:
    system, board = FakeSystem(), Board()
    system.programs |= {"dmesg": dmesg, "nvidia-smi": smi}
    events = RecordedEvents()
    context = cast(Context, SimpleNamespace(system=system, events=events, pod=pod))
    return GpuFaultWatch(context, board), board, events.events


def test_healthy_gpus_emit_nothing() -> None:
    watch, board, emitted = make_watch("[ 1.0] Linux version 6.1\n" + XID.replace("79", "31"), HEALTHY)
    watch.check()
    assert board.gpu_fault is None and emitted == [] and not board.wake.is_set()


@pytest.mark.parametrize(
    ("dmesg", "smi", "expected"),
    [
        (XID, HEALTHY, "Xid 79 since boot: the GPU fell off the bus"),
        ("", LOST, "GPU is lost"),
        ("", CommandError(["nvidia-smi"], 15, LOST, "exited with code 15"), "GPU is lost"),
    ],
)
def test_a_lost_gpu_is_emitted_once_and_wakes_the_main_loop(dmesg: str, smi: str | CommandError, expected: str) -> None:
    watch, board, emitted = make_watch(dmesg, smi)
    watch.check()
    watch.check()
    (event,) = emitted
    assert event["event"] == "instance_fault" and event["action"] == "terminate" and expected in event["message"]
    assert board.gpu_fault == event["message"] and board.wake.is_set()


def test_a_hanging_driver_is_not_a_lost_gpu() -> None:
    watch, board, emitted = make_watch("", CommandError(["nvidia-smi"], None, "", "took longer than 30 seconds"))
    watch.check()
    assert board.gpu_fault is None and emitted == []


def test_an_unreadable_kernel_log_raises() -> None:
    watch, board, _ = make_watch(CommandError(["dmesg"], 1, "Operation not permitted", "exited with code 1"), HEALTHY)
    with pytest.raises(BootstrapError):
        watch.check()
    assert board.gpu_fault is None


def test_a_pod_cannot_read_the_kernel_log_and_asks_the_driver() -> None:
    refused = CommandError(["dmesg"], 1, "Operation not permitted", "exited with code 1")
    watch, board, _ = make_watch(refused, LOST, PodSettings(Path("/etc/trainstack/run.json"), 100.0))
    watch.check()
    assert board.gpu_fault is not None and "GPU is lost" in board.gpu_fault
