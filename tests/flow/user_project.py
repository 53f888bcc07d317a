"""A copy of the project as a user has it, an embedded cloud, and the commands of `trainstack`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.localcloud.core.command_line import NO_MARK, ROOT, Cli

CDK = ROOT / "node_modules" / ".bin" / "cdk"
DEADLINE_SECONDS = 900.0
"""Limit for a command and for a state of the run. A deploy takes five minutes on a busy machine."""
PACKAGES = ("bootstrap", "hardware", "localcloud", "stacks", "training", "trainstack")


@dataclass
class Ended:
    """A command that has ended."""

    code: int
    output: str
    errors: str


@dataclass
class UserProject:
    """The copy, the cloud, and the deployment `name`, whose file is `config/NAME.yaml`."""

    folder: Path
    cloud: Cli
    name: str
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        """The deployment file."""
        return self.folder / "config" / f"{self.name}.yaml"

    def environment(self) -> dict[str, str]:
        """Return the environment variables of the commands."""
        path = f"{self.folder / 'stubs'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        own = {"PATH": path, "PYTHONPATH": str(self.folder), "NO_COLOR": "1"}
        return {**NO_MARK, **own, **self.extra}

    def start(self, *arguments: str, log: Path) -> subprocess.Popen[bytes]:
        """Start a command whose output goes to a file."""
        with log.open("wb") as output:
            return subprocess.Popen(
                self._command(arguments), cwd=self.folder, env=self.environment(), stdout=output, stderr=output
            )

    def call(self, *arguments: str) -> Ended:
        """Run a command and return its result."""
        done = subprocess.run(
            self._command(arguments),
            cwd=self.folder,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    def good(self, *arguments: str) -> str:
        """Run a command that must succeed, and return its standard output."""
        done = self.call(*arguments)
        assert done.code == 0, f"{' '.join(arguments)}: {done}"
        return done.output

    def status(self) -> dict[str, Any]:
        """Return the run's status."""
        found: dict[str, Any] = json.loads(self.good("status", self.name, "--json"))
        return found

    def outputs(self) -> dict[str, str]:
        """Return the outputs of the StorageStack."""
        stacks = self.cloud.client("cloudformation").describe_stacks(StackName=f"{self.name}-StorageStack")["Stacks"]
        return {each["OutputKey"]: each["OutputValue"] for each in stacks[0]["Outputs"]}

    def wait_for(self, what: str, found: Callable[[], Any]) -> Any:
        """Return the first true result of a function."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not (value := found()):
            why = f"waited {DEADLINE_SECONDS} s for {what}"
            assert time.monotonic() < deadline, f"{why}: {self.call('why', self.name)}"
            time.sleep(1.0)  # polling: each look is a command of the user
        return value

    def bootstrap(self) -> None:
        """Bootstrap the account for the CDK, once, as docs/runbook.md describes."""
        reach = json.loads(self.cloud.good("env", "--json"))
        command = [str(CDK), "bootstrap", "--context", f"config=config/{self.name}.yaml"]
        subprocess.run(command, cwd=self.folder, env={**self.environment(), **reach}, check=True, capture_output=True)

    def edit(self, edits: dict[str, Any]) -> None:
        """Edit the file as a user would: replace sections, and set what the embedded cloud needs."""
        document = {**yaml.safe_load(self.file.read_text()), **edits}
        demo = yaml.safe_load((ROOT / "config" / "demo.yaml").read_text())
        document["node"] = demo["node"]
        document["node"]["python"]["wheelhouse"] = "off"  # the emulated nodes have this environment's packages
        # A node that is slow on a busy machine must not count as lost: this would start another generation.
        document["node"]["supervise"]["heartbeat_timeout_seconds"] = 30.0
        document["capacity"] |= {"placement": "cluster", "gang_timeout_seconds": 120}
        self.file.write_text(yaml.safe_dump(document))

    def _command(self, arguments: tuple[str, ...]) -> list[str]:
        return [sys.executable, "-m", "trainstack", "--local", "--state", str(self.cloud.state), *arguments]


@contextmanager
def user_project(work: Path, name: str) -> Iterator[UserProject]:
    """Copy the project and start a cloud; stop the cloud at the end."""
    folder = work / "project"
    (folder / "config").mkdir(parents=True)
    (folder / "docs").mkdir()
    for each in ("app.py", "cdk.json", "requirements.txt"):
        shutil.copy(ROOT / each, folder)
    for each in PACKAGES:
        shutil.copytree(ROOT / each, folder / each, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "node_modules").symlink_to(ROOT / "node_modules")
    cloud = Cli(work / "cloud")
    try:
        cloud.good("up", "--port", "0")
        yield UserProject(folder, cloud, name)
    finally:
        cloud.run("down")
