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


def test_package_is_unpacked_once_with_file_modes(tmp_path: Path) -> None:
    code = archive(("main.py", "1", 0o100644), ("bin/tool", "#!", 0o100755), ("deep/link", "../main.py", 0o120777))
    package = unpack(code, tmp_path)
    assert (package / "main.py").read_text() == "1"
    assert (package / "deep" / "link").read_text() == "1"
    assert os.access(package / "bin" / "tool", os.X_OK)
    assert not (package / "main.py").stat().st_mode & stat.S_IXUSR
    inode = (package / "main.py").stat().st_ino
    assert unpack(code, tmp_path) == package
    assert (package / "main.py").stat().st_ino == inode
    assert len(list(tmp_path.iterdir())) == 1  # no partial package is left


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (b"not a zip", "is not a zip file"),
        (archive(("../evil.py", "", 0o100644)), "member '../evil.py' is outside the package"),
        (archive(("/etc/evil", "", 0o100644)), "member '/etc/evil' is outside the package"),
        (archive(("link", "../../etc", 0o120777)), "'link': the link's target is outside the package"),
        (archive(("link", "/etc/passwd", 0o120777)), "'link': the link's target is outside the package"),
    ],
)
def test_unsafe_package_is_refused_and_leaves_no_files(tmp_path: Path, code: bytes, text: str) -> None:
    with pytest.raises(PackageRefused, match=text):
        unpack(code, tmp_path / "functions")
    assert list(tmp_path.glob("functions/*")) == []
    assert not (tmp_path / "evil.py").exists()


def test_size_of_the_code_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "UNPACKED_LIMIT_BYTES", 10)
    with pytest.raises(PackageRefused, match="unpacks to 12 bytes, but the maximum is 10"):
        unpack(archive(("a", "x" * 6, 0o100644), ("b", "x" * 6, 0o100644)), tmp_path)
