"""Minimal wheels and wheelhouses in the format of `python -m stacks bundle`."""

from __future__ import annotations

import base64
import hashlib
import io
import sys
import zipfile
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def wheel(name: str, release: str, requires: Sequence[str] = (), tag: str = "py3-none-any") -> tuple[str, bytes]:
    """Return the file name and the contents of a wheel with one module, whose RELEASE is the wheel's version."""
    return _packed(name, release, {f"{name}.py": f"RELEASE = {release!r}\n".encode()}, requires, tag)


def _packed(
    name: str, release: str, files: dict[str, bytes], requires: Sequence[str] = (), tag: str = "py3-none-any"
) -> tuple[str, bytes]:
    info = f"{name}-{release}.dist-info"
    lines = [f"Requires-Dist: {each}" for each in requires]
    metadata = "\n".join(["Metadata-Version: 2.1", f"Name: {name}", f"Version: {release}", *lines, ""])
    form = f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n"
    files = {**files, f"{info}/METADATA": metadata.encode(), f"{info}/WHEEL": form.encode()}
    record = [f"{path},sha256={_encoded(content)},{len(content)}" for path, content in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, content in files.items():
            archive.writestr(zipfile.ZipInfo(path), content)
    return f"{name}-{release}-{tag}.whl", buffer.getvalue()


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


@cache
def pip_wheel() -> tuple[str, bytes]:
    """Return this interpreter's pip as a wheel, from which it can run."""
    import pip

    package = Path(pip.__file__).parent
    files = {
        (Path("pip") / path.relative_to(package)).as_posix(): path.read_bytes()
        for path in sorted(package.rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    }
    return _packed("pip", version("pip"), files)


def wheelhouse(
    wheels: Sequence[tuple[str, bytes]], *, python: str = PYTHON, image: str = "", locked: dict[str, str] | None = None
) -> bytes:
    """Return the archive of a wheelhouse with pip; `locked` overrides SHA-256 hashes by name."""
    requirements = ""
    for file, body in [*wheels, pip_wheel()]:
        name, release, *_ = file.split("-")
        sha256 = (locked or {}).get(name, hashlib.sha256(body).hexdigest())
        requirements += f"{name}=={release} --hash=sha256:{sha256}\n"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(f"requirements-{python}.txt", requirements)
        archive.writestr("image-requirements.txt", image)
        for file, body in [*wheels, pip_wheel()]:
            archive.writestr(f"wheels/{file}", body)
    return buffer.getvalue()
