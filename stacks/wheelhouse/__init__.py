"""The wheelhouse: wheels that a node's Python needs besides what the image brings, chosen here, installed there.

`stacks.bundles` ships the project's own code; this package ships other people's: `python -m stacks bundle FILE`.
"""

from __future__ import annotations

from pathlib import Path

from stacks.errors import ConfigError, Problem

LOCK_NAME = "wheelhouse.lock.json"
"""Name of the file beside the deployment files that says which wheels their nodes get."""
DIRECTORY = Path("build/wheelhouse")
KEY = "node.python.wheelhouse"
REMEDY = "`python -m stacks bundle FILE`"


def archive_of(sha256: str, source: str, directory: Path) -> Path:
    """Return the archive of a locked wheelhouse.

    Raises:
        ConfigError: It was not built on this machine.
    """
    path = directory / f"{sha256}.zip"
    if not path.is_file():
        rule = f"{path} is not there: the wheelhouse was locked, and is not built on this machine"
        raise ConfigError(source, [Problem(KEY, sha256, rule, f"build it: {REMEDY}")])
    return path
