"""Chooses the operating system users for the processes of instances and functions.

If the cloud runs as root, each instance and each function has its own user. An instance or function therefore cannot
read the cloud's state, trace the cloud's processes, or read another's files. The user has no account and no group. Its
ID is in the range that systemd uses for such users. Source (2026-11): https://systemd.io/UIDS-GIDS/ (DynamicUser)
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

import localcloud

_logger = logging.getLogger(__name__)
INSTANCE_USERS, FUNCTION_USERS = range(61184, 65184), range(65184, 65520)


def instance_user(instance_id: str, directory: Path) -> int | None:
    """Return the ID of an instance's user, or None if the instance runs as the cloud's user.

    An instance runs as the cloud's user if the cloud does not run as root, or if other users cannot access the
    interpreter, the cloud's program or the parent of the instance's directory.
    """
    if not _is_possible(instance_id, directory):
        return None
    return INSTANCE_USERS[int(instance_id.removeprefix("i-"), 16) % len(INSTANCE_USERS)]


def function_user(name: str, directory: Path) -> int | None:
    """Return the ID of a function's user, or None under the same conditions as for an instance."""
    if not _is_possible(name, directory):
        return None
    return FUNCTION_USERS[int(hashlib.sha256(name.encode()).hexdigest(), 16) % len(FUNCTION_USERS)]


def _is_possible(name: str, directory: Path) -> bool:
    if os.geteuid() != 0:
        return False
    found = obstacle([Path(sys.executable), Path(os.__file__), Path(psutil.__file__), Path(localcloud.__file__)])
    found = found or obstacle([directory.parent])
    if found is not None:
        _logger.warning("%s runs as root: other users cannot access %s", name, found)
        return False
    return True


def obstacle(paths: Sequence[Path]) -> Path | None:
    """Return the first of the paths and their parents that a user without groups cannot read or enter."""
    for path in paths:
        for part in dict.fromkeys((*path.absolute().parents, *path.resolve().parents)):
            if not part.stat().st_mode & stat.S_IXOTH:
                return part
        needed = stat.S_IXOTH if path.is_dir() else stat.S_IROTH
        if not path.stat().st_mode & needed:
            return path
    return None
