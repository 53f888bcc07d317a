"""Wheels of a few lines, and wheelhouses of them, as `python -m stacks bundle` makes them of the real ones."""

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
    """Return file name and bytes of a wheel with one module, whose RELEASE says its version."""
    info = f"{name}-{release}.dist-info"
    lines = [f"Requires-Dist: {each}" for each in requires]
    files = {
        f"{name}.py": f"RELEASE = {release!r}\n",
        f"{info}/METADATA": "\n".join(["Metadata-Version: 2.1", f"Name: {name}", f"Version: {release}", *lines, ""]),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    record = [f"{path},sha256={_encoded(text)},{len(text)}" for path, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""])
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return f"{name}-{release}-{tag}.whl", buffer.getvalue()


def _encoded(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


@cache
def pip_wheel() -> tuple[str, bytes]:
    """Pack this interpreter's pip as a wheel: it runs from there as the one of the index does."""
    import pip

    package = Path(pip.__file__).parent
    name = f"pip-{version('pip')}"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path in sorted(package.rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                archive.write(path, (Path("pip") / path.relative_to(package)).as_posix())
    return f"{name}-py3-none-any.whl", buffer.getvalue()


def wheelhouse(
    wheels: Sequence[tuple[str, bytes]], *, python: str = PYTHON, image: str = "", locked: dict[str, str] | None = None
) -> bytes:
    """Return the archive of a wheelhouse with pip in it; `locked` says other SHA-256 than the wheels', by name."""
    requirements = ""
    for file, body in wheels:
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
