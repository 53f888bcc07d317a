"""What another release of the CDK makes of the templates: `python -m benchmarks.cdk_upgrade [VERSION]`.

Installs that release of aws-cdk-lib under build/cdk-upgrade/ (about 300 MB, once), synthesises a deployment file with
it, and asks `python -m stacks diff` what a deploy by the installed release would change; both from one copy of the
project. Exits with 1 when that is more than the hashes of functions that the CDK provides.
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

from benchmarks.synth import largest_example

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ROOT / "build" / "cdk-upgrade"
NEIGHBOUR = "2.274.0"
"""The release before the one in requirements.txt."""
RUN_APP = """
import inspect, runpy, aws_cdk
app, known = aws_cdk.App, inspect.signature(aws_cdk.App.__init__).parameters
aws_cdk.App = lambda **settings: app(**{name: value for name, value in settings.items() if name in known})
runpy.run_path("app.py", run_name="__main__")
"""
"""Runs the app; what it says of the library's own check of templates is left out where that is not known yet."""
HASH_PATHS = ("Code/S3Key", "Content/S3Key")
"""Where templates name the file of a function or of a layer, by the hash of its content."""


def installed(release: str) -> Path:
    """Return the folder that holds a release of the library and what it needs, made when it is not there.

    Raises:
        SystemExit: pip refused; it has said why.
    """
    target = PACKAGES / release
    if not (target / "aws_cdk").is_dir():
        print(f"installing aws-cdk-lib {release} under {target} (about 300 MB) ...", file=sys.stderr)
        PACKAGES.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=PACKAGES) as folder:
            pip = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
            pins = [f"{name}=={version(name)}" for name in ("constructs", "jsii")]
            if subprocess.run([*pip, "--target", folder, f"aws-cdk-lib=={release}", *pins]).returncode:
                sys.exit(f"aws-cdk-lib {release} could not be installed: see pip's words above")
            shutil.copytree(folder, target, dirs_exist_ok=True)
    return target


def copied(folder: Path) -> Path:
    """Copy what a synthesis reads, so that an edit meanwhile is not taken for a difference of the library."""
    for name in ("bootstrap", "stacks", "training", "config"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("app.py", "cdk.json", "package.json"):
        shutil.copy(ROOT / name, folder)
    return folder


def synthesised(project: Path, config: Path, packages: Path, out: Path) -> None:
    """Synthesise a deployment file with the library of a folder.

    Raises:
        SystemExit: The app refused; with what it said.
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
        sys.exit(f"app.py with {packages.name} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def reviewed(project: Path, config: Path, folder: Path) -> dict[str, Any]:
    """Return what `python -m stacks diff` says of a deploy by the installed release.

    Raises:
        SystemExit: It refused; with what it said.
    """
    command = [sys.executable, "-m", "stacks", "diff", str(config), "--against", str(folder), "--json"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True)
    if not done.stdout:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def line_of(resource: Mapping[str, Any]) -> str:
    """Return a changed resource in a line."""
    where = ", ".join(paths_of(resource)) or "as a whole"
    return f"{resource['stack']}/{resource['logical_id']} ({resource['type']}) {resource['action']}: {where}"


def paths_of(resource: Mapping[str, Any]) -> list[str]:
    """Return the paths of the properties that differ."""
    return ["/".join(one["path"]) for one in resource["differences"]]


def unexpected(told: Mapping[str, Any]) -> list[str]:
    """Return what differs and is no hash of a provided function's or layer's file."""
    return [
        *(
            line_of(one)
            for one in told["resources"]
            if one["action"] != "changed in place" or set(paths_of(one)) - set(HASH_PATHS)
        ),
        *(f"would be refused: {one['logical_id']} {one['reason']}" for one in told["would_be_refused"]),
        *(f"parameters or outputs of {stack}" for stack in told["outputs_differ"]),
    ]


def main(arguments: list[str] | None = None) -> int:
    """Compare, print what differs; return 1 when it is more than hashes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cdk_upgrade", description=__doc__)
    parser.add_argument("release", nargs="?", default=NEIGHBOUR, help=f"of aws-cdk-lib (default: {NEIGHBOUR})")
    parser.add_argument("--config", type=Path, default=largest_example(), help="deployment file (default: the largest)")
    options = parser.parse_args(arguments)
    config = options.config.resolve()
    packages = installed(options.release)
    print(f"synthesising {config.name} with {options.release} ...", file=sys.stderr)
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        project, out = copied(Path(first)), Path(second)
        if config.is_relative_to(ROOT):
            config = project / config.relative_to(ROOT)
        synthesised(project, config, packages, out)
        told = reviewed(project, config, out)
    print(f"{config.name}: aws-cdk-lib {options.release} -> {version('aws-cdk-lib')}: {told['headline']}")
    for one in told["resources"]:
        print(f"  {line_of(one)}")
    wrong = unexpected(told)
    for line in wrong:
        print(f"more than a hash: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
