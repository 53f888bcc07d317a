"""Every option that docs, workflows and code pass to the CDK CLI exists: the CLI only warns about unknown options."""

from __future__ import annotations

import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CDK = ROOT / "node_modules" / ".bin" / "cdk"
VERBS = ("bootstrap", "deploy", "destroy", "diff", "synth")
COMMAND = re.compile(rf"(?<![\w/-])(?:\$\(CDK\)|(?:node_modules/\.bin/)?cdk) ({'|'.join(VERBS)})\b([^\n`|;&]*)")
LIST = re.compile(rf'\[(?:[^\[\]]*\bCDK\)?,\s*)?"({"|".join(VERBS)})",((?:[^\[\]]|\[[^\[\]]*\])*)\]')
"""A list of arguments in Python."""
OPTION = re.compile(r"(?<!\S)(?:--[a-z][a-z-]*|-[a-z])(?![\w-])")


def used_options() -> set[tuple[str, str, str]]:
    """Return all (file, command, option) that a file passes to the CDK CLI."""
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    found = set()
    for name in names:
        if re.fullmatch(r"Makefile|.*\.(md|ya?ml|sh)", name):
            text = (ROOT / name).read_text(encoding="utf-8")
            text = re.sub(r"\\\n\s*", " ", text)  # lines that continue
        elif name.endswith(".py") and not name.startswith("tests/"):
            text = (ROOT / name).read_text(encoding="utf-8")
            text = re.sub(r'"\n\s*f?"', "", text)  # strings that continue
        else:
            continue
        for verb, rest in [*COMMAND.findall(text), *LIST.findall(text)]:
            found |= {(name, verb, option) for option in OPTION.findall(re.sub(r"[\"',#]", " ", rest))}
    return found


def known_options(verb: str) -> set[str]:
    """Return the options that the CLI's help lists for a command."""
    environment = {**os.environ, "CDK_DISABLE_CLI_TELEMETRY": "true", "NO_COLOR": "1"}
    command = [str(CDK), verb, "--help"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    listed = [line.strip() for line in done.stdout.splitlines() if re.match(r"  -", line)]
    return {option for line in listed for option in OPTION.findall(line.replace(",", " "))}


@pytest.mark.skipif(not CDK.exists(), reason="node_modules is absent: npm ci")
def test_every_option_of_a_cdk_command_exists() -> None:
    used = used_options()
    assert {verb for _, verb, _ in used} == set(VERBS)
    files = {name for name, _, _ in used}
    assert {"Makefile", ".github/workflows/deploy.yml", "stacks/constructs/delivery/delivery_pipeline.py"} <= files
    assert {"docs/runbook.md", "stacks/delivery/deploy.py"} <= files
    with ThreadPoolExecutor(max_workers=2) as pool:
        known = dict(zip(VERBS, pool.map(known_options, VERBS), strict=True))
    assert "--all" in known["deploy"] and "--all" not in known["synth"]
    unknown = sorted((name, f"cdk {verb} {option}") for name, verb, option in used if option not in known[verb])
    assert not unknown
