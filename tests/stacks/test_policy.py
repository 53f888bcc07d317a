"""Policy gate: findings, and suppressions that need a reason and cover only the named part."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import pytest
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3

from stacks.constructs.permissions_boundary import WITHOUT_RESOURCE_LEVEL
from stacks.constructs.suppressions import suppress
from stacks.policy import nag
from stacks.policy.checkov import CheckovError, checkov
from stacks.policy.cloud_assembly import CheckedApp
from stacks.policy.explained import explained_rules
from stacks.policy.lint import cfn_lint

from .conftest import CONFIGS, ROOT, Synthesis
from .test_permissions_boundary import stacks_of


def sample(directory: Path, reason: str | None, part: str) -> CheckedApp:
    """Return an app whose role has two bucket prefixes; `reason` suppresses the one that matches `part`."""
    app = cdk.App(outdir=str(directory))
    stack = cdk.Stack(app, "Sample")
    role = iam.Role(stack, "Role", assumed_by=iam.ServicePrincipal("ec2.amazonaws.com"))
    for prefix in ("runs", "nodes"):
        role.add_to_policy(iam.PolicyStatement(actions=["s3:GetObject"], resources=[f"arn:aws:s3:::b/{prefix}/*"]))
    if reason is not None:
        suppress(role.node.find_child("DefaultPolicy"), "AwsSolutions-IAM5", reason, applies_to=[part])
    s3.CfnBucket(stack, "Bucket")
    app.synth()
    return CheckedApp("sample", app, directory)


def findings(checked: CheckedApp) -> set[tuple[str, str]]:
    verdict = nag.solutions(checked, 131)[0]
    return {(found.rule, found.resource) for found in verdict.findings}


def test_suppression_covers_only_the_named_part(tmp_path: Path) -> None:
    bare = findings(sample(tmp_path / "a", None, ""))
    assert ("AwsSolutions-S1", "Bucket") in bare
    wildcards = {found for found in bare if found[0] == "AwsSolutions-IAM5"}
    assert wildcards
    assert findings(sample(tmp_path / "b", "one prefix", r"Resource::.*/runs/\*")) == bare  # nodes/* is still a finding
    assert findings(sample(tmp_path / "c", "both", r"Resource::.*/(runs|nodes)/\*")) == bare - wildcards
    assert findings(sample(tmp_path / "d", " ", r"Resource::.*/(runs|nodes)/\*")) == bare  # needs a reason


def test_rule_counts_match_the_packs() -> None:
    counts = nag.rule_counts()
    assert counts[nag.SOLUTIONS] > 100 and counts[nag.NIST] > 60


def test_cfn_lint_reports_findings(tmp_path: Path) -> None:
    app = cdk.App(outdir=str(tmp_path))
    cdk.CfnResource(cdk.Stack(app, "Bad"), "Bucket", type="AWS::S3::Bucket", properties={"BucketNam": "x"})
    app.synth()
    verdict = cfn_lint(CheckedApp("bad", app, tmp_path), "us-east-1")[0]
    assert [found.rule for found in verdict.findings] == ["E3002"]
    assert verdict.passed == verdict.run - 1


def stand_in(path: Path, answer: str) -> Path:
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_checkov_report_becomes_counts_per_template(tmp_path: Path) -> None:
    template = tmp_path / "x.template.json"
    template.write_text("{}")

    def check(rule: str) -> dict[str, Any]:
        return {"check_id": rule, "check_name": "n", "resource": "r", "file_abs_path": str(template)}

    report = {
        "summary": {"parsing_errors": 0},
        "results": {
            "passed_checks": [check("CKV_1"), check("CKV_2")],
            "failed_checks": [check("CKV_3")],
            "skipped_checks": [check("CKV_4")],
        },
    }
    program = stand_in(tmp_path / "checkov", json.dumps(report))
    verdict = checkov(program, tmp_path, {"x": template})[0]
    assert (verdict.run, verdict.passed, verdict.suppressed, verdict.failed) == (4, 2, 1, 1)
    assert verdict.findings[0].rule == "CKV_3"


def test_missing_or_failing_checkov_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckovError, match="make policy"):
        checkov(tmp_path / "none", tmp_path, {})
    with pytest.raises(CheckovError, match="no report"):
        checkov(stand_in(tmp_path / "checkov", "Traceback"), tmp_path, {})


@pytest.fixture(scope="module")
def checked(synthesis: Synthesis) -> list[CheckedApp]:
    return [
        CheckedApp(name, assembly.app, assembly.directory)
        for name in CONFIGS
        if (assembly := synthesis.of(name)).app is not None
    ]


def test_each_template_passes_aws_solutions(checked: list[CheckedApp]) -> None:
    assert len(checked) == len(CONFIGS)
    found = [str(finding) for app in checked for verdict in nag.solutions(app, 1) for finding in verdict.findings]
    assert found == []


def test_security_page_lists_exactly_the_unmet_nist_rules(checked: list[CheckedApp]) -> None:
    unmet = {rule for app in checked for verdict in nag.nist(app, 1, set()) for rule in verdict.unmet}
    assert explained_rules(ROOT / "docs" / "security.md") == unmet


@pytest.mark.parametrize("name", CONFIGS)
def test_no_wildcard_actions_and_star_resources_only_without_resource_level(synthesis: Synthesis, name: str) -> None:
    assembly = synthesis.of(name)
    wide = []
    for stack in stacks_of(assembly):
        for item in assembly.resources(stack).values():
            if item["Type"] not in ("AWS::IAM::Policy", "AWS::IAM::ManagedPolicy"):
                continue
            for statement in item["Properties"]["PolicyDocument"]["Statement"]:
                actions = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
                assert "NotAction" not in statement and "NotResource" not in statement
                if statement["Effect"] == "Deny":
                    continue
                wide += [action for action in actions if action == "*" or action.endswith(":*")]
                if statement["Resource"] == "*":
                    wide += sorted(set(actions) - set(WITHOUT_RESOURCE_LEVEL))
    assert wide == []
