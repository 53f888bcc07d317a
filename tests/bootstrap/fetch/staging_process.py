"""Staging as a process: `python -m tests.bootstrap.fetch.staging_process ROOT PART_BYTES`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bootstrap.boot_steps.staging import stage_dataset
from bootstrap.documents import NodeDocument, RunDocument
from bootstrap.fetch import large, transfer
from tests.bootstrap.prepared_node import node_context

CONNECTIONS = 16


def main(root: Path, part_bytes: int) -> None:
    large.PART_BYTES = transfer.LARGE_BYTES = part_bytes
    large.MIN_CONNECTIONS = CONNECTIONS
    node = NodeDocument.from_json(json.loads((root / "node.json").read_text()))
    run = RunDocument.from_json(json.loads((root / "run.json").read_text()))
    stage_dataset(node_context(root, "i-1", node, run), run)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
