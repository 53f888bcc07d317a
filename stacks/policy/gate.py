"""The gate, which runs the checkers on every deployment file and prints their findings."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from stacks.constructs.cdk_bootstrap_roles import project_qualifier
from stacks.execution_policy.documents import Deployments, documents
from stacks.execution_policy.needed import needed
from stacks.loading import read
from stacks.policy import nag
from stacks.policy.authorization import Reference, check_documents, check_roles
from stacks.policy.checkov import checkov
from stacks.policy.cloud_assembly import synthesise_for_check
from stacks.policy.explained import SECURITY_PAGE, explained_rules
from stacks.policy.lint import cfn_lint
from stacks.policy.verdicts import Verdict


def run_gate(configs: Sequence[Path], build: Path, checkov_program: Path, reference_environment: Path) -> bool:
    """Check the templates for the given deployment files. Return True if there are no findings.

    Files without stacks are skipped. The execution policy covers fleets.

    Raises:
        ConfigError: A deployment file is invalid.
        CheckovError: checkov is not installed, or did not return a report.
        ReferenceMissing: The Service Authorization Reference is not installed.
    """
    reference = Reference.read(reference_environment)
    shutil.rmtree(build, ignore_errors=True)
    build.mkdir(parents=True)
    counts, explained = nag.rule_counts(), explained_rules()
    verdicts: list[Verdict] = []
    templates: dict[str, Path] = {}
    fleets = []
    for config in configs:
        read_config = read(config)
        if not read_config.stacks:
            print(f"{config}: engine {read_config.engine} has no stacks")
            continue
        if read_config.engine == "fleet":
            fleets.append(read_config)
        print(f"{config}: synthesis, cfn-lint, cdk-nag, authorization", flush=True)
        checked = synthesise_for_check(config, build / config.stem)
        templates |= {f"{config.stem}/{stack}": path for stack, path in checked.templates.items()}
        verdicts += cfn_lint(checked, read_config.region)
        verdicts += nag.solutions(checked, counts[nag.SOLUTIONS])
        verdicts += nag.nist(checked, counts[nag.NIST], explained)
        verdicts += check_roles(checked, reference)
    if fleets:
        deployments = Deployments.of(fleets, qualifier=project_qualifier())
        execution = {f"document {number}": one for number, one in enumerate(documents(needed(), deployments), start=1)}
        verdicts.append(check_documents("execution role", execution, reference))
    print(f"checkov: {len(templates)} templates", flush=True)
    verdicts += checkov(checkov_program, build, templates)
    return _report(verdicts, explained)


def _report(verdicts: Sequence[Verdict], explained: set[str]) -> bool:
    print(f"\n{'template':<42}{'tool':<16}{'run':>6}{'passed':>8}{'suppressed':>12}{'findings':>10}")
    for verdict in sorted(verdicts, key=lambda each: (each.template, each.tool)):
        counts = f"{verdict.run:>6}{verdict.passed:>8}{verdict.suppressed:>12}{len(verdict.findings):>10}"
        print(f"{verdict.template:<42}{verdict.tool:<16}{counts}")
    lines = [str(finding) for verdict in verdicts for finding in verdict.findings]
    unmet = {rule for verdict in verdicts if verdict.tool == nag.NIST for rule in verdict.unmet}
    lines += [
        f"{SECURITY_PAGE}: lists {rule} as not met, but every template meets it" for rule in sorted(explained - unmet)
    ]
    print(
        f"\nNIST 800-53 R5, not met and explained in {SECURITY_PAGE}: {', '.join(sorted(unmet & explained)) or 'none'}"
    )
    print(f"{len(lines)} findings" + "".join(f"\n  {line}" for line in lines))
    return not lines
