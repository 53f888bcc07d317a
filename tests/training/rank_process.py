"""One rank, in a process forked from a server that has imported torch already: a start costs milliseconds."""

from __future__ import annotations

import os
import sys
from pathlib import Path

PRELOADED = ["training.trainer", "training.config", "torch._dynamo", "training.checkpoint.s3"]


def run_rank(arguments: list[str], environment: dict[str, str], stderr: str) -> None:
    """Be a trainer process, as if started by `python -m training`."""
    os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)  # importing torch._dynamo sets it; no trainer does that early
    os.environ.update(environment)
    descriptor = os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 2)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    os.chdir(Path(stderr).parent)
    sys.path[:0] = environment.get("PYTHONPATH", "").split(os.pathsep)
    from training.__main__ import main

    sys.exit(main(arguments))
