"""The node's file layout under one root directory. See docs/architecture.md, section 4."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DEFAULT_ROOT = "/opt/trainstack"
TRAINER_MARK = "TRAINSTACK_TRAINER_OF"
"""Environment variable with the root directory in a supervisor's processes. A new supervisor kills leftover
processes."""


@dataclass(frozen=True)
class Layout:
    """Paths under the root directory."""

    root: Path

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], root: str | None = None) -> Layout:
        """Return the layout under `root`, TRAINSTACK_ROOT or /opt/trainstack, whichever is set first."""
        return cls(Path(root or environment.get("TRAINSTACK_ROOT") or DEFAULT_ROOT).absolute())

    @property
    def node_document(self) -> Path:
        """The node document."""
        return self.root / "node.json"

    @property
    def state(self) -> Path:
        """The boot steps' markers and the supervisor's saved state."""
        return self.root / "state"

    @property
    def events(self) -> Path:
        """This node's events, one JSON object per line."""
        return self.root / "events.jsonl"

    @property
    def supervisor_state(self) -> Path:
        """State that the supervisor keeps across restarts."""
        return self.state / "supervisor.json"

    def marker(self, step: str) -> Path:
        """A boot step's completion marker."""
        return self.state / f"{step}.done"

    def bundle(self, sha256: str) -> Path:
        """The unpacked node bundle."""
        return self.root / "bundle" / sha256

    def wheelhouse(self, sha256: str) -> Path:
        """The unpacked wheelhouse."""
        return self.root / "wheelhouse" / sha256

    def environment(self, sha256: str) -> Path:
        """A wheelhouse's virtual environment."""
        return self.root / "python" / sha256

    def code(self, sha256: str) -> Path:
        """The unpacked code bundle."""
        return self.root / "code" / sha256

    @property
    def datasets(self) -> Path:
        """Staged datasets, and the mount point for the local disks."""
        return self.root / "datasets"

    def dataset(self, name: str) -> Path:
        """The staged dataset."""
        return self.datasets / name

    @property
    def prepared_dataset(self) -> Path:
        """File that names the staged prepared data, relative to datasets/ in the bucket."""
        return self.state / "prepared_dataset"

    def run_directory(self, run: str, generation: int) -> Path:
        """A generation's run directory."""
        return self.root / "runs" / run / f"gen-{generation}"
