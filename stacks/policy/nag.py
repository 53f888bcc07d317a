"""Runs two cdk-nag rule packs.

AwsSolutions uses the suppressions in the stacks. NIST 800-53 R5 uses the explanations in docs/security.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_sns as sns
from cdk_nag import AwsSolutionsChecks, NagPack, NIST80053R5Checks

from stacks.policy.cloud_assembly import CheckedApp
from stacks.policy.verdicts import Finding, Verdict

SOLUTIONS, NIST = "AwsSolutions", "NIST.800.53.R5"
_PARTS = re.compile(r"^(?P<rule>[^\[]+)(?:\[(?P<part>.*)\])?$", re.DOTALL)


def rule_counts() -> dict[str, int]:
    """Return the number of rules that each pack applies to a resource.

    No API returns this number, so the function counts the rules that apply to a single resource.
    """

    class CountedSolutions(AwsSolutionsChecks):
        applied = 0

        def _apply_rule(self, params: Any) -> None:
            self.applied += 1

    class CountedNist(NIST80053R5Checks):
        applied = 0

        def _apply_rule(self, params: Any) -> None:
            self.applied += 1

    stack = cdk.Stack()
    sns.CfnTopic(stack, "Any")
    counts = {}
    for name, pack in ((SOLUTIONS, CountedSolutions()), (NIST, CountedNist())):
        pack.validate_scope(stack)
        counts[name] = pack.applied
    return counts


def accepted(resource: Mapping[str, Any], rule: str, part: str | None) -> bool:
    """Return True if a resource's metadata suppresses a rule or the given part of it."""
    for entry in resource.get("Metadata", {}).get("cdk_nag", {}).get("rules_to_suppress", []):
        if entry["id"] != rule or not entry["reason"].strip():
            continue
        patterns = [each["regex"].strip("/") for each in entry.get("applies_to", [])]
        if not patterns or (part is not None and any(re.search(pattern, part, re.DOTALL) for pattern in patterns)):
            return True
    return False


def solutions(checked: CheckedApp, rules: int) -> list[Verdict]:
    """Return the AwsSolutions verdict on each template."""
    return _verdicts(checked, SOLUTIONS, AwsSolutionsChecks(), rules)


def nist(checked: CheckedApp, rules: int, explained: set[str]) -> list[Verdict]:
    """Return the NIST 800-53 R5 verdict on each template. Explained rules are treated as suppressed."""
    return _verdicts(checked, NIST, NIST80053R5Checks(), rules, explained)


def _verdicts(
    checked: CheckedApp, tool: str, pack: NagPack, rules: int, explained: set[str] | None = None
) -> list[Verdict]:
    verdicts = {stack: Verdict(tool, f"{checked.label}/{stack}", rules) for stack in checked.templates}
    settled: dict[str, set[str]] = {stack: set() for stack in verdicts}
    for violation in pack.validate_scope(checked.app).violations:
        match = _PARTS.match(violation.rule_name)
        assert match is not None, violation.rule_name
        rule, part = match["rule"], match["part"]
        for place in violation.violating_resources:
            assert place.construct_path is not None
            stack, logical_id = checked.locate(place.construct_path)
            verdict = verdicts[stack]
            verdict.unmet.add(rule)
            settles = (
                rule in explained
                if explained is not None
                else accepted(checked.resources[stack][logical_id], rule, part)
            )
            if settles:
                settled[stack].add(rule)
            else:
                message = f"{violation.description} {part or ''}".strip()
                verdict.findings.append(Finding(tool, verdict.template, rule, logical_id, message))
    for stack, verdict in verdicts.items():
        verdict.suppressed = len(settled[stack] - {finding.rule for finding in verdict.findings})
    return list(verdicts.values())
