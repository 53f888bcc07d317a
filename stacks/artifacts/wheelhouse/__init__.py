"""The wheelhouse: locked wheels for packages that the image does not contain. All nodes install them.

`python -m stacks bundle FILE` locks and builds the wheelhouse. `stacks.artifacts.bundles` packages the project's code.
"""

from __future__ import annotations

from pathlib import Path

from stacks.errors import ConfigError, Problem

LOCK_NAME = "wheelhouse.lock.json"
"""The name of the lock file, which is next to the deployment files."""
DIRECTORY = Path("build/wheelhouse")
KEY = "node.python.wheelhouse"
REMEDY = "`python -m stacks bundle FILE`"


def archive_of(sha256: str, source: str, directory: Path) -> Path:
    """Return the path of a locked wheelhouse's archive.

    Raises:
        ConfigError: The archive was not built on this machine.
    """
    path = directory / f"{sha256}.zip"
    if not path.is_file():
        rule = f"{path} does not exist: the wheelhouse is locked, but has not been built on this machine"
        raise ConfigError(source, [Problem(KEY, sha256, rule, f"run {REMEDY}")])
    return path
