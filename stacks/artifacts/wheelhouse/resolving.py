"""Resolves requirements to wheels for the node's Python version and platform. pip does not download the wheels."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from stacks.artifacts.wheelhouse.wheels import MACHINE, Wheel, is_of_image, platform_tags

TIMEOUT_SECONDS = 600.0
ROUNDS = 5


class WheelhouseError(RuntimeError):
    """The wheelhouse cannot be built. The message contains pip's errors and a remedy."""


@dataclass(frozen=True)
class _Found:
    wheel: Wheel
    requires: tuple[Requirement, ...]


def target_options(python: str) -> list[str]:
    """Return the pip options that select wheels for the node's platform and a Python version."""
    platforms = [option for tag in platform_tags() for option in ("--platform", tag)]
    return ["--only-binary=:all:", "--implementation", "cp", "--python-version", python, *platforms]


def run_pip(arguments: Sequence[str], failure: str) -> None:
    """Run the interpreter's pip.

    Raises:
        WheelhouseError: pip failed. The message contains its errors.
    """
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise WheelhouseError(
            f"{failure}: pip took longer than {TIMEOUT_SECONDS:g} seconds; check the connection to the index"
        ) from error
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if not line.startswith(("WARNING", "[notice]", "DEPRECATION"))][-12:]
        raise WheelhouseError(f"{failure}:\n  " + "\n  ".join(errors))


def resolve(
    requirements: Sequence[str],
    python: str,
    constraints: Sequence[str],
    omits: Callable[[str], bool] = is_of_image,
) -> dict[str, Wheel]:
    """Return the wheels that satisfy requirements on a node, with all dependencies except the image's packages.

    Args:
        requirements: Requirements in the format of a requirements file.
        python: The node's Python version, such as "3.12".
        constraints: Versions to use for distributions if they are needed, such as "boto3==1.44.8".
        omits: Whether the image provides a distribution.

    Raises:
        WheelhouseError: No such set of wheels exists, or the index is not reachable.
    """
    wanted = [Requirement(text) for text in requirements]
    for _ in range(ROUNDS):
        found = _ask_pip([str(one) for one in wanted], python, constraints)
        needed, missing = _closure([Requirement(text) for text in requirements], found, python, omits)
        if not missing:
            return {name: found[name].wheel for name in sorted(needed)}
        # pip evaluates markers for the Python version that runs it, not for --python-version, so it misses some
        # dependencies.
        wanted += missing
    raise WheelhouseError(f"{', '.join(requirements)}: the dependencies do not converge for Python {python}")


def _ask_pip(requirements: Sequence[str], python: str, constraints: Sequence[str]) -> dict[str, _Found]:
    failure = f"Python {python}: no set of wheels satisfies {', '.join(requirements)}"
    with tempfile.TemporaryDirectory() as temporary:
        report, listing = Path(temporary) / "report.json", Path(temporary) / "constraints.txt"
        listing.write_text("".join(f"{line}\n" for line in constraints))
        arguments = ["install", "--quiet", "--dry-run", "--ignore-installed", "--target", temporary]
        arguments += ["--report", str(report), "--constraint", str(listing), *target_options(python)]
        run_pip([*arguments, *requirements], failure)
        installs = json.loads(report.read_text(encoding="utf-8"))["install"]
    found: dict[str, _Found] = {}
    for each in installs:
        metadata, download = each["metadata"], each["download_info"]
        wheel = Wheel(
            version=metadata["version"],
            file=download["url"].rsplit("/", 1)[-1].replace("%2B", "+"),
            sha256=download["archive_info"]["hashes"]["sha256"],
        )
        requires = tuple(Requirement(text) for text in metadata.get("requires_dist") or ())
        found[canonicalize_name(metadata["name"])] = _Found(wheel, requires)
    return found


def _closure(
    roots: Iterable[Requirement], found: Mapping[str, _Found], python: str, omits: Callable[[str], bool]
) -> tuple[set[str], list[Requirement]]:
    """Return the names that the root requirements need, except the image's packages, and the missing requirements."""
    environment = {
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": MACHINE,
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
    }
    needed: set[str] = set()
    missing: list[Requirement] = []
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [one for one in roots if one.marker is None or one.marker.evaluate({**environment, "extra": ""})]
    while waiting:
        requirement = waiting.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if omits(name) or (name, extras) in seen:
            continue
        seen.add((name, extras))
        if name not in found:
            missing.append(Requirement(str(requirement).partition(";")[0]))
            continue
        needed.add(name)
        for child in found[name].requires:
            marker = child.marker
            if marker is None or any(marker.evaluate({**environment, "extra": extra}) for extra in ("", *extras)):
                waiting.append(child)
    return needed, missing
