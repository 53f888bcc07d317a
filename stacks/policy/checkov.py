"""Runs checkov once on all templates. checkov is installed in a separate environment."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from stacks.policy.verdicts import Finding, Verdict

TOOL = "checkov"
TIMEOUT_SECONDS = 900


class CheckovError(RuntimeError):
    """checkov is not installed, or did not return a report."""


def checkov(program: Path, directory: Path, templates: dict[str, Path]) -> list[Verdict]:
    """Return checkov's verdicts on the templates in a directory. `templates` maps labels to paths.

    Raises:
        CheckovError: The program is not installed, or its output is not a report on the given templates.
    """
    if not program.exists():
        raise CheckovError(f"{program}: does not exist; `make policy` installs it from policy/requirements-checkov.txt")
    # Downloads are disabled. checkov would fetch severities from its vendor, and the gate does not use them.
    command = [str(program), "--framework", "cloudformation", "--directory", str(directory), "--output", "json"]
    done = subprocess.run(
        [*command, "--skip-download", "--soft-fail"], capture_output=True, text=True, timeout=TIMEOUT_SECONDS
    )
    try:
        report: dict[str, Any] = json.loads(done.stdout)
        results = report["results"]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckovError(f"{program}: no report (exit code {done.returncode}): {done.stderr[-2000:]}") from error
    if report["summary"]["parsing_errors"]:
        raise CheckovError(f"{program}: cannot parse {', '.join(results['parsing_errors'])}")
    verdicts = {path.resolve(): Verdict(TOOL, label) for label, path in templates.items()}
    for kind in ("passed_checks", "failed_checks", "skipped_checks"):
        for check in results[kind]:
            verdict = verdicts.get(Path(check["file_abs_path"]).resolve())
            if verdict is None:
                continue  # belongs to a pipeline stage, which is checked as a separate deployment
            verdict.run += 1
            if kind == "skipped_checks":
                verdict.suppressed += 1
            elif kind == "failed_checks":
                verdict.findings.append(
                    Finding(TOOL, verdict.template, check["check_id"], check["resource"], check["check_name"])
                )
    return list(verdicts.values())
