"""Duration of synthesis and `stacks check`: `python -m benchmarks.synth` writes build/bench/synth.json.

Alternately times `cdk synth` (for an example with several volumes and for an empty CDK app) and `stacks check`. Also
reports the sizes of templates and user data. The empty app uses the CDK's defaults, which include template validation;
this project validates templates in its policy gate instead. The report also includes the ratio with that validation
enabled in both.
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
EXAMPLE = ROOT / "config" / "volumes.yaml"
"""The example with the longest node document: a dataset volume, a checkpoint volume and a shared volume."""
CDK = ROOT / "node_modules" / ".bin" / "cdk"
RATIO_BOUND = 1.5
CHECK_BOUND_SECONDS = 2.0
# The limit is 16,384 bytes before encoding, half of which node.python.packages may use. The node document has about
# 180 bytes per volume, and the example has three volumes.
# Source (2026-11): https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/user-data.html
USER_DATA_BOUND_BYTES = 2560
EMPTY_APP = 'import aws_cdk\napp = aws_cdk.App()\naws_cdk.Stack(app, "Empty")\napp.synth()\n'


def seconds_of(command: Sequence[str | Path], directory: Path, **environment: str) -> float:
    """Run a command with additional environment variables; return its wall-clock time in seconds.

    Raises:
        SystemExit: The command failed; the message includes its output.
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
        sys.exit(f"{' '.join(map(str, command))} exited with {done.returncode}:\n{done.stdout}{done.stderr}")
    return time.perf_counter() - started


def synth(app: str, out: Path, directory: Path, config: Path | None = None, **environment: str) -> float:
    """Run `cdk synth`; return its duration in seconds."""
    context = [] if config is None else ["--context", f"config={config}"]
    return seconds_of([CDK, "synth", "--quiet", "--app", app, "--output", out, *context], directory, **environment)


def rendered_user_data(template: Mapping[str, Any]) -> list[int]:
    """Return each launch template's decoded user data size, in bytes, with tokens of typical length."""
    sizes = []
    for resource in template["Resources"].values():
        if resource["Type"] == "AWS::EC2::LaunchTemplate":
            encoded = resource["Properties"]["LaunchTemplateData"]["UserData"]["Fn::Base64"]
            sizes.append(len(_text(encoded).encode()))
    return sizes


def _text(value: Any) -> str:
    """Render a CloudFormation expression; a reference becomes a name as long as AWS's generated names."""
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


def measure(config: Path, rounds: int) -> dict[str, Any]:
    """Measure alternately, so that other load on the machine affects all commands equally."""
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
            "ratio_with_cdk_validation": _ratio(validated, empty),
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
    """Run the benchmark; return 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.synth", description=__doc__)
    parser.add_argument("--config", type=Path, default=EXAMPLE, help="deployment file (default: config/volumes.yaml)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each command (default: 5)")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench" / "synth.json")
    options = parser.parse_args(arguments)
    figures = measure(options.config.resolve(), options.rounds)
    user_data = max(size for each in figures["templates"].values() for size in each["user_data_bytes"] or [0])
    bounds = [
        ("synth relative to an empty app", figures["ratio"], RATIO_BOUND),
        ("check, seconds", figures["check_seconds"], CHECK_BOUND_SECONDS),
        ("user data, bytes", user_data, USER_DATA_BOUND_BYTES),
    ]
    figures["bounds"] = [
        {"name": name, "value": value, "limit": limit, "met": value <= limit} for name, value, limit in bounds
    ]
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(figures, indent=2))
    return 0 if all(bound["met"] for bound in figures["bounds"]) else 1


if __name__ == "__main__":
    sys.exit(main())
