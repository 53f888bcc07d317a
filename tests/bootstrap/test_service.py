"""The supervisor as a systemd service: text of the unit, when it is written, and the boot after a restart."""

from __future__ import annotations

import configparser
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from bootstrap.__main__ import main
from bootstrap.boot_steps import service
from bootstrap.boot_steps.service import UNIT, has_booted, install_service, record_boot, start_service, unit_text
from bootstrap.errors import CommandError
from bootstrap.layout import Layout
from bootstrap.system import BOOT_ID, HttpAnswer, System
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
    """Simulate a machine with systemd."""
    directory = tmp_path / "system"
    directory.mkdir()
    monkeypatch.setattr(service, "UNITS", directory)
    monkeypatch.setattr(service, "RUNNING", tmp_path)
    return directory


def text() -> str:
    return unit_text(
        interpreter="/usr/bin/python3", directory=Path("/opt/x"), root=Path("/opt/y"), environment=ENVIRONMENT
    )


def test_the_text_of_the_unit() -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(text())
    assert unit["Service"]["ExecStart"] == "/usr/bin/python3 -m bootstrap service --root /opt/y"
    assert unit["Service"]["KillMode"] == "mixed" and unit["Service"]["OOMPolicy"] == "continue"
    assert unit["Unit"]["StartLimitAction"] == "poweroff"
    assert 'Environment="AWS_DEFAULT_REGION=us-east-1"' in text()
    assert 'Environment="TRAINSTACK_ROOT=/opt/a \\"b\\" %%n"' in text()
    assert "never" not in text() and "HOME" not in text()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    (tmp_path / UNIT).write_text(text().replace("/opt/x", "/tmp").replace("/usr/bin/python3", "/bin/sh"))
    done = subprocess.run(["systemd-analyze", "verify", tmp_path / UNIT], capture_output=True, text=True)
    assert UNIT not in done.stderr, done.stderr


def test_the_unit_is_written_and_started(tmp_path: Path, units: Path) -> None:
    system = FakeSystem(ENVIRONMENT)
    system.programs["systemctl"] = ""
    assert install_service(system, Layout(tmp_path))
    assert [command[1] for command in system.commands] == ["daemon-reload", "enable"]
    assert start_service(system, Layout(tmp_path))
    assert system.commands[-1] == ["systemctl", "start", UNIT]
    assert f"--root {tmp_path}" in (units / UNIT).read_text()


def test_a_failure_of_systemd_is_reported_and_the_node_trains(tmp_path: Path, units: Path) -> None:
    system = FakeSystem(ENVIRONMENT)

    def systemctl(command: Sequence[str]) -> str:
        if command[1] == "start":
            raise CommandError(command, 1, "Unit trainstack.service has a bad unit file setting.", "exited with code 1")
        return ""

    system.programs["systemctl"] = systemctl
    system.answers = [HttpAnswer(200, "i-1")]
    assert install_service(system, Layout(tmp_path)) and not start_service(system, Layout(tmp_path))
    assert '"instance_id": "i-1"' in Layout(tmp_path).events.read_text()
    assert "bad unit file setting" in Layout(tmp_path).events.read_text()


def test_no_unit_without_systemd_or_on_an_emulated_node(
    tmp_path: Path, units: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulated = FakeSystem({"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:1338"})
    assert not install_service(emulated, Layout(tmp_path))
    monkeypatch.setattr(service, "RUNNING", tmp_path / "absent")
    assert not install_service(FakeSystem(), Layout(tmp_path))
    assert list(units.iterdir()) == []


@pytest.mark.parametrize(
    ("output", "refused"),
    [
        ("Call to PowerOff failed: There's already a shutdown or sleep operation in progress\n", False),
        ("Failed to talk to init daemon.\n", True),
    ],
)
def test_a_shutdown_in_progress_is_not_a_failure(monkeypatch: pytest.MonkeyPatch, output: str, refused: bool) -> None:
    def run(command: Sequence[str], *, timeout_seconds: float) -> str:
        raise CommandError(command, 1, output, "exited with code 1")

    system = System()
    monkeypatch.setattr(system, "run", run)
    if refused:
        with pytest.raises(CommandError):
            system.shut_down()
    else:
        system.shut_down()


def test_the_boot_steps_run_again_after_a_restart(tmp_path: Path) -> None:
    system, layout = FakeSystem(), Layout(tmp_path)
    system.files[str(BOOT_ID)] = "d4f0\n"
    assert not has_booted(system, layout)
    record_boot(system, layout)
    assert has_booted(system, layout)
    system.files[str(BOOT_ID)] = "e5a1\n"
    assert not has_booted(system, layout)


def test_the_unit_is_enabled_before_the_boot_steps(
    tmp_path: Path, units: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart of the machine during the boot steps would otherwise leave an idle instance."""
    system, done = FakeSystem(ENVIRONMENT), list[str]()
    system.programs["systemctl"] = lambda command: done.append(command[1]) or ""

    def boot(system: System, layout: Layout) -> bool:
        done.append("boot steps")
        return True

    monkeypatch.setattr("bootstrap.system.System", lambda: system)
    monkeypatch.setattr("bootstrap.boot_main.boot", boot)
    assert main(["boot", "--root", str(tmp_path)]) == 0
    assert done == ["daemon-reload", "enable", "boot steps", "start"]
