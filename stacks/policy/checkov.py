"""checkov: a program in an environment of its own, run once over all templates."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from stacks.policy.verdicts import Finding, Verdict

TOOL = "checkov"
TIMEOUT_SECONDS = 900


class CheckovError(RuntimeError):
    """checkov is not there, or did not answer."""


def checkov(program: Path, directory: Path, templates: dict[str, Path]) -> list[Verdict]:
    """Return what checkov says of templates under a directory; `templates` by label.

    Raises:
        CheckovError: The program is not installed, or its answer is not a report on these templates.
    """
    if not program.exists():
        raise CheckovError(f"{program}: is not there; `make policy` installs it from policy/requirements-checkov.txt")
    # No download: it would ask a service of its maker's for severities that nothing here uses.
    command = [str(program), "--framework", "cloudformation", "--directory", str(directory), "--output", "json"]
    done = subprocess.run(
        [*command, "--skip-download", "--soft-fail"], capture_output=True, text=True, timeout=TIMEOUT_SECONDS
    )
    try:
        report: dict[str, Any] = json.loads(done.stdout)
        results = report["results"]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckovError(f"{program}: gave no report (code {done.returncode}): {done.stderr[-2000:]}") from error
    if report["summary"]["parsing_errors"]:
        raise CheckovError(f"{program}: cannot parse {', '.join(results['parsing_errors'])}")
    verdicts = {path.resolve(): Verdict(TOOL, label) for label, path in templates.items()}
    for kind in ("passed_checks", "failed_checks", "skipped_checks"):
        for check in results[kind]:
            verdict = verdicts.get(Path(check["file_abs_path"]).resolve())
            if verdict is None:
                continue  # of a pipeline's stage: checked as the deployment that it is
            verdict.run += 1
            if kind == "skipped_checks":
                verdict.suppressed += 1
            elif kind == "failed_checks":
                verdict.findings.append(
                    Finding(TOOL, verdict.template, check["check_id"], check["resource"], check["check_name"])
                )
    return list(verdicts.values())
