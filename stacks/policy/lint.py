"""Runs cfn-lint. Every error and warning is a finding."""

from __future__ import annotations

from cfnlint.api import lint
from cfnlint.core import get_rules

from stacks.policy.cloud_assembly import CheckedApp
from stacks.policy.verdicts import Finding, Verdict

TOOL = "cfn-lint"


def cfn_lint(checked: CheckedApp, region: str) -> list[Verdict]:
    """Return cfn-lint's verdict on each template for the deployment's region."""
    rules = get_rules([], [], ["W", "E"])
    result = []
    for stack, path in checked.templates.items():
        verdict = Verdict(TOOL, f"{checked.label}/{stack}", len(rules))
        for match in lint(path.read_text(), rules, [region]):
            place = "/".join(str(part) for part in getattr(match, "path", None) or [])
            verdict.findings.append(Finding(TOOL, verdict.template, match.rule.id, place, match.message))
        result.append(verdict)
    return result
