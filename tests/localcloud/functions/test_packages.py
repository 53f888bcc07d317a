"""Deployment packages on disk."""

from __future__ import annotations

import io
import os
import stat
import zipfile
from pathlib import Path

import pytest

from localcloud.functions import packages
from localcloud.functions.errors import PackageRefused
from localcloud.functions.packages import unpack


def archive(*members: tuple[str, str, int]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        for name, content, mode in members:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            made.writestr(info, content)
    return buffer.getvalue()


def test_a_package_is_unpacked_once_with_its_modes(tmp_path: Path) -> None:
    code = archive(("main.py", "1", 0o100644), ("bin/tool", "#!", 0o100755), ("deep/link", "../main.py", 0o120777))
    package = unpack(code, [], tmp_path)
    assert (package.task_root / "main.py").read_text() == "1"
    assert (package.task_root / "deep" / "link").read_text() == "1"
    assert os.access(package.task_root / "bin" / "tool", os.X_OK)
    assert not (package.task_root / "main.py").stat().st_mode & stat.S_IXUSR
    inode = (package.task_root / "main.py").stat().st_ino
    assert unpack(code, [], tmp_path) == package
    assert (package.task_root / "main.py").stat().st_ino == inode
    assert len(list(tmp_path.iterdir())) == 1  # nothing half-made is left


def test_later_layers_lie_over_earlier_ones(tmp_path: Path) -> None:
    first = archive(("python/a.py", "first", 0o100644), ("python/b.py", "b", 0o100644))
    second = archive(("python/a.py", "second", 0o100644), ("python/lib/python3.11/site-packages/c.py", "c", 0o100644))
    package = unpack(archive(("main.py", "", 0o100644)), [first, second], tmp_path)
    assert package.layers_root is not None
    assert (package.layers_root / "python" / "a.py").read_text() == "second"
    assert [path.name for path in package.python_path()] == ["python", "site-packages"]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (b"not a zip", "is not a zip file"),
        (archive(("../evil.py", "", 0o100644)), "outside the package"),
        (archive(("/etc/evil", "", 0o100644)), "outside the package"),
        (archive(("link", "../../etc", 0o120777)), "leaves the package"),
        (archive(("link", "/etc/passwd", 0o120777)), "leaves the package"),
    ],
)
def test_an_unsafe_package_is_refused_and_leaves_nothing(tmp_path: Path, code: bytes, words: str) -> None:
    with pytest.raises(PackageRefused, match=words):
        unpack(code, [], tmp_path / "functions")
    assert list(tmp_path.glob("functions/*")) == []
    assert not (tmp_path / "evil.py").exists()


def test_code_and_layers_together_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "UNPACKED_LIMIT_BYTES", 10)
    with pytest.raises(PackageRefused, match="unpack to 12 bytes; at most 10"):
        unpack(archive(("a", "x" * 6, 0o100644)), [archive(("b", "x" * 6, 0o100644))], tmp_path)
