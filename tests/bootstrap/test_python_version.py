"""An old interpreter must parse `bootstrap/__main__.py` and report which version is needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MAIN = ROOT / "bootstrap" / "__main__.py"

# Runs the module as `python -m bootstrap boot` does, with the version number of Python 3.9, and prints the modules that
# it has imported when it exits.
OLD_PYTHON = """
import runpy, sys
sys.version_info = (3, 9, 16, "final", 0)
sys.argv = ["bootstrap", "boot"]
before = set(sys.modules)
try:
    runpy.run_module("bootstrap", run_name="__main__", alter_sys=True)
except SystemExit as error:
    print(sorted(set(sys.modules) - before))
    raise
"""


def test_the_entry_points_parse_under_python_3_9() -> None:
    for path in (MAIN, MAIN.with_name("__init__.py")):
        ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))


def test_an_old_interpreter_is_reported_before_any_other_import() -> None:
    # Without -S, the .pth file of an editable install imports __future__ before the module does.
    done = subprocess.run(
        [sys.executable, "-S", "-c", OLD_PYTHON], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "found Python 3.9, but the node program needs 3.11 or newer" in done.stderr
    assert "node.python.interpreter" in done.stderr and sys.executable in done.stderr
    assert done.stdout.strip() == "['__future__', 'bootstrap']"
