"""A GPU that is lost while the node trains: by the kernel's log, or by nvidia-smi alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from bootstrap.errors import BootstrapError, CommandError
from bootstrap.plan import Context
from bootstrap.supervise.gpu_faults import GpuFaultWatch
from bootstrap.supervise.monitors import Board

from .fake_system import FakeSystem

SOUND = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-370ec676-e407-3115-836a-8ebcb3c4f62a)\n"
XID = "[ 9912.1] NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
GONE = "Unable to determine the device handle for GPU 0000:1B:00.0: GPU is lost.  Reboot the system to recover this GPU"


def watch(dmesg: str | CommandError, smi: str | CommandError) -> tuple[GpuFaultWatch, Board, list[dict[str, Any]]]:
    system, board = FakeSystem(), Board()
    system.programs |= {"dmesg": dmesg, "nvidia-smi": smi}
    said: list[dict[str, Any]] = []
    events = SimpleNamespace(emit=lambda event, **fields: said.append({"event": event, **fields}))
    return GpuFaultWatch(cast(Context, SimpleNamespace(system=system, events=events)), board), board, said


def test_sound_gpus_say_nothing() -> None:
    look, board, said = watch("[ 1.0] Linux version 6.1\n" + XID.replace("79", "31"), SOUND)
    look.look()
    assert board.gpu_fault is None and said == [] and not board.wake.is_set()


@pytest.mark.parametrize(
    ("dmesg", "smi", "words"),
    [
        (XID, SOUND, "Xid 79 since the machine started: the GPU fell off the bus"),
        ("", GONE, "GPU is lost"),
        ("", CommandError(["nvidia-smi"], 15, GONE, "ended with code 15"), "GPU is lost"),
    ],
)
def test_a_lost_gpu_is_said_once_and_wakes_the_loop(dmesg: str, smi: str | CommandError, words: str) -> None:
    look, board, said = watch(dmesg, smi)
    look.look()
    look.look()
    (event,) = said
    assert event["event"] == "instance_fault" and event["action"] == "give_back" and words in event["message"]
    assert board.gpu_fault == event["message"] and board.wake.is_set()


def test_a_driver_that_hangs_is_no_lost_gpu() -> None:
    look, board, said = watch("", CommandError(["nvidia-smi"], None, "", "took longer than 30 seconds"))
    look.look()
    assert board.gpu_fault is None and said == []


def test_a_log_that_cannot_be_read_is_the_monitors_affair() -> None:
    look, board, _ = watch(CommandError(["dmesg"], 1, "Operation not permitted", "ended with code 1"), SOUND)
    with pytest.raises(BootstrapError):
        look.look()
    assert board.gpu_fault is None
