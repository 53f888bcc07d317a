"""The installation targets of the Makefile, with a package manager that fails."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
NPM = '#!/bin/sh\ncase "$*" in *silent*) ;; *) echo "npm error self-signed certificate" >&2 ;; esac\nexit 1\n'


def test_a_failed_installation_prints_the_cause_and_a_remedy(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "package-lock.json").touch()
    npm = tmp_path / ".venv" / "bin" / "npm"
    npm.parent.mkdir(parents=True)
    npm.write_text(NPM)
    npm.chmod(0o755)
    command = ["make", "--old-file=.venv/.installed", "node_modules/.installed"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "self-signed certificate" in done.stderr and "set NODE_EXTRA_CA_CERTS" in done.stderr
