"""The supervisor as a systemd service: what the unit says, when it is written, and what it starts after a restart."""

from __future__ import annotations

import configparser
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from bootstrap import service
from bootstrap.errors import CommandError
from bootstrap.layout import Layout
from bootstrap.service import UNIT, hand_over, has_booted, note_boot, unit_text
from bootstrap.system import HttpAnswer, System
from tests.bootstrap.fake_system import FakeSystem

ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_SECRET_ACCESS_KEY": "never",
    "TRAINSTACK_ROOT": '/opt/a "b" %n',
    "HOME": "/root",
}


@pytest.fixture
def units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be a machine that systemd runs on."""
    folder = tmp_path / "system"
    folder.mkdir()
    monkeypatch.setattr(service, "UNITS", folder)
    monkeypatch.setattr(service, "RUNNING", tmp_path)
    return folder


def text() -> str:
    return unit_text(
        interpreter="/usr/bin/python3", directory=Path("/opt/x"), root=Path("/opt/y"), environment=ENVIRONMENT
    )


def test_what_the_unit_says() -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(text())
    assert unit["Service"]["ExecStart"] == "/usr/bin/python3 -m bootstrap service --root /opt/y"
    assert unit["Service"]["KillMode"] == "mixed" and unit["Service"]["OOMPolicy"] == "continue"
    assert unit["Unit"]["StartLimitAction"] == "poweroff"
    assert 'Environment="AWS_DEFAULT_REGION=us-east-1"' in text()
    assert 'Environment="TRAINSTACK_ROOT=/opt/a \\"b\\" %%n"' in text()
    assert "never" not in text() and "HOME" not in text()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd itself judges the unit")
def test_systemd_finds_no_fault_in_the_unit(tmp_path: Path) -> None:
    (tmp_path / UNIT).write_text(text().replace("/opt/x", "/tmp").replace("/usr/bin/python3", "/bin/sh"))
    judged = subprocess.run(["systemd-analyze", "verify", tmp_path / UNIT], capture_output=True, text=True)
    assert UNIT not in judged.stderr, judged.stderr


def test_systemd_takes_the_supervisor_over(tmp_path: Path, units: Path) -> None:
    system = FakeSystem(ENVIRONMENT)
    system.programs["systemctl"] = ""
    assert hand_over(system, Layout(tmp_path))
    assert [command[1] for command in system.commands] == ["daemon-reload", "enable", "start"]
    assert f"--root {tmp_path}" in (units / UNIT).read_text()


def test_a_systemd_that_refuses_is_said_and_the_node_trains(tmp_path: Path, units: Path) -> None:
    system = FakeSystem(ENVIRONMENT)

    def systemctl(command: Sequence[str]) -> str:
        if command[1] == "start":
            raise CommandError(command, 1, "Unit trainstack.service has a bad unit file setting.", "ended with code 1")
        return ""

    system.programs["systemctl"] = systemctl
    system.answers = [HttpAnswer(200, "i-1")]
    assert not hand_over(system, Layout(tmp_path))
    assert '"instance_id": "i-1"' in Layout(tmp_path).events.read_text()
    assert "bad unit file setting" in Layout(tmp_path).events.read_text()


def test_no_unit_without_systemd_or_on_an_emulated_node(
    tmp_path: Path, units: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulated = FakeSystem({"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:1338"})
    assert not hand_over(emulated, Layout(tmp_path))
    monkeypatch.setattr(service, "RUNNING", tmp_path / "absent")
    assert not hand_over(FakeSystem(), Layout(tmp_path))
    assert list(units.iterdir()) == []


@pytest.mark.parametrize(
    ("said", "refused"),
    [
        ("Call to PowerOff failed: There's already a shutdown or sleep operation in progress\n", False),
        ("Failed to talk to init daemon.\n", True),
    ],
)
def test_a_machine_that_goes_down_already_has_not_refused(
    monkeypatch: pytest.MonkeyPatch, said: str, refused: bool
) -> None:
    def run(command: Sequence[str], *, timeout_seconds: float) -> str:
        raise CommandError(command, 1, said, "ended with code 1")

    system = System()
    monkeypatch.setattr(system, "run", run)
    if refused:
        with pytest.raises(CommandError):
            system.shut_down()
    else:
        system.shut_down()


def test_the_steps_are_run_again_after_a_restart(tmp_path: Path) -> None:
    system, layout = FakeSystem(), Layout(tmp_path)
    system.files[str(service.BOOT_ID)] = "d4f0\n"
    assert not has_booted(system, layout)
    note_boot(system, layout)
    assert has_booted(system, layout)
    system.files[str(service.BOOT_ID)] = "e5a1\n"
    assert not has_booted(system, layout)
