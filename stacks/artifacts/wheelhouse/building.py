"""Downloads locked wheels and packs them into one archive. The same lock always produces the same archive."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from stacks.artifacts.bundles import BundleFile, write_archive
from stacks.artifacts.wheelhouse.resolving import WheelhouseError, run_pip, target_options
from stacks.artifacts.wheelhouse.wheels import Wheel, Wheels


def build(wheels: Wheels, image: list[str], directory: Path, progress: Callable[[str], None]) -> BundleFile:
    """Build the wheelhouse for a lock, DIRECTORY/SHA256.zip.

    It contains `wheels/`, one `requirements-VERSION.txt` with wheel hashes for each Python version, and
    `image-requirements.txt` with the requirements that the image must satisfy.

    Args:
        wheels: The locked wheels.
        image: The user code's requirements for packages that the image provides.
        directory: The output folder. Its `wheels/` subfolder caches downloaded wheels by hash.
        progress: Function that receives a line of text before each download.

    Raises:
        WheelhouseError: A wheel cannot be downloaded, or does not match the lock.
    """
    cache = directory / "wheels"
    for python, of_one in wheels.items():
        fetch(of_one, python, cache, progress)
    content: dict[str, bytes | Path] = {
        f"wheels/{one.file}": cache / one.sha256 / one.file for of_one in wheels.values() for one in of_one.values()
    }
    content |= {
        f"requirements-{python}.txt": _requirements(of_one).encode() for python, of_one in sorted(wheels.items())
    }
    content["image-requirements.txt"] = "".join(f"{line}\n" for line in sorted(image)).encode()
    return write_archive(sorted(content.items()), directory)


def fetch(wheels: Mapping[str, Wheel], python: str, cache: Path, progress: Callable[[str], None]) -> None:
    """Download the wheels that are missing in a cache, where each is CACHE/SHA256/FILE.

    Raises:
        WheelhouseError: A wheel cannot be downloaded, or does not match its hash.
    """
    cache.mkdir(parents=True, exist_ok=True)
    missing = {name: one for name, one in wheels.items() if not _is_cached(cache, one)}
    if missing:
        progress(f"Python {python}: downloading {len(missing)} of {len(wheels)} wheels")
        _download(missing, python, cache)


def _requirements(wheels: Mapping[str, Wheel]) -> str:
    return "".join(f"{name}=={one.version} --hash=sha256:{one.sha256}\n" for name, one in sorted(wheels.items()))


def _is_cached(cache: Path, wheel: Wheel) -> bool:
    path = cache / wheel.sha256 / wheel.file
    return path.is_file() and _sha256(path) == wheel.sha256


def _download(wheels: Mapping[str, Wheel], python: str, cache: Path) -> None:
    with tempfile.TemporaryDirectory(dir=cache, prefix=".download-") as temporary:
        listing = Path(temporary) / "requirements.txt"
        listing.write_text(_requirements(wheels))
        arguments = ["download", "--quiet", "--no-deps", "--require-hashes", "--dest", temporary]
        failure = f"Python {python}: the locked wheels cannot be downloaded"
        run_pip([*arguments, *target_options(python), "--requirement", str(listing)], failure)
        for wheel in wheels.values():
            downloaded = Path(temporary) / wheel.file
            if not downloaded.is_file():
                raise WheelhouseError(
                    f"{wheel.file}: the index uses another file name; lock again with `python -m stacks bundle FILE`"
                )
            target = cache / wheel.sha256
            target.mkdir(exist_ok=True)
            shutil.move(downloaded, target / wheel.file)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
