"""Runs a pod as a process, with the stand-in trainer instead of the launcher."""

from __future__ import annotations

import logging
import os
import sys

from bootstrap.kubernetes.__main__ import run
from bootstrap.kubernetes.pod import PodSystem
from tests.bootstrap.node_process import direct

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    code = run(PodSystem(), direct)
    sys.stdout.flush()
    os._exit(code)
