"""The settings of the life-cycle script: a JSON file next to it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

COMPUTE = "nodes"
"""Instance group whose nodes train."""


@dataclass(frozen=True)
class Settings:
    """What a node must have, and where it reports.

    Attributes:
        deployment: Name of the deployment.
        region: AWS region of the bucket.
        reports: Location of the reports, as s3://BUCKET/PREFIX.
        gpus: GPUs per node of the group `nodes`.
        adapters: Least number of EFA adapters per node of the group `nodes`; 0: the nodes use TCP.
        shared_folder: Folder on the shared file system; empty: none.
    """

    deployment: str
    region: str
    reports: str
    gpus: int
    adapters: int
    shared_folder: str

    def to_text(self) -> str:
        """Return the settings as JSON."""
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"


def read_settings(path: Path) -> Settings:
    """Read the settings.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file does not contain settings.
    """
    values = json.loads(path.read_text(encoding="utf-8"))
    try:
        return Settings(**values)
    except TypeError as error:
        raise ValueError(f"{path}: {error}; deploy again with `trainstack up`") from error
