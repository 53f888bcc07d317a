"""Runs the CDK app on a deployment file, in this tree or in another one, and reads what it writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from stacks.changes.assembly import StackTemplate, read_assembly
from stacks.errors import ConfigError, Problem

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_SECONDS = 300


def synthesise(config: Path, context: Mapping[str, str], root: Path = ROOT) -> dict[str, StackTemplate]:
    """Return the stacks of a deployment file, as `cdk deploy` would make them.

    Args:
        config: The deployment file.
        context: Settings besides those of cdk.json, such as allow-destroy.
        root: The tree whose app runs.

    Raises:
        ConfigError: The app refused, or did not end in time.
    """
    settings = json.loads((root / "cdk.json").read_text(encoding="utf-8"))["context"]
    with tempfile.TemporaryDirectory() as out:
        told = json.dumps({**settings, **context, "config": str(config.resolve())})
        environment = {**os.environ, "CDK_OUTDIR": out, "CDK_CONTEXT_JSON": told}
        try:
            done = subprocess.run(
                [sys.executable, "app.py"],
                cwd=root,
                env=environment,
                capture_output=True,
                text=True,
                timeout=DEADLINE_SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            rule = f"its synthesis has not ended within {DEADLINE_SECONDS} s"
            raise ConfigError(str(config), [Problem("the file", str(config), rule, "see `make synth`")]) from error
        if done.returncode:
            told = done.stderr.strip()
            tail = told if told.startswith(str(config.resolve())) else told.rsplit("\n", 1)[-1]
            rule = f"cannot be synthesised: {tail or 'no message'}"
            raise ConfigError(str(config), [Problem("the file", str(config), rule, "see `make synth`")])
        return read_assembly(Path(out))
