"""The user data script, run in a temporary root with stub programs on PATH."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SHIM = Path(__file__).resolve().parents[2] / "stacks" / "constructs" / "nodes" / "shim.sh"
DOCUMENT = '{"schema_version": 1, "note": "exit # node document"}\n'

# The error messages of the real AWS CLI 2, which prints neither of them with `s3 cp --quiet`.
AWS = """#!/bin/sh
echo "aws $*" >> "$STUB/calls"
case "$*" in
  *shim.log*)
    for last; do :; done
    [ "$UPLOAD" = denied ] && { case "$*" in *--quiet*) ;; *) echo "upload failed: AccessDenied" >&2 ;; esac; exit 1; }
    cp "$4" "$STUB/uploaded"; echo "$last" > "$STUB/uploaded_to" ;;
  *) tries=$(grep -c b.zip "$STUB/calls")
    if [ "$tries" -gt "$FAIL_TIMES" ]; then cp "$STUB/bundle.zip" b.zip; echo '{"ETag": "x"}'
    else case "$*" in *--quiet*) ;; *) echo "An error occurred (AccessDenied) when calling the GetObject operation" >&2
    esac; exit 254; fi ;;
esac
"""
CLOUD_INIT = '#!/bin/sh\n[ "$*" = "query instance_id" ] && echo i-0123456789abcdef0\n'
RECORD = '#!/bin/sh\necho "$(basename "$0") $*" >> "$STUB/calls"\n'
PROGRAM = """import os, sys
print("booted", *sys.argv[1:])
sys.exit(int(os.environ.get("BOOT_EXIT", "0")))
"""


class Machine:
    """A temporary root with the programs that the shim calls."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "root"
        self.stub = directory / "stub"
        self.stub.mkdir()
        for name, text in {"aws": AWS, "sleep": RECORD, "shutdown": RECORD, "cloud-init": CLOUD_INIT}.items():
            (self.stub / name).write_text(text)
            (self.stub / name).chmod(0o755)
        with zipfile.ZipFile(self.stub / "bundle.zip", "w") as archive:
            archive.writestr("bootstrap/__init__.py", "")
            archive.writestr("bootstrap/__main__.py", PROGRAM)
        self.sha256 = hashlib.sha256((self.stub / "bundle.zip").read_bytes()).hexdigest()

    def run(self, *, fail_times: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        values = {
            "REGION": "us-east-1",
            "LOGS": "control",
            "ROLE": "AROA1",
            "BUCKET": "assets",
            "KEY": f"{self.sha256}.zip",
            "SHA256": self.sha256,
            "PYTHON": sys.executable,
        }
        script = SHIM.read_text()
        for name, value in values.items():
            script = script.replace(f"@{name}@", value)
        assert "@" not in script
        path = self.stub / "user-data"
        path.write_text(script + DOCUMENT)
        return subprocess.run(
            ["bash", str(path)],
            env={
                "PATH": f"{self.stub}:{os.environ['PATH']}",
                "TRAINSTACK_ROOT": str(self.root),
                "STUB": str(self.stub),
                "FAIL_TIMES": str(fail_times),
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=60,
        )

    def calls(self) -> list[str]:
        path = self.stub / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def assert_terminated(self) -> None:
        assert self.calls()[-1] == "shutdown -h now"
        assert (self.stub / "uploaded_to").read_text() == "s3://control/nodes/AROA1:i-0123456789abcdef0/shim.log\n"
        assert "failed" in (self.stub / "uploaded").read_text()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_starts_the_program_with_the_document(machine: Machine) -> None:
    done = machine.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert (machine.root / "node.json").read_text() == DOCUMENT
    assert f"booted boot --root {machine.root}" in (machine.root / "shim.log").read_text()
    assert (machine.root / "bundle" / machine.sha256 / "bootstrap" / "__main__.py").exists()
    assert not any(call.startswith("shutdown") for call in machine.calls())


def test_retries_the_download(machine: Machine) -> None:
    assert machine.run(fail_times=3).returncode == 0
    assert [call for call in machine.calls() if call.startswith("sleep")] == ["sleep 1", "sleep 2", "sleep 4"]


def test_gives_up_after_five_attempts(machine: Machine) -> None:
    assert machine.run(fail_times=99).returncode != 0
    assert sum("b.zip" in call for call in machine.calls()) == 5
    machine.assert_terminated()


def test_the_cause_of_a_refused_download_is_on_the_console_and_in_the_report(machine: Machine) -> None:
    """`aws s3 cp --quiet` hides errors: https://github.com/aws/aws-cli/issues/2848 (2026-11)."""
    cause = "An error occurred (AccessDenied) when calling the GetObject operation"
    done = machine.run(fail_times=99)
    assert cause in done.stdout
    assert cause in (machine.stub / "uploaded").read_text()


def test_a_refused_upload_is_on_the_console(machine: Machine) -> None:
    done = machine.run(fail_times=99, UPLOAD="denied")
    assert "upload failed: AccessDenied" in done.stdout + done.stderr
    assert machine.calls()[-1] == "shutdown -h now"


def test_without_cloud_init_the_report_is_named_after_the_host(machine: Machine) -> None:
    (machine.stub / "cloud-init").unlink()
    (machine.stub / "hostname").write_text("#!/bin/sh\necho host-1\n")
    (machine.stub / "hostname").chmod(0o755)
    assert machine.run(fail_times=99).returncode != 0
    assert (machine.stub / "uploaded_to").read_text() == "s3://control/nodes/AROA1:host-1/shim.log\n"


def test_uploaded_log_is_complete_with_a_slow_tee(machine: Machine) -> None:
    # The delay is the point of the test: on a busy machine tee still writes when the upload starts.
    (machine.stub / "tee").write_text(f'#!/bin/sh\n{shutil.which("sleep")} 0.5\nexec {shutil.which("tee")} "$@"\n')
    (machine.stub / "tee").chmod(0o755)
    assert machine.run(fail_times=99).returncode != 0
    machine.assert_terminated()


def test_rejects_a_bundle_with_another_digest(machine: Machine) -> None:
    with zipfile.ZipFile(machine.stub / "bundle.zip", "a") as archive:
        archive.writestr("extra", "")
    assert machine.run().returncode != 0
    assert not (machine.root / "bundle").exists()
    machine.assert_terminated()


def test_terminates_with_a_corrupt_bundle(machine: Machine) -> None:
    (machine.stub / "bundle.zip").write_bytes(b"no zip")
    machine.sha256 = hashlib.sha256(b"no zip").hexdigest()
    assert machine.run().returncode != 0
    machine.assert_terminated()


def test_terminates_if_the_program_fails(machine: Machine) -> None:
    assert machine.run(BOOT_EXIT="3").returncode == 3
    machine.assert_terminated()


def test_unwritable_root_is_an_error(machine: Machine) -> None:
    machine.root.write_text("a file")
    assert machine.run().returncode != 0


def test_script_is_small_and_passes_shellcheck() -> None:
    text = SHIM.read_text()
    assert len(text.encode()) < 1024
    assert len(text.splitlines()) <= 25
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert shellcheck is not None
    checked = subprocess.run([shellcheck, "--shell=bash", str(SHIM)], capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stdout
