"""A repository of a person's, whose merges are carried to an embedded cloud by what the workflows call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.conftest import ROOT, Outcome, Workplace, workplace
from tests.localcloud.core.command_line import NO_MARK

__all__ = ["workplace"]
DEADLINE_SECONDS = 600.0
FILE = Path("config/deployed.yaml")


@dataclass
class Repository:
    """The project under git, and the deployment file that merges change."""

    place: Workplace
    config: dict[str, Any]

    def merge(self, subject: str, **edits: Any) -> str:
        """Change keys of the file (dotted paths, `__` for a dot), commit; return the commit."""
        for path, value in edits.items():
            *parents, last = path.split("__")
            section = self.config
            for name in parents:
                section = section.setdefault(name, {})
            section[last] = value
        (self.place.project / FILE).write_text(yaml.safe_dump(self.config, sort_keys=False))
        return self.commit(subject)

    def commit(self, subject: str) -> str:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", subject)
        return self.git("rev-parse", "HEAD")

    def revert(self) -> None:
        """Take the last merge back, as a person does."""
        self.git("revert", "--no-edit", "HEAD")
        self.config = yaml.safe_load((self.place.project / FILE).read_text())

    def git(self, *arguments: str) -> str:
        who = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.com")
        command = ["git", *who, *arguments]
        done = subprocess.run(command, cwd=self.place.project, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def deliver(self, action: str, *options: str) -> Outcome:
        """Run `python -m stacks deliver` as workflows and pipeline do."""
        return self.run(sys.executable, "-m", "stacks", "deliver", action, str(FILE), *options)

    def run(self, *command: str) -> Outcome:
        """Run a command in the project, pointed at the cloud."""
        reach = json.loads(self.place.cloud.good("env", "--json"))
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            command,
            cwd=self.place.project,
            env={**NO_MARK, **reach, "PATH": path, "NO_COLOR": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE_SECONDS,
        )
        return Outcome(done.returncode, done.stdout)


@pytest.fixture
def repository(workplace: Workplace) -> Repository:
    """The project as somebody's repository, with nothing deployed."""
    config = yaml.safe_load((ROOT / "config" / "minimal.yaml").read_text())
    workplace.no_machines(config["capacity"]["instance_types"] + ["g6.2xlarge"], "us-east-1")
    return versioned(workplace, config)


def versioned(workplace: Workplace, config: dict[str, Any]) -> Repository:
    """Put the project under git, with a deployment file to be written by the first merge."""
    (workplace.project / "node_modules").symlink_to(ROOT / "node_modules")
    (workplace.project / ".gitignore").write_text("build/\nnode_modules\n__pycache__/\n")
    made = Repository(workplace, config)
    made.git("init", "--quiet")
    return made
