"""Where the node keeps its files, all under one root. See docs/architecture.md, section 4."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DEFAULT_ROOT = "/opt/trainstack"


@dataclass(frozen=True)
class Layout:
    """Paths under the node's root directory."""

    root: Path

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], root: str | None = None) -> Layout:
        """Return the layout under `root`, else under TRAINSTACK_ROOT, else under /opt/trainstack."""
        return cls(Path(root or environment.get("TRAINSTACK_ROOT") or DEFAULT_ROOT).absolute())

    @property
    def node_document(self) -> Path:
        """The node document."""
        return self.root / "node.json"

    @property
    def state(self) -> Path:
        """Markers of boot steps, and the supervisor's memory."""
        return self.root / "state"

    @property
    def events(self) -> Path:
        """Every event of this node, one JSON object a line."""
        return self.root / "events.jsonl"

    @property
    def supervisor_state(self) -> Path:
        """What the supervisor remembers over its own restart."""
        return self.state / "supervisor.json"

    def marker(self, step: str) -> Path:
        """The done marker of a boot step."""
        return self.state / f"{step}.done"

    def bundle(self, sha256: str) -> Path:
        """The unpacked node bundle."""
        return self.root / "bundle" / sha256

    def wheelhouse(self, sha256: str) -> Path:
        """The unpacked wheelhouse."""
        return self.root / "wheelhouse" / sha256

    def environment(self, sha256: str) -> Path:
        """The virtual environment into which a wheelhouse is installed."""
        return self.root / "python" / sha256

    def code(self, sha256: str) -> Path:
        """The unpacked code bundle."""
        return self.root / "code" / sha256

    @property
    def datasets(self) -> Path:
        """Staged datasets; where the machine's local disks are mounted."""
        return self.root / "datasets"

    def dataset(self, name: str) -> Path:
        """The staged dataset."""
        return self.datasets / name

    @property
    def prepared_dataset(self) -> Path:
        """The name, under datasets/ of the bucket, of the prepared data that the staged dataset is."""
        return self.state / "prepared_dataset"

    def run_directory(self, run: str, generation: int) -> Path:
        """The run directory of a generation."""
        return self.root / "runs" / run / f"gen-{generation}"
