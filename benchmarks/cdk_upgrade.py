"""Compare the templates of two CDK releases: `python -m benchmarks.cdk_upgrade [VERSION]`.

Installs a release of aws-cdk-lib under build/cdk-upgrade/ (about 300 MB, only the first time), synthesizes a deployment
file with it, and runs `python -m stacks diff` to list the changes that a deploy with the installed release would make.
Both releases use the same copy of the project. Exits with 1 if anything differs except the hashes of functions that
the CDK provides.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.synth import EXAMPLE

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ROOT / "build" / "cdk-upgrade"
PREVIOUS_RELEASE = "2.274.0"
"""The release before the one in requirements.txt."""
RUN_APP = """
import inspect, runpy, aws_cdk
app, known = aws_cdk.App, inspect.signature(aws_cdk.App.__init__).parameters
aws_cdk.App = lambda **settings: app(**{name: value for name, value in settings.items() if name in known})
runpy.run_path("app.py", run_name="__main__")
"""
"""Runs the app without the `App` settings that the release does not support."""
HASH_PATHS = ("Code/S3Key", "Content/S3Key")
"""Properties that hold the content hash of a function's or layer's file."""


def install(release: str) -> Path:
    """Install a release of the library with its dependencies, unless it is installed; return its folder.

    Raises:
        SystemExit: pip failed; see its output for the reason.
    """
    target = PACKAGES / release
    if not (target / "aws_cdk").is_dir():
        print(f"installing aws-cdk-lib {release} under {target} (about 300 MB) ...", file=sys.stderr)
        PACKAGES.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=PACKAGES) as folder:
            pip = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
            pins = [f"{name}=={version(name)}" for name in ("constructs", "jsii")]
            if subprocess.run([*pip, "--target", folder, f"aws-cdk-lib=={release}", *pins]).returncode:
                sys.exit(f"could not install aws-cdk-lib {release}: see the output of pip above")
            shutil.copytree(folder, target, dirs_exist_ok=True)
    return target


def copy_project(folder: Path) -> Path:
    """Copy the inputs for synthesis, so that edits during the comparison do not affect it."""
    for name in ("bootstrap", "hardware", "stacks", "training", "config"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("app.py", "cdk.json", "package.json"):
        shutil.copy(ROOT / name, folder)
    return folder


def synthesise(project: Path, config: Path, packages: Path, out: Path) -> None:
    """Synthesize a deployment file with the library in a folder.

    Raises:
        SystemExit: The app failed; the message includes its output.
    """
    settings = json.loads((project / "cdk.json").read_text(encoding="utf-8"))["context"]
    context = json.dumps({**settings, "config": str(config)})
    environment = {
        **os.environ,
        "PYTHONPATH": f"{packages}{os.pathsep}{project}",
        "CDK_OUTDIR": str(out),
        "CDK_CONTEXT_JSON": context,
    }
    done = subprocess.run([sys.executable, "-c", RUN_APP], cwd=project, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"app.py with {packages.name} exited with {done.returncode}:\n{done.stdout}{done.stderr}")


def run_diff(project: Path, config: Path, folder: Path) -> dict[str, Any]:
    """Return the output of `python -m stacks diff` for a deploy with the installed release.

    Raises:
        SystemExit: The command failed; the message includes its output.
    """
    command = [sys.executable, "-m", "stacks", "diff", str(config), "--against", str(folder), "--json"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True)
    if not done.stdout:
        sys.exit(f"{' '.join(command)} exited with {done.returncode}:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def line_of(resource: Mapping[str, Any]) -> str:
    """Return the line that describes a changed resource."""
    where = ", ".join(paths_of(resource)) or "the resource"
    return f"{resource['stack']}/{resource['logical_id']} ({resource['type']}) {resource['action']}: {where}"


def paths_of(resource: Mapping[str, Any]) -> list[str]:
    """Return the paths of the changed properties."""
    return ["/".join(one["path"]) for one in resource["differences"]]


def unexpected(diff: Mapping[str, Any]) -> list[str]:
    """Return the differences other than the content hashes of functions and layers that the CDK provides."""
    return [
        *(
            line_of(one)
            for one in diff["resources"]
            if one["action"] != "changed in place" or set(paths_of(one)) - set(HASH_PATHS)
        ),
        *(f"blocked: {one['logical_id']} {one['reason']}" for one in diff["blockers"]),
        *(f"parameters or outputs of {stack}" for stack in diff["outputs_differ"]),
    ]


def main(arguments: list[str] | None = None) -> int:
    """Compare and print the differences; return 1 if anything other than content hashes differs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cdk_upgrade", description=__doc__)
    parser.add_argument(
        "release", nargs="?", default=PREVIOUS_RELEASE, help=f"release of aws-cdk-lib (default: {PREVIOUS_RELEASE})"
    )
    parser.add_argument("--config", type=Path, default=EXAMPLE, help="deployment file (default: config/volumes.yaml)")
    options = parser.parse_args(arguments)
    config = options.config.resolve()
    packages = install(options.release)
    print(f"synthesizing {config.name} with {options.release} ...", file=sys.stderr)
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        project, out = copy_project(Path(first)), Path(second)
        if config.is_relative_to(ROOT):
            config = project / config.relative_to(ROOT)
        synthesise(project, config, packages, out)
        diff = run_diff(project, config, out)
    print(f"{config.name}: aws-cdk-lib {options.release} -> {version('aws-cdk-lib')}: {diff['headline']}")
    for one in diff["resources"]:
        print(f"  {line_of(one)}")
    wrong = unexpected(diff)
    for line in wrong:
        print(f"not a content hash: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
