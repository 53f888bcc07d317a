"""Runs the CDK app on a deployment file, in this source tree or another, and reads the resulting cloud assembly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from stacks.changes.templates.template_set import StackTemplate, read_cloud_assembly
from stacks.errors import ConfigError, Problem

ROOT = Path(__file__).resolve().parents[3]
DEADLINE_SECONDS = 300


def synthesise(config: Path, context: Mapping[str, str], root: Path = ROOT) -> dict[str, StackTemplate]:
    """Return a deployment file's stacks, synthesized as `cdk deploy` would.

    Args:
        config: The deployment file.
        context: Context values in addition to cdk.json, such as allow-destroy.
        root: The source tree that contains the app.

    Raises:
        ConfigError: The app failed or timed out.
    """
    settings = json.loads((root / "cdk.json").read_text(encoding="utf-8"))["context"]
    with tempfile.TemporaryDirectory() as out:
        merged = json.dumps({**settings, **context, "config": str(config.resolve())})
        environment = {**os.environ, "CDK_OUTDIR": out, "CDK_CONTEXT_JSON": merged}
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
            rule = f"the synthesis timed out after {DEADLINE_SECONDS} s"
            raise ConfigError(str(config), [Problem("the file", str(config), rule, "run `make synth`")]) from error
        if done.returncode:
            stderr = done.stderr.strip()
            message = stderr if stderr.startswith(str(config.resolve())) else stderr.rsplit("\n", 1)[-1]
            rule = f"cannot be synthesized: {message or 'no message'}"
            raise ConfigError(str(config), [Problem("the file", str(config), rule, "run `make synth`")])
        return read_cloud_assembly(Path(out))
