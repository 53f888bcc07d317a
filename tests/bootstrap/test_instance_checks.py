"""Faults of an instance and their actions, from recorded outputs of the driver, the kernel and chrony."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bootstrap.boot_steps.instance_checks import InstanceChecks
from bootstrap.boot_steps.machine_settings import MachineSettings
from bootstrap.context import Context
from bootstrap.errors import CommandError, StepError
from bootstrap.gpus.health import gpu_faults, xid_faults
from bootstrap.imds import InstanceMetadata
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
    """Run the step; return the message and action of each fault, and an entry `terminates` if the step fails."""
    try:
        InstanceChecks().act(context)
        InstanceChecks().verify(context)
        end = []
    except StepError as error:
        assert error.remedy
        end = [("terminates", error.message)]
    lines = context.layout.events.read_text().splitlines() if context.layout.events.exists() else []
    faults = [event for event in map(json.loads, lines) if event["event"] == "instance_fault"]
    assert all(fault["remedy"] for fault in faults)
    return [(fault["message"], fault["action"]) for fault in faults] + end


def test_a_healthy_machine_emits_nothing(tmp_path: Path) -> None:
    system, context = scene(tmp_path)
    system.programs |= {"chronyc": "System time     : 0.000006523 seconds slow of NTP\n"}
    assert check(context) == []
    assert ["nvidia-smi", "--gpu-reset"] not in system.commands


def test_a_cpu_node_needs_no_driver(tmp_path: Path) -> None:
    system, context = scene(tmp_path, gpus=0)
    assert check(context) == [] and system.commands == []


@pytest.mark.parametrize(
    ("changes", "expected", "action"),
    [
        ({"<remapped_row_failure>No": "<remapped_row_failure>Yes"}, "could not be remapped", "terminate"),
        ({"<remapped_row_pending>No": "<remapped_row_pending>Yes"}, "remapping of a memory row is pending", "reset"),
        ({"<pending_retirement>N/A": "<pending_retirement>Yes"}, "retirement of a memory page is pending", "reset"),
        ({"<sram_threshold_exceeded>No": "<sram_threshold_exceeded>Yes"}, "number of SRAM errors", "terminate"),
        ({"<sram_uncorrectable_secded>0": "<sram_uncorrectable_secded>4"}, "4 uncorrected memory errors", "reset"),
        ({"action>None": "action>Reset"}, "the driver's recovery action: reset", "reset"),
        ({"action>None": "action>Reboot"}, "the driver's recovery action: reboot", "terminate"),
        ({"<current_ecc>Enabled": "<current_ecc>Disabled"}, "ECC is off", "continue"),
        ({"hw_thermal_slowdown>Not Active": "hw_thermal_slowdown>Active"}, "(hw_thermal_slowdown)", "continue"),
        (
            {"clocks_event_reason": "clocks_throttle_reason", "brake_slowdown>Not Active": "brake_slowdown>Active"},
            "(hw_power_brake_slowdown)",
            "continue",
        ),
        ({"81559 MiB": "40960 MiB"}, "the GPUs are not identical", "terminate"),
    ],
)
def test_each_fault_has_its_action(changes: dict[str, str], expected: str, action: str) -> None:
    (fault,) = gpu_faults(report(2, [changes]), 2)
    assert expected in fault.message and fault.action == action and fault.remedy


def test_a_wrong_number_of_gpus_and_a_missing_report(tmp_path: Path) -> None:
    system, context = scene(tmp_path, gpus=8)
    system.programs["nvidia-smi"] = report(7)
    assert ("found 7 GPUs, expected 8", "terminate") in check(context)
    system.programs["nvidia-smi"] = "No devices were found\n"
    assert "not XML" in check(context)[-1][1]
    del system.programs["nvidia-smi"]
    assert "found no GPU, expected 8" in check(context)[-1][1]


def test_fatal_xids_are_distinguished_from_application_errors() -> None:
    log = XID.format(bus="1a", number=13) + XID.format(bus="1b", number=79) * 3 + XID.format(bus="1a", number=63)
    assert [fault.message for fault in xid_faults(log)] == [
        "gpu 0000:1b:00: Xid 79 since boot: the GPU fell off the bus"
    ]


def test_a_successful_reset_passes_the_checks(tmp_path: Path) -> None:
    system, context = scene(tmp_path)
    faulty = report(2, [{"<remapped_row_pending>No": "<remapped_row_pending>Yes"}])

    def driver(command: Sequence[str]) -> str:
        return report(2) if ["nvidia-smi", "--gpu-reset"] in system.commands else faulty

    system.programs["nvidia-smi"] = driver
    assert check(context) == []
    assert '"gpus_reset"' in context.layout.events.read_text()


def test_a_failed_reset_terminates_the_instance(tmp_path: Path) -> None:
    system, context = scene(tmp_path)
    faulty = report(2, [{"<remapped_row_pending>No": "<remapped_row_pending>Yes"}])

    def driver(command: Sequence[str]) -> str:
        if "--gpu-reset" in command:
            raise CommandError(command, 3, "in use by another client", "exited with code 3")
        return faulty

    system.programs["nvidia-smi"] = driver
    (fault, action), (end, _) = check(context)
    assert "remapping of a memory row is pending" in fault and (action, end) == ("terminate", "terminates")


def test_an_unreadable_kernel_log_is_reported(tmp_path: Path) -> None:
    system, context = scene(tmp_path)
    del system.programs["dmesg"]
    ((message, action),) = check(context)
    assert "cannot read GPU errors" in message and action == "continue"


@pytest.mark.parametrize(("offset", "action"), [("0.9", None), ("12.5", "continue"), ("400.0", "terminate")])
def test_a_wrong_clock(tmp_path: Path, offset: str, action: str | None) -> None:
    system, context = scene(tmp_path, gpus=0)
    system.programs["chronyc"] = f"Stratum         : 4\nSystem time     : {offset} seconds fast of NTP time\n"
    actions = [found for _, found in check(context)][:1]
    assert actions == ([action] if action else [])


def test_all_faults_are_reported_at_once(tmp_path: Path) -> None:
    system, context = scene(tmp_path, gpus=8)
    system.programs["nvidia-smi"] = report(1)
    system.files["/proc/meminfo"] = "MemTotal: 9 kB\nMemAvailable:     1024 kB\n"
    system.free = 1
    _, message = check(context)[-1]
    for expected in ("found 1 GPUs, expected 8", "the disk is full", "memory: 1048576 bytes available", "/dev/shm"):
        assert expected in message


def test_clocks_are_set_to_the_maximum_that_the_driver_reports(tmp_path: Path) -> None:
    system, context = scene(tmp_path, fabric="efa")
    system.files["/proc/sys/kernel/yama/ptrace_scope"] = "1\n"
    system.programs["sysctl"] = ""
    wanted = ["nvidia-smi --persistence-mode=1", "nvidia-smi --applications-clocks=2619,1980"]
    wanted.append("sysctl --write kernel.yama.ptrace_scope=0")
    assert MachineSettings().intent(context) == wanted
    MachineSettings().act(context)
    assert [" ".join(command) for command in system.commands if command[1] != "-q"] == wanted
    assert not context.layout.events.exists()
    system.programs["nvidia-smi"] = CommandError(["nvidia-smi"], 3, "not supported", "exited with code 3")
    MachineSettings().act(context)
    assert "cannot apply a setting" in context.layout.events.read_text()


def test_an_emulated_node_changes_no_settings(tmp_path: Path) -> None:
    system, context = scene(tmp_path, fabric="efa")
    system.variables["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = "http://127.0.0.1:1338"
    context.metadata = InstanceMetadata(system)
    MachineSettings().act(context)
    assert system.commands == []
