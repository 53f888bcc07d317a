"""Starting a cloud in the background."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from localcloud import daemon

READY = """#!/bin/sh
echo starting
while [ ! -e {state}/go ]; do sleep 0.02; done
cat > {state}/.new <<END
{{"endpoint_url": "http://127.0.0.1:1", "region": "r", "account": "a", "pid": $$,
"process_started_unix_seconds": 0, "access_key_id": "k", "secret_access_key": "s"}}
END
mv {state}/.new {state}/cloud.json
exec sleep 600
"""


def program(folder: Path, text: str) -> str:
    path = folder / "python"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "REPORT_SECONDS", 0.1)


def test_start_reports_progress_and_waits_while_the_process_lives(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(daemon.sys, "executable", program(tmp_path, READY.format(state=tmp_path)))
    lines: list[str] = []

    def progress(line: str) -> None:
        lines.append(line)
        if len(lines) == 3:  # several times the report interval
            (tmp_path / "go").touch()

    found = daemon.start(tmp_path, region="r", port=0, check_models=False, progress=progress)
    monkeypatch.undo()
    daemon.psutil.Process(found.pid).kill()
    assert len(lines) >= 3
    assert f"waiting for process {found.pid}" in lines[0] and str(tmp_path / "cloud.log") in lines[0]


def test_start_fails_with_the_log_of_a_process_that_exits(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(daemon.sys, "executable", program(tmp_path, "#!/bin/sh\necho no port; exit 3\n"))
    with pytest.raises(daemon.StartFailed, match=r"exit code 3(?s:.)*no port"):
        daemon.start(tmp_path, region="r", port=0, check_models=False)


def test_interrupted_start_ends_the_process(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(daemon.sys, "executable", program(tmp_path, READY.format(state=tmp_path)))
    pids: list[int] = []

    def interrupt(line: str) -> None:
        pids.append(int(line.split()[3].rstrip(",")))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        daemon.start(tmp_path, region="r", port=0, check_models=False, progress=interrupt)
    with contextlib.suppress(daemon.psutil.NoSuchProcess):  # it may have exited already
        daemon.psutil.Process(pids[0]).wait(timeout=60)
    assert not daemon.psutil.pid_exists(pids[0])
