"""Benefit of validation before synthesis: `python -m benchmarks.wrong_configs` writes build/bench/wrong_configs.json.

Loads each invalid deployment file of the test suite, then synthesizes it with the validation rules disabled and runs
cfn-lint on the templates. Files with invalid keys do not produce templates, so a linter cannot detect their errors.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import aws_cdk as cdk

import stacks.deployment as application
from stacks.config import DeploymentConfig
from stacks.errors import BundleError, ConfigError
from stacks.loading import load, read
from stacks.loading.resolution import resolve

ROOT = Path(__file__).resolve().parent.parent
BANK = ROOT / "tests" / "stacks" / "wrong_configs"
TEMPLATES_PER_RUN = 20
RESULT = ROOT / "build" / "bench" / "wrong_configs.json"


@dataclass
class Verdict:
    """Results for one file."""

    name: str
    was_reported: bool
    caught: bool
    template: bool = False
    synthesis: str = ""
    cfn_lint: bool = False


def caught(path: Path) -> bool:
    """Return True if loading the file raises an error with the expected messages."""
    lines = path.read_text(encoding="utf-8").splitlines()
    expected = [line.removeprefix("# expect: ") for line in lines if line.startswith("# expect: ")]
    try:
        load(path)
    except ConfigError as error:
        return all(message in str(error) for message in expected)
    return False


def without_rules(path: Path) -> DeploymentConfig:
    """Read a deployment file without applying the validation rules.

    Raises:
        ConfigError: Its keys or types are invalid, or it is not YAML.
    """
    return resolve(read(path), path)[0]


def synthesise(path: Path, out: Path) -> str:
    """Synthesize a file with the rules disabled; return the error message, empty on success."""
    settings: dict[str, Any] = json.loads((ROOT / "cdk.json").read_text(encoding="utf-8"))["context"]
    try:
        with mock.patch.object(application, "load", without_rules):
            application.synthesise(cdk.App(outdir=str(out), context={**settings, "config": str(path)}))
    except (ConfigError, BundleError) as error:
        return str(error).splitlines()[0]
    except Exception as error:  # noqa: BLE001 - the CDK and the stacks may raise anything for an invalid file
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return ""


def lint(directories: Mapping[str, Path]) -> set[str]:
    """Return the names of the files with templates in which cfn-lint finds an error."""
    by_text: dict[str, list[Path]] = {}  # most errors affect one of four stacks, and linting is slow
    for directory in directories.values():
        for one in directory.glob("*.template.json"):
            by_text.setdefault(one.read_text(encoding="utf-8"), []).append(one)
    program = Path(sys.executable).with_name("cfn-lint")
    wrong: set[Path] = set()
    alike = list(by_text.values())
    for start in range(0, len(alike), TEMPLATES_PER_RUN):
        print(f"cfn-lint: {start} of {len(alike)} distinct templates", file=sys.stderr)
        firsts = {str(paths[0]): paths for paths in alike[start : start + TEMPLATES_PER_RUN]}
        done = subprocess.run([str(program), "--format", "json", *firsts], capture_output=True, text=True)
        if done.returncode & 1:  # other exit codes are sums of 2 (errors), 4 (warnings) and 8 (information)
            sys.exit(f"cfn-lint exited with {done.returncode}: {done.stderr}")
        for found in json.loads(done.stdout or "[]"):
            if found["Level"] == "Error":
                wrong |= {path.parent for path in firsts[found["Filename"]]}
    return {name for name, directory in directories.items() if directory in wrong}


def judge(bank: Path) -> list[Verdict]:
    """Return the results for all files in a folder."""
    verdicts = []
    with tempfile.TemporaryDirectory() as scratch:
        directories: dict[str, Path] = {}
        for path in sorted(bank.glob("*.yaml")):
            one = Verdict(path.stem, "# from: " in path.read_text(encoding="utf-8"), caught(path))
            one.synthesis = synthesise(path, Path(scratch) / path.stem)
            one.template = not one.synthesis
            if one.template:
                directories[path.stem] = Path(scratch) / path.stem
            verdicts.append(one)
            print(
                f"{path.stem}: {'caught' if one.caught else 'MISSED'}; {one.synthesis or 'templates'}", file=sys.stderr
            )
        found = lint(directories)
    for one in verdicts:
        one.cfn_lint = one.name in found
    return verdicts


def summary(verdicts: list[Verdict]) -> dict[str, Any]:
    """Return the shares of detected errors, among all files and among the files with templates."""
    total, with_template = len(verdicts), [one for one in verdicts if one.template]
    return {
        "files": total,
        "reported_by_others": sum(one.was_reported for one in verdicts),
        "caught": sum(one.caught for one in verdicts),
        "caught_share": sum(one.caught for one in verdicts) / total,
        "with_templates": len(with_template),
        "cfn_lint": sum(one.cfn_lint for one in with_template),
        "cfn_lint_share_of_templates": sum(one.cfn_lint for one in with_template) / max(1, len(with_template)),
        "cfn_lint_share_of_files": sum(one.cfn_lint for one in with_template) / total,
        "verdicts": [vars(one) for one in verdicts],
    }


def main() -> int:
    """Run the benchmark; return 0 if all files are rejected."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "bank", nargs="?", type=Path, default=BANK, help="folder of invalid files (default: the tests' folder)"
    )
    options = parser.parse_args()
    if not list(options.bank.glob("*.yaml")):
        parser.error(f"{options.bank}: contains no *.yaml files")
    figures = summary(judge(options.bank))
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    print(f"{figures['files']} invalid files, {figures['reported_by_others']} of them from public reports")
    print(f"detected before synthesis: {figures['caught']} ({figures['caught_share']:.0%})")
    print(
        f"with templates if the rules are disabled: {figures['with_templates']}; cfn-lint detects an error in "
        f"{figures['cfn_lint']} of these ({figures['cfn_lint_share_of_templates']:.0%}), "
        f"{figures['cfn_lint_share_of_files']:.0%} of all files"
    )
    print(f"wrote {RESULT.relative_to(ROOT)}")
    return 0 if figures["caught"] == figures["files"] else 1


if __name__ == "__main__":
    sys.exit(main())
