"""Windows of recorded spot capacity and prices in several zones.

Format: `FOLDER/<zone>_<type>/<window>.json`, each `{"metadata": {"gap_seconds": SECONDS}, "data": [0 | 1, ...],
"prices": [USD, ...]}`, with one entry per tick. As in the public data of "Can't Be Late"
(https://github.com/FrontierCS/Frontier-CS, research/problems/cant_be_late_multi; 2026-11), 0 means that there is
capacity.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ZONE = re.compile(r"(?P<region>[a-z]{2}(?:-[a-z]+)+-\d)[a-z]")


class WindowError(Exception):
    """A folder of traces cannot be read."""


@dataclass(frozen=True)
class Zone:
    """A zone's capacity and price at each tick of a window."""

    name: str
    region: str
    is_available: tuple[bool, ...]
    usd_per_hour: tuple[float, ...]


@dataclass(frozen=True)
class Window:
    """A period with the recorded capacity of several zones.

    Attributes:
        name: The file's name without its suffix.
        gap_hours: Time between two ticks.
        zones: The zones, sorted by name. All have the same number of ticks.
    """

    name: str
    gap_hours: float
    zones: tuple[Zone, ...]

    @property
    def ticks(self) -> int:
        """Number of ticks."""
        return len(self.zones[0].is_available)

    def only(self, prefix: str) -> Window:
        """Return the window with the zones whose names start with `prefix`, such as a region."""
        return Window(self.name, self.gap_hours, tuple(zone for zone in self.zones if zone.name.startswith(prefix)))

    def without(self, region: str) -> Window:
        """Return the window without the zones of a region."""
        return Window(self.name, self.gap_hours, tuple(zone for zone in self.zones if zone.region != region))


def read_windows(folder: Path) -> list[Window]:
    """Read all windows that exist in every zone, in numerical order.

    Raises:
        WindowError: A file is invalid, or no window exists in every zone; the message lists all problems.
    """
    folders = {match.group(): path for path in sorted(folder.rglob("*")) if (match := _zone(path))}
    if not folders:
        raise WindowError(f"{folder}: no folder is named after a zone, such as us-east-1a_v100_1; see --help")
    names = set.intersection(*({file.stem for file in path.glob("*.json")} for path in folders.values()))
    problems: list[str] = []
    windows: list[Window] = []
    for name in sorted(names, key=lambda text: (len(text), text)):
        try:
            windows.append(_window(name, folders))
        except WindowError as error:
            problems.append(str(error))
    if problems:
        raise WindowError("\n".join(problems))
    if not windows:
        raise WindowError(f"{folder}: no window exists in all of {', '.join(folders)}")
    return windows


def _zone(path: Path) -> re.Match[str] | None:
    return ZONE.match(path.name) if path.is_dir() else None


def _window(name: str, folders: dict[str, Path]) -> Window:
    parts = {zone: _read(path / f"{name}.json") for zone, path in folders.items()}
    gaps = {gap for gap, _, _ in parts.values()}
    ticks = min(len(available) for _, available, _ in parts.values())
    if len(gaps) != 1:
        raise WindowError(f"window {name}: gap_seconds differs between zones: {', '.join(map(str, sorted(gaps)))}")
    zones = tuple(
        Zone(zone, _region(zone), available[:ticks], prices[:ticks]) for zone, (_, available, prices) in parts.items()
    )
    return Window(name, gaps.pop() / 3600.0, zones)


def _region(zone: str) -> str:
    match = ZONE.match(zone)
    assert match is not None
    return match["region"]


def _read(file: Path) -> tuple[float, tuple[bool, ...], tuple[float, ...]]:
    try:
        document: Any = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WindowError(f"{file}: not a JSON file ({error}); remove or correct it") from error
    metadata = document.get("metadata") if isinstance(document, dict) else None
    gap: Any = metadata.get("gap_seconds") if isinstance(metadata, dict) else None
    if not _is_positive(gap):
        raise WindowError(f"{file}: metadata.gap_seconds: {gap!r}: must be above 0")
    data, prices = document.get("data"), document.get("prices")
    if not isinstance(data, list) or not data or any(each not in (0, 1) for each in data):
        raise WindowError(f"{file}: data: must be a list of 0 (capacity) and 1 (no capacity)")
    if not isinstance(prices, list) or len(prices) != len(data) or not all(map(_is_positive, prices)):
        raise WindowError(f"{file}: prices: must be a list of {len(data)} prices above 0; specify traces with prices")
    return float(gap), tuple(each == 0 for each in data), tuple(map(float, prices))


def _is_positive(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
