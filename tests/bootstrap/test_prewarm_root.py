"""Pre-warm on real file systems: the pieces read from the disk are exactly the contents of the files."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bootstrap.prewarm.extents import plan_pieces
from bootstrap.prewarm.reader import Prewarm, Progress
from bootstrap.system import System

TOOLS = ("losetup", "mkfs.xfs", "mkfs.ext4")
MISSING = [tool for tool in TOOLS if shutil.which(tool) is None]
pytestmark = [pytest.mark.root, pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")]
MIB = 1024**2


def tool(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


@pytest.fixture(params=["ext4", "xfs"])
def volume(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """Yield a mounted file system and its device."""
    image, mount = tmp_path / "image", tmp_path / "mount"
    image.touch()
    os.truncate(image, 320 * MIB)
    mount.mkdir()
    device = tool("losetup", "--find", "--show", str(image))
    try:
        tool(f"mkfs.{request.param}", "-q", device)
        tool("mount", device, str(mount))
        yield mount, Path(device)
        tool("umount", str(mount))
    finally:
        tool("losetup", "--detach", device)


def test_the_pieces_on_disk_are_the_contents_of_the_files(volume: tuple[Path, Path], tmp_path: Path) -> None:
    mount, device = volume
    contents = {"b": os.urandom(5 * MIB + 4096), "a": os.urandom(4096), "c": os.urandom(MIB)}
    for name, content in contents.items():
        (mount / name).write_bytes(content)
    with (mount / "sparse").open("wb") as stream:
        stream.truncate(100 * MIB)
    subprocess.run(["sync"], check=True)
    pieces = plan_pieces([mount / name for name in (*contents, "sparse")], device)
    assert {piece.path for piece in pieces} == {device}
    with device.open("rb") as disk:
        read = b""
        for piece in pieces:
            disk.seek(piece.offset)
            read += disk.read(piece.length)
    assert read == b"".join(contents.values())
    progress: list[Progress] = []
    work = Prewarm(pieces, system=System(), state=tmp_path / "state", disk="x")
    assert work.run(first_bytes=1, on_first=progress.append, on_progress=progress.append)
    assert progress[-1].bytes_done == len(read)
