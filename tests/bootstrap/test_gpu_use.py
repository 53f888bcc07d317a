"""The GPUs' use, as nvidia-smi says it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from bootstrap.errors import BootstrapError, CommandError
from bootstrap.plan import Context
from bootstrap.supervise.gpu_use import GpuUseWatch

from .fake_system import FakeSystem


def watch(answer: str | CommandError) -> tuple[GpuUseWatch, list[dict[str, Any]]]:
    system = FakeSystem()
    system.programs["nvidia-smi"] = answer
    said: list[dict[str, Any]] = []
    events = SimpleNamespace(emit=lambda event, **fields: said.append({"event": event, **fields}))
    return GpuUseWatch(cast(Context, SimpleNamespace(system=system, events=events))), said


def test_the_mean_and_the_idlest_are_said() -> None:
    look, said = watch("97, 70123, 81559\n0, 412, 81559\n")
    look.look()
    assert said == [
        {
            "event": "gpu_use",
            "gpus": 2,
            "gpu_utilization_percent": 48.5,
            "idlest_gpu_utilization_percent": 0.0,
            "gpu_memory_used_mib": 70535.0,
            "gpu_memory_total_mib": 163118.0,
        }
    ]


@pytest.mark.parametrize("answer", ["[N/A], [N/A], 81559\n", "", "No devices were found\n"])
def test_an_answer_without_numbers_is_trouble_and_no_event(answer: str) -> None:
    look, said = watch(answer)
    with pytest.raises(BootstrapError, match="nvidia-smi"):
        look.look()
    assert said == []


def test_a_driver_that_hangs_is_trouble_and_no_event() -> None:
    look, said = watch(CommandError(["nvidia-smi"], None, "", "took longer than 20 seconds"))
    with pytest.raises(BootstrapError, match="took longer"):
        look.look()
    assert said == []
