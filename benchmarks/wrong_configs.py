"""What a check before synthesis is worth: `python -m benchmarks.wrong_configs` writes build/bench/wrong_configs.json.

Each wrong deployment file of the bank is given to `stacks`; then it is synthesised with the rules switched off, and
cfn-lint looks at the templates alone. Files whose keys are wrong give no template at all: no linter would see them.
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

import app as application
from stacks.config import DeploymentConfig, load, read
from stacks.errors import BundleError, ConfigError
from stacks.resolution import resolve

ROOT = Path(__file__).resolve().parent.parent
BANK = ROOT / "tests" / "stacks" / "wrong_configs"
TEMPLATES_A_RUN = 20
RESULT = ROOT / "build" / "bench" / "wrong_configs.json"


@dataclass
class Verdict:
    """What is known of one wrong file."""

    name: str
    from_others: bool
    caught: bool
    template: bool = False
    synthesis: str = ""
    cfn_lint: bool = False


def caught(path: Path) -> bool:
    """Tell whether the file is refused with the words that the bank expects."""
    lines = path.read_text(encoding="utf-8").splitlines()
    expected = [line.removeprefix("# expect: ") for line in lines if line.startswith("# expect: ")]
    try:
        load(path)
    except ConfigError as error:
        return all(words in str(error) for words in expected)
    return False


def without_rules(path: Path) -> DeploymentConfig:
    """Read a deployment file without the rules across its sections.

    Raises:
        ConfigError: Its keys are wrong, or it is no YAML.
    """
    return resolve(read(path), path)[0]


def synthesise(path: Path, out: Path) -> str:
    """Make the templates of a file with the rules off; return why there are none, empty when there are."""
    settings: dict[str, Any] = json.loads((ROOT / "cdk.json").read_text(encoding="utf-8"))["context"]
    try:
        with mock.patch.object(application, "load", without_rules):
            application.synthesise(cdk.App(outdir=str(out), context={**settings, "config": str(path)}))
    except (ConfigError, BundleError) as error:
        return str(error).splitlines()[0]
    except Exception as error:  # noqa: BLE001 - whatever the CDK or our stacks make of nonsense: the file gives no template
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return ""


def lint(directories: Mapping[str, Path]) -> set[str]:
    """Return the names of the files in whose templates cfn-lint alone finds an error."""
    by_text: dict[str, list[Path]] = {}  # most mistakes touch one stack of four, and linting is slow
    for directory in directories.values():
        for one in directory.glob("*.template.json"):
            by_text.setdefault(one.read_text(encoding="utf-8"), []).append(one)
    program = Path(sys.executable).with_name("cfn-lint")
    wrong: set[Path] = set()
    alike = list(by_text.values())
    for start in range(0, len(alike), TEMPLATES_A_RUN):
        print(f"cfn-lint: {start} of {len(alike)} different templates", file=sys.stderr)
        firsts = {str(paths[0]): paths for paths in alike[start : start + TEMPLATES_A_RUN]}
        done = subprocess.run([str(program), "--format", "json", *firsts], capture_output=True, text=True)
        if done.returncode & 1:  # its codes are sums of 2, 4 and 8: errors, warnings, information
            sys.exit(f"cfn-lint ended with {done.returncode}: {done.stderr}")
        for found in json.loads(done.stdout or "[]"):
            if found["Level"] == "Error":
                wrong |= {path.parent for path in firsts[found["Filename"]]}
    return {name for name, directory in directories.items() if directory in wrong}


def judge(bank: Path) -> list[Verdict]:
    """Return the verdict on every file of a bank."""
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
    """Return the shares, over all files and over those that give templates."""
    total, with_template = len(verdicts), [one for one in verdicts if one.template]
    return {
        "files": total,
        "from_others": sum(one.from_others for one in verdicts),
        "caught": sum(one.caught for one in verdicts),
        "caught_share": sum(one.caught for one in verdicts) / total,
        "give_templates": len(with_template),
        "cfn_lint_alone": sum(one.cfn_lint for one in with_template),
        "cfn_lint_share_of_templates": sum(one.cfn_lint for one in with_template) / max(1, len(with_template)),
        "cfn_lint_share_of_files": sum(one.cfn_lint for one in with_template) / total,
        "verdicts": [vars(one) for one in verdicts],
    }


def main() -> int:
    """Judge the bank; return 0 when every file is caught."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bank", nargs="?", type=Path, default=BANK, help="folder of wrong files (default: the tests')")
    options = parser.parse_args()
    if not list(options.bank.glob("*.yaml")):
        parser.error(f"{options.bank}: no *.yaml there")
    figures = summary(judge(options.bank))
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    print(f"{figures['files']} wrong files, {figures['from_others']} of them mistakes that others reported")
    print(f"caught before synthesis: {figures['caught']} ({figures['caught_share']:.0%})")
    print(
        f"give templates with the rules off: {figures['give_templates']}; cfn-lint alone finds an error in "
        f"{figures['cfn_lint_alone']} of these ({figures['cfn_lint_share_of_templates']:.0%}), "
        f"{figures['cfn_lint_share_of_files']:.0%} of all files"
    )
    print(f"wrote {RESULT.relative_to(ROOT)}")
    return 0 if figures["caught"] == figures["files"] else 1


if __name__ == "__main__":
    sys.exit(main())
