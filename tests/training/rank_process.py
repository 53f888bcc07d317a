"""A rank in a process forked from a server that has already imported torch, so that a start takes milliseconds."""

from __future__ import annotations

import os
import sys
from pathlib import Path

PRELOADED = ["training.loop.trainer", "training.config", "torch._dynamo", "training.checkpoint.storage.s3"]


def run_rank(arguments: list[str], environment: dict[str, str], stderr: str) -> None:
    """Run a trainer process, like `python -m training`."""
    os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)  # set by the import of torch._dynamo, which a trainer imports later
    os.environ.update(environment)
    descriptor = os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 2)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    os.chdir(Path(stderr).parent)
    sys.path[:0] = environment.get("PYTHONPATH", "").split(os.pathsep)
    from training.__main__ import main

    sys.exit(main(arguments))
