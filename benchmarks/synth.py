"""What synthesis and check cost: `python -m benchmarks.synth` writes build/bench/synth.json.

`cdk synth` of the largest example against an empty CDK app, taken in turns in one run; `python -m stacks check`; and
how large templates and user data come out. The empty app is as the CDK's defaults make it, with the validation of
templates that this project leaves to its policy gate; the ratio with it in both is printed too.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CDK = ROOT / "node_modules" / ".bin" / "cdk"
RATIO_BOUND = 1.5
CHECK_BOUND_SECONDS = 2.0
USER_DATA_BOUND_BYTES = 2048
EMPTY_APP = 'import aws_cdk\napp = aws_cdk.App()\naws_cdk.Stack(app, "Empty")\napp.synth()\n'


def seconds_of(command: Sequence[str | Path], directory: Path, **environment: str) -> float:
    """Run a command to its good end, with this added to its environment; return its wall-clock seconds.

    Raises:
        SystemExit: It failed; with what it said.
    """
    started = time.perf_counter()
    done = subprocess.run(
        [str(part) for part in command],
        cwd=directory,
        env={**os.environ, "CDK_DISABLE_CLI_TELEMETRY": "true", **environment},
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return time.perf_counter() - started


def synth(app: str, out: Path, directory: Path, config: Path | None = None, **environment: str) -> float:
    """Run `cdk synth` as a person does; return its seconds."""
    context = [] if config is None else ["--context", f"config={config}"]
    return seconds_of(
        [CDK, "synth", "--all", "--quiet", "--app", app, "--output", out, *context], directory, **environment
    )


def rendered_user_data(template: Mapping[str, Any]) -> list[int]:
    """Return the size in bytes of each launch template's user data, decoded, with tokens at a plausible length."""
    sizes = []
    for resource in template["Resources"].values():
        if resource["Type"] == "AWS::EC2::LaunchTemplate":
            encoded = resource["Properties"]["LaunchTemplateData"]["UserData"]["Fn::Base64"]
            sizes.append(len(_text(encoded).encode()))
    return sizes


def _text(value: Any) -> str:
    """Render a CloudFormation expression: a reference becomes a name as long as those that AWS makes."""
    if isinstance(value, str):
        return value
    if "Fn::Join" in value:
        separator, parts = value["Fn::Join"]
        return str(separator).join(_text(part) for part in parts)
    if "Fn::Sub" in value:
        text = value["Fn::Sub"]
        return re.sub(r"\$\{[^}]*\}", "x" * 12, text if isinstance(text, str) else text[0])
    if value.get("Ref", "").startswith("AWS::"):
        return {"AWS::AccountId": "1" * 12, "AWS::Region": "us-east-1"}.get(value["Ref"], "aws")
    return "x" * 64


def largest_example() -> Path:
    """Return the deployment file with the most text, which uses the most of the project."""
    return max((ROOT / "config").glob("*.yaml"), key=lambda path: path.stat().st_size)


def measure(config: Path, rounds: int) -> dict[str, Any]:
    """Measure in turns, so that what else the machine does falls on both."""
    python = sys.executable
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "empty.py").write_text(EMPTY_APP, encoding="utf-8")
        ours, validated, empty, checks = [], [], [], []
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
            empty.append(synth(f"{python} {directory / 'empty.py'}", directory / "empty", directory))
            ours.append(synth(f"{python} app.py", directory / "ours", ROOT, config))
            validated.append(synth(f"{python} app.py", directory / "ours", ROOT, config, CDK_VALIDATION="true"))
            checks.append(seconds_of([python, "-m", "stacks", "check", config], ROOT))
        return {
            "config": str(config.relative_to(ROOT)),
            "rounds": rounds,
            "synth_seconds": round(statistics.median(ours), 3),
            "empty_app_seconds": round(statistics.median(empty), 3),
            "ratio": _ratio(ours, empty),
            "ratio_with_the_cdks_validation_in_both": _ratio(validated, empty),
            "check_seconds": round(statistics.median(checks), 3),
            "templates": _templates(directory / "ours"),
        }


def _ratio(ours: Sequence[float], empty: Sequence[float]) -> float:
    return round(statistics.median(a / b for a, b in zip(ours, empty, strict=True)), 3)


def _templates(assembly: Path) -> dict[str, Any]:
    found = {}
    for path in sorted(assembly.glob("*.template.json")):
        template = json.loads(path.read_text(encoding="utf-8"))
        found[path.name.removesuffix(".template.json")] = {
            "bytes": path.stat().st_size,
            "resources": len(template["Resources"]),
            "user_data_bytes": rendered_user_data(template),
        }
    return found


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, write; return 1 when a bound is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.synth", description=__doc__)
    parser.add_argument("--config", type=Path, default=largest_example(), help="deployment file (default: the largest)")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of runs (default: 5)")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench" / "synth.json")
    options = parser.parse_args(arguments)
    figures = measure(options.config.resolve(), options.rounds)
    user_data = max(size for each in figures["templates"].values() for size in each["user_data_bytes"] or [0])
    bounds = [
        ("synth against an empty app", figures["ratio"], RATIO_BOUND),
        ("check, seconds", figures["check_seconds"], CHECK_BOUND_SECONDS),
        ("user data, bytes", user_data, USER_DATA_BOUND_BYTES),
    ]
    figures["bounds"] = [
        {"what": what, "value": value, "at_most": most, "met": value <= most} for what, value, most in bounds
    ]
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(figures, indent=2))
    return 0 if all(bound["met"] for bound in figures["bounds"]) else 1


if __name__ == "__main__":
    sys.exit(main())
