"""GPU utilization from nvidia-smi."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from bootstrap.context import Context
from bootstrap.errors import BootstrapError, CommandError
from bootstrap.supervise.gpu_watches import GpuUseWatch

from .fake_system import FakeSystem
from .recorded_events import RecordedEvents


def make_watch(output: str | CommandError) -> tuple[GpuUseWatch, list[dict[str, Any]]]:
    system = FakeSystem()
    system.programs["nvidia-smi"] = output
    events = RecordedEvents()
    return GpuUseWatch(cast(Context, SimpleNamespace(system=system, events=events))), events.events


def test_mean_and_lowest_utilization_are_emitted() -> None:
    watch, emitted = make_watch("97, 70123, 81559\n0, 412, 81559\n")
    watch.check()
    assert emitted == [
        {
            "event": "gpu_use",
            "gpus": 2,
            "gpu_utilization_percent": 48.5,
            "idlest_gpu_utilization_percent": 0.0,
            "gpu_memory_used_mib": 70535.0,
            "gpu_memory_total_mib": 163118.0,
        }
    ]


@pytest.mark.parametrize("output", ["[N/A], [N/A], 81559\n", "", "No devices were found\n"])
def test_output_without_numbers_raises_and_emits_nothing(output: str) -> None:
    watch, emitted = make_watch(output)
    with pytest.raises(BootstrapError, match="nvidia-smi"):
        watch.check()
    assert emitted == []


def test_a_hanging_driver_raises_and_emits_nothing() -> None:
    watch, emitted = make_watch(CommandError(["nvidia-smi"], None, "", "took longer than 20 seconds"))
    with pytest.raises(BootstrapError, match="took longer"):
        watch.check()
    assert emitted == []
