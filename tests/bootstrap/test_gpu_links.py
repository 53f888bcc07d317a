"""Links between GPUs. The outputs of nvidia-smi follow its documentation and reports by p4d and p5 users."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from bootstrap.boot_steps.python_env import PythonEnv
from bootstrap.context import Context
from bootstrap.errors import CommandError, StepError
from bootstrap.gpus.health import driver_fault
from bootstrap.gpus.links import inactive_links, unreachable_peers
from bootstrap.imds import InstanceIdentity
from tests.bootstrap.fake_system import FakeSystem
from tests.bootstrap.nvidia_smi import report
from tests.bootstrap.test_instance_checks import check, scene
from tests.bootstrap.test_steps import machine

FABRIC = "<fabric><state>{state}</state><status>{status}</status></fabric><ecc_mode>"


def nvlinks(gpus: int, links: int = 18, inactive: Sequence[tuple[int, int]] = ()) -> str:
    lines = []
    for gpu in range(gpus):
        lines.append(f"GPU {gpu}: NVIDIA H100 80GB HBM3 (UUID: GPU-370ec676-e407-3115-836a-8ebcb3c4f62{gpu})")
        lines += [f"\t Link {n}: {'<inactive>' if (gpu, n) in inactive else '26.562 GB/s'}" for n in range(links)]
    return "\n".join(lines) + "\n"


def peers(gpus: int, broken: Sequence[tuple[int, int]] = ()) -> str:
    heading = " \t" + "\t".join(f"GPU{n}" for n in range(gpus)) + "\t\n"
    rows = ""
    for gpu in range(gpus):
        states = ["X" if gpu == n else "CNS" if (gpu, n) in broken or (n, gpu) in broken else "OK" for n in range(gpus)]
        rows += f" GPU{gpu}\t" + "\t".join(states) + "\t\n"
    return heading + rows + "\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n  CNS  = Chipset not supported\n"


class Driver:
    """Simulates nvidia-smi and systemctl; the registration takes `registering` calls."""

    def __init__(self, gpus: int = 8) -> None:
        self.status, self.peers = nvlinks(gpus), peers(gpus)
        self.runs, self.can_start, self.registering = True, True, 0
        self.state = "Completed", "Success"
        self.gpus = gpus

    def nvidia_smi(self, command: Sequence[str]) -> str:
        if command[1] == "nvlink":
            return self.status
        if command[1] == "topo":
            return self.peers
        state, status = self.state
        if self.registering > 0:
            self.registering -= 1
            state, status = "In Progress", "N/A"
        return report(self.gpus, [{"<ecc_mode>": FABRIC.format(state=state, status=status)}] * self.gpus)

    def systemctl(self, command: Sequence[str]) -> str:
        if command[1] == "start" and self.can_start:
            self.runs = True
        if not self.runs:
            raise CommandError(command, 3, "", "exited with code 3")
        return ""


def switched(root: Path, instance_type: str = "p5.48xlarge") -> tuple[FakeSystem, Context, Driver]:
    system, context = scene(root, gpus=8)
    context.identity = InstanceIdentity("i-1", instance_type, "us-east-1a", "10.0.0.9", "spot", None)
    driver = Driver()
    system.programs |= {"nvidia-smi": driver.nvidia_smi, "systemctl": driver.systemctl}
    return system, context, driver


def test_all_links_active_and_all_peers_reachable(tmp_path: Path) -> None:
    _, context, _ = switched(tmp_path)
    assert check(context) == []


def test_a_type_without_nvlink_switches_is_not_checked(tmp_path: Path) -> None:
    system, context, driver = switched(tmp_path, "g5.48xlarge")
    driver.runs, driver.status, driver.peers = False, "", peers(8, [(0, 1)])
    assert check(context) == []
    assert not any(command[0] == "systemctl" for command in system.commands)


def test_an_inactive_link_is_reported_after_a_reset(tmp_path: Path) -> None:
    system, context, driver = switched(tmp_path)
    driver.status = nvlinks(8, inactive=[(3, 5), (3, 6)])
    assert check(context)[0] == ("gpu 3: 2 of 18 NVLinks are inactive", "terminate")
    assert ["nvidia-smi", "--gpu-reset"] in system.commands


def test_the_fabric_manager_is_started_and_waited_for(tmp_path: Path) -> None:
    system, context, driver = switched(tmp_path)
    driver.runs, driver.registering = False, 4
    assert check(context) == []
    assert '"fabric_manager_started"' in context.layout.events.read_text()
    assert system.slept > 0


def test_a_fabric_manager_that_does_not_start_is_reported(tmp_path: Path) -> None:
    _, context, driver = switched(tmp_path)
    driver.runs = driver.can_start = False
    assert "nvidia-fabricmanager is not running" in check(context)[0][0]


def test_an_unregistered_gpu_is_reported(tmp_path: Path) -> None:
    _, context, driver = switched(tmp_path)
    driver.state = "Completed", "Insufficient resources"
    message, action = check(context)[0]
    assert "not registered with the NVLink switches: Completed (Insufficient resources)" in message
    assert action == "terminate"


def test_missing_peer_access_is_reported(tmp_path: Path) -> None:
    _, context, driver = switched(tmp_path)
    driver.peers = peers(8, [(0, 3)])
    assert check(context)[0] == ("no peer access between GPU0-GPU3 CNS", "terminate")


def test_parsing_of_the_outputs() -> None:
    assert inactive_links(nvlinks(2, 12), 2, 12) == {}
    assert inactive_links(nvlinks(1, 12), 2, 12) == {1: 12}
    assert unreachable_peers(peers(3, [(2, 1)])) == ["GPU1-GPU2 CNS"]
    assert unreachable_peers("") == []


@pytest.mark.parametrize(
    ("driver", "cuda", "fits"),
    [
        ("580.65.06", "13.0", True),
        ("570.133.20", "13.0", False),
        ("525.60.13", "12.8", True),
        ("470.57.02", "12.1", False),
        ("570.1", "14.0", False),
        ("450.80.02", "11.8", True),
        ("[N/A]", "13.0", True),
    ],
)
def test_driver_and_cuda(driver: str, cuda: str, fits: bool) -> None:
    fault = driver_fault(driver, cuda)
    assert (fault is None) == fits
    assert fault is None or (fault.action == "terminate" and "use an image" in fault.remedy)


def test_an_old_driver_is_reported_rather_than_missing_gpus(tmp_path: Path) -> None:
    system, context = machine(tmp_path, gpus=8)
    name = Path(context.node.python.interpreter).name
    system.programs[name] = '{"missing": {}, "versions": {}, "gpus": 0, "cuda": "13.0"}'
    system.programs["nvidia-smi"] = "535.183.01\n" * 8
    with pytest.raises(StepError, match=r"driver 535\.183\.01 is too old .* CUDA 13\.0, which requires 580"):
        PythonEnv().verify(context)
