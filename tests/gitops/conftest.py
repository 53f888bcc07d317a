"""A user's repository whose merges are deployed to an embedded cloud with the commands of the workflows."""

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
    """The project under git, with the deployment file that merges change."""

    workplace: Workplace
    config: dict[str, Any]

    def merge(self, subject: str, **edits: Any) -> str:
        """Change keys of the file (paths with `__` for a dot) and commit; return the commit."""
        for path, value in edits.items():
            *parents, last = path.split("__")
            section = self.config
            for name in parents:
                section = section.setdefault(name, {})
            section[last] = value
        (self.workplace.project / FILE).write_text(yaml.safe_dump(self.config, sort_keys=False))
        return self.commit(subject)

    def commit(self, subject: str) -> str:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", subject)
        return self.git("rev-parse", "HEAD")

    def revert(self) -> None:
        """Revert the last merge."""
        self.git("revert", "--no-edit", "HEAD")
        self.config = yaml.safe_load((self.workplace.project / FILE).read_text())

    def git(self, *arguments: str) -> str:
        identity = ("-c", "user.name=User", "-c", "user.email=user@example.com")
        command = ["git", *identity, *arguments]
        done = subprocess.run(command, cwd=self.workplace.project, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def deliver(self, action: str, *options: str) -> Outcome:
        """Run `python -m stacks deliver` as the workflows and the pipeline do."""
        return self.run(sys.executable, "-m", "stacks", "deliver", action, str(FILE), *options)

    def run(self, *command: str) -> Outcome:
        """Run a command in the project with the endpoint of the cloud."""
        endpoint = json.loads(self.workplace.cloud.good("env", "--json"))
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            command,
            cwd=self.workplace.project,
            env={**NO_MARK, **endpoint, "PATH": path, "NO_COLOR": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE_SECONDS,
        )
        return Outcome(done.returncode, done.stdout)


@pytest.fixture
def repository(workplace: Workplace) -> Repository:
    """The project as a user's repository, before its first deploy."""
    config = yaml.safe_load((ROOT / "config" / "minimal.yaml").read_text())
    workplace.no_machines(config["capacity"]["instance_types"] + ["g6.2xlarge"], "us-east-1")
    return versioned(workplace, config)


def versioned(workplace: Workplace, config: dict[str, Any]) -> Repository:
    """Put the project under git; the first merge writes its deployment file."""
    (workplace.project / "node_modules").symlink_to(ROOT / "node_modules")
    (workplace.project / ".gitignore").write_text("build/\nnode_modules\n__pycache__/\n")
    repository = Repository(workplace, config)
    repository.git("init", "--quiet")
    return repository
