"""Downloads locked wheels and packs them into one archive, byte-equal for equal locks."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from stacks.bundles import BundleFile, write_archive
from stacks.wheelhouse.resolving import WheelhouseError, run_pip, target_options
from stacks.wheelhouse.wheels import Wheel, Wheels


def build(wheels: Wheels, image: list[str], directory: Path, progress: Callable[[str], None]) -> BundleFile:
    """Return the wheelhouse of a lock: DIRECTORY/SHA256.zip.

    In it are `wheels/`, and for each version of Python `requirements-VERSION.txt` with every wheel's hash, and
    `image-requirements.txt` with what the image must satisfy.

    Args:
        wheels: What it holds.
        image: Requirements of the user's code on the image's own packages.
        directory: Where it goes; wheels that were downloaded before are in its `wheels/`, by hash.
        progress: Is told in a line what is under way.

    Raises:
        WheelhouseError: A wheel cannot be downloaded, or is not what the lock says.
    """
    cache = directory / "wheels"
    cache.mkdir(parents=True, exist_ok=True)
    for python, of_one in wheels.items():
        lacking = {name: one for name, one in of_one.items() if not _is_there(cache, one)}
        if lacking:
            progress(f"Python {python}: downloading {len(lacking)} of {len(of_one)} wheels")
            _download(lacking, python, cache)
    content: dict[str, bytes | Path] = {
        f"wheels/{one.file}": cache / one.sha256 / one.file for of_one in wheels.values() for one in of_one.values()
    }
    content |= {
        f"requirements-{python}.txt": _requirements(of_one).encode() for python, of_one in sorted(wheels.items())
    }
    content["image-requirements.txt"] = "".join(f"{line}\n" for line in sorted(image)).encode()
    return write_archive(sorted(content.items()), directory)


def _requirements(wheels: Mapping[str, Wheel]) -> str:
    return "".join(f"{name}=={one.version} --hash=sha256:{one.sha256}\n" for name, one in sorted(wheels.items()))


def _is_there(cache: Path, wheel: Wheel) -> bool:
    path = cache / wheel.sha256 / wheel.file
    return path.is_file() and _sha256(path) == wheel.sha256


def _download(wheels: Mapping[str, Wheel], python: str, cache: Path) -> None:
    with tempfile.TemporaryDirectory(dir=cache, prefix=".download-") as temporary:
        listing = Path(temporary) / "requirements.txt"
        listing.write_text(_requirements(wheels))
        arguments = ["download", "--quiet", "--no-deps", "--require-hashes", "--dest", temporary]
        what = f"Python {python}: the locked wheels cannot be downloaded"
        run_pip([*arguments, *target_options(python), "--requirement", str(listing)], what)
        for wheel in wheels.values():
            downloaded = Path(temporary) / wheel.file
            if not downloaded.is_file():
                raise WheelhouseError(
                    f"{wheel.file}: the index has it under another name; lock anew: `python -m stacks bundle FILE`"
                )
            target = cache / wheel.sha256
            target.mkdir(exist_ok=True)
            shutil.move(downloaded, target / wheel.file)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
