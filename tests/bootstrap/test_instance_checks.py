"""What is wrong with a machine, and what is done about it: recorded outputs of the driver, the kernel and others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bootstrap.errors import CommandError, StepError
from bootstrap.imds import InstanceMetadata
from bootstrap.plan import Context
from bootstrap.steps.gpu_health import gpu_faults, xid_faults
from bootstrap.steps.instance_checks import InstanceChecks
from bootstrap.steps.machine_settings import MachineSettings
from tests.bootstrap.fake_system import FakeSystem
from tests.bootstrap.nvidia_smi import report
from tests.bootstrap.test_steps import machine

XID = "[  12.5] NVRM: Xid (PCI:0000:{bus}:00): {number}, pid='<unknown>', name=<unknown>, and words\n"


def scene(root: Path, gpus: int = 2, **changes: Any) -> tuple[FakeSystem, Context]:
    system, context = machine(root, **{"gpus": gpus, "fabric": "tcp", **changes})
    system.files["/proc/meminfo"] = "MemAvailable: 99999999 kB\n"
    system.programs |= {"nvidia-smi": report(gpus), "dmesg": ""}
    return system, context


def check(context: Context) -> list[tuple[str, str]]:
    """Run the step; return the message and the action of each fault that it said, and `given back` at the end."""
    try:
        InstanceChecks().act(context)
        InstanceChecks().verify(context)
        end = []
    except StepError as error:
        assert error.remedy
        end = [("given back", error.message)]
    lines = context.layout.events.read_text().splitlines() if context.layout.events.exists() else []
    faults = [event for event in map(json.loads, lines) if event["event"] == "instance_fault"]
    assert all(fault["remedy"] for fault in faults)
    return [(fault["message"], fault["action"]) for fault in faults] + end


def test_a_sound_machine_says_nothing(tmp_path: Path) -> None:
    system, context = scene(tmp_path)
    system.programs |= {"chronyc": "System time     : 0.000006523 seconds slow of NTP\n"}
    assert check(context) == []
    assert ["nvidia-smi", "--gpu-reset"] not in system.commands


def test_a_cpu_node_asks_for_no_driver(tmp_path: Path) -> None:
    system, context = scene(tmp_path, gpus=0)
    assert check(context) == [] and system.commands == []


@pytest.mark.parametrize(
    ("changes", "words", "action"),
    [
        ({"<remapped_row_failure>No": "<remapped_row_failure>Yes"}, "could not be remapped", "give_back"),
        ({"<remapped_row_pending>No": "<remapped_row_pending>Yes"}, "remapped at the next reset", "reset"),
        ({"<pending_retirement>N/A": "<pending_retirement>Yes"}, "retired at the next reset", "reset"),
        ({"<sram_threshold_exceeded>No": "<sram_threshold_exceeded>Yes"}, "more SRAM errors", "give_back"),
        ({"<sram_uncorrectable_secded>0": "<sram_uncorrectable_secded>4"}, "4 uncorrected memory errors", "reset"),
        ({"action>None": "action>Reset"}, "its driver asks for: reset", "reset"),
        ({"action>None": "action>Reboot"}, "its driver asks for: reboot", "give_back"),
        ({"<current_ecc>Enabled": "<current_ecc>Disabled"}, "ECC is off", "continue"),
        ({"hw_thermal_slowdown>Not Active": "hw_thermal_slowdown>Active"}, "(hw_thermal_slowdown)", "continue"),
        (
            {"clocks_event_reason": "clocks_throttle_reason", "brake_slowdown>Not Active": "brake_slowdown>Active"},
            "(hw_power_brake_slowdown)",
            "continue",
        ),
        ({"81559 MiB": "40960 MiB"}, "they are not alike", "give_back"),
    ],
)
def test_each_fault_has_its_action(changes: dict[str, str], words: str, action: str) -> None:
    (fault,) = gpu_faults(report(2, [changes]), 2)
    assert words in fault.message and fault.action == action and fault.remedy


def test_another_number_of_gpus_and_no_report_at_all(tmp_path: Path) -> None:
    system, context = scene(tmp_path, gpus=8)
    system.programs["nvidia-smi"] = report(7)
    assert ("gpus: 7 answer, the node document says 8", "give_back") in check(context)
    system.programs["nvidia-smi"] = "No devices were found\n"
    assert "no XML" in check(context)[-1][1]
    del system.programs["nvidia-smi"]
    assert "the driver answers for no GPU" in check(context)[-1][1]


def test_fatal_xids_are_told_from_those_of_programs() -> None:
    log = XID.format(bus="1a", number=13) + XID.format(bus="1b", number=79) * 3 + XID.format(bus="1a", number=63)
    assert [fault.message for fault in xid_faults(log)] == [
        "gpu 0000:1b:00: Xid 79 since the machine started: the GPU fell off the bus"
    ]


def test_a_reset_that_helps_lets_the_machine_train(tmp_path: Path) -> None:
    system, context = scene(tmp_path)
    sick = report(2, [{"<remapped_row_pending>No": "<remapped_row_pending>Yes"}])

    def driver(command: Sequence[str]) -> str:
        return report(2) if ["nvidia-smi", "--gpu-reset"] in system.commands else sick

    system.programs["nvidia-smi"] = driver
    assert check(context) == []
    assert '"gpus_reset"' in context.layout.events.read_text()


def test_a_reset_that_does_not_help_gives_the_machine_back(tmp_path: Path) -> None:
    system, context = scene(tmp_path)
    sick = report(2, [{"<remapped_row_pending>No": "<remapped_row_pending>Yes"}])

    def driver(command: Sequence[str]) -> str:
        if "--gpu-reset" in command:
            raise CommandError(command, 3, "in use by another client", "ended with code 3")
        return sick

    system.programs["nvidia-smi"] = driver
    (fault, action), (end, _) = check(context)
    assert "remapped at the next reset" in fault and (action, end) == ("give_back", "given back")


def test_a_log_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    system, context = scene(tmp_path)
    del system.programs["dmesg"]
    ((message, action),) = check(context)
    assert "not known" in message and action == "continue"


@pytest.mark.parametrize(("offset", "action"), [("0.9", None), ("12.5", "continue"), ("400.0", "give_back")])
def test_a_wrong_clock(tmp_path: Path, offset: str, action: str | None) -> None:
    system, context = scene(tmp_path, gpus=0)
    system.programs["chronyc"] = f"Stratum         : 4\nSystem time     : {offset} seconds fast of NTP time\n"
    actions = [found for _, found in check(context)][:1]
    assert actions == ([action] if action else [])


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    system, context = scene(tmp_path, gpus=8)
    system.programs["nvidia-smi"] = report(1)
    system.files["/proc/meminfo"] = "MemTotal: 9 kB\nMemAvailable:     1024 kB\n"
    system.free = 1
    _, message = check(context)[-1]
    for words in ("gpus: 1 answer", "the disk is full", "memory: 1048576 bytes are available", "/dev/shm"):
        assert words in message


def test_settings_are_the_highest_that_the_driver_names(tmp_path: Path) -> None:
    system, context = scene(tmp_path, fabric="efa")
    system.files["/proc/sys/kernel/yama/ptrace_scope"] = "1\n"
    system.programs["sysctl"] = ""
    wanted = ["nvidia-smi --persistence-mode=1", "nvidia-smi --applications-clocks=2619,1980"]
    wanted.append("sysctl --write kernel.yama.ptrace_scope=0")
    assert MachineSettings().intent(context) == wanted
    MachineSettings().act(context)
    assert [" ".join(command) for command in system.commands if command[1] != "-q"] == wanted
    assert not context.layout.events.exists()
    system.programs["nvidia-smi"] = CommandError(["nvidia-smi"], 3, "not supported", "ended with code 3")
    MachineSettings().act(context)
    assert "a setting cannot be made" in context.layout.events.read_text()


def test_an_emulated_node_changes_no_setting_of_the_computer(tmp_path: Path) -> None:
    system, context = scene(tmp_path, fabric="efa")
    system.variables["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = "http://127.0.0.1:1338"
    context.metadata = InstanceMetadata(system)
    MachineSettings().act(context)
    assert system.commands == []
