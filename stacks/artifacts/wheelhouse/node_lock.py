"""`python -m stacks.artifacts.wheelhouse.node_lock`: lock the wheels that every node needs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from stacks.artifacts.wheelhouse.resolving import WheelhouseError, resolve
from stacks.artifacts.wheelhouse.wheels import NODE_LOCK, NODE_PACKAGES, to_json, write_json

REQUIREMENTS = Path(__file__).resolve().parents[3] / "requirements.txt"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""Python versions that a node can use. The lock lists every distribution's wheel for each version."""


def pinned_versions(path: Path = REQUIREMENTS) -> dict[str, str]:
    """Return the version of each distribution that a requirements file or lock pins with ==."""
    found: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            requirement = Requirement(line.partition("#")[0].partition(" --hash")[0].strip())
        except InvalidRequirement:  # an empty line or a pip option
            continue
        exact = [one.version for one in requirement.specifier if one.operator == "=="]
        if len(exact) == 1:
            found[canonicalize_name(requirement.name)] = exact[0]
    return found


def main() -> int:
    """Write the lock and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m stacks.artifacts.wheelhouse.node_lock", description=__doc__)
    parser.parse_args()
    constraints = [f"{name}=={version}" for name, version in pinned_versions().items()]
    try:
        wheels = {}
        for python in PYTHONS:
            wheels[python] = resolve(NODE_PACKAGES, python, constraints)
            print(f"Python {python}: {len(wheels[python])} wheels", file=sys.stderr)
    except WheelhouseError as error:
        print(error, file=sys.stderr)
        return 1
    write_json(NODE_LOCK, to_json(wheels))
    print(f"{NODE_LOCK}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
