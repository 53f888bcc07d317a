"""`python -m stacks diff`: formats, exit codes and invalid input."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from stacks.__main__ import main
from stacks.artifacts.review_code import TRUSTED
from stacks.changes.causes import Edit
from stacks.changes.formats import MARKDOWN_BYTES, print_review, to_json, to_markdown
from stacks.changes.review import Review, review
from stacks.changes.templates.template_set import read_cloud_assembly
from tests.stacks.conftest import ROOT, Assembly, Synthesis


@pytest.fixture(scope="module")
def change(synthesis: Synthesis) -> Review:
    """A change to nodes, network access and data retention."""
    after = synthesis.variant(
        "command",
        {"node.root_volume.gib": 150, "network.nat": True, "storage.node_report_days": 5},
    )
    edits = [
        Edit("node.root_volume.gib", 100, 150),
        Edit("network.nat", False, True),
        Edit("storage.node_report_days", 30, 5),
    ]
    before = read_cloud_assembly(synthesis.of("demo").directory)
    return review(before, read_cloud_assembly(after.directory), edits=edits)


def test_comment_starts_with_the_headline_and_contains_the_keys(change: Review) -> None:
    text = to_markdown(change)
    first = text.splitlines()[0]
    assert first.startswith("**Data at risk (40): nodes replaced; 1 risk to data;")
    assert "#### Running nodes" in text
    assert "(`node.root_volume.gib`)" in text
    assert "<details><summary>Resources of NetworkStack:" in text
    assert len(text.encode()) < MARKDOWN_BYTES


def test_comment_of_a_first_deploy_fits(synthesis: Synthesis) -> None:
    found = review({}, read_cloud_assembly(synthesis.of("lustre").directory))
    assert len(to_markdown(found).encode()) < MARKDOWN_BYTES
    assert int(found.level) == 30
    assert found.nodes.impact == "nothing"


def test_text_has_every_section(change: Review) -> None:
    console = Console(width=200, no_color=True)
    with console.capture() as captured:
        print_review(change, console)
    text = captured.get()
    for title in ("Edited keys", "Running nodes", "Data", "Network", "Costs", "Notes"):
        assert f"\n{title}\n" in text
    assert "[storage.node_report_days]" in text


def test_review_without_changes_is_one_line(demo: Assembly) -> None:
    same = read_cloud_assembly(demo.directory)
    found = review(same, same, edits=[])
    assert to_markdown(found) == "**No changes.**\n"
    assert to_json(found)["exit_code"] == 0


def test_command_compares_with_a_folder(demo: Assembly, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "demo.yaml"
    config.write_text((ROOT / "config" / "demo.yaml").read_text() + "tags: {team: a}\n")
    code = main(["diff", str(config), "--against", str(demo.directory), "--json"])
    output = json.loads(capsys.readouterr().out)
    assert code == output["exit_code"] == 20
    assert output["nodes"]["impact"] == "rolling_replacement"
    assert output["nodes"]["keys"] == ["tags"]
    assert not output["keys_are_known"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["config/nowhere.yaml"], "cannot be read"),
        (["config/demo.yaml", "-c", "allow-destroy"], "must be KEY=VALUE"),
    ],
)
def test_invalid_input_exits_with_a_message(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_command_compares_with_a_revision(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A commit renames the deployment file and changes a hyperparameter in a copy of the project."""
    copy = tmp_path / "project"
    for name in ("bootstrap", "hardware", "stacks", "training"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "config").mkdir()
    shutil.copytree(ROOT / ".github", copy / ".github")
    for name in ("config/minimal.yaml", *(one for one in TRUSTED if (ROOT / one).is_file() and "/" not in one)):
        shutil.copy(ROOT / name, copy / name)

    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *identity, *arguments], cwd=copy, check=True, capture_output=True)

    git("init", "--quiet")
    git("add", "--all")
    git("commit", "--quiet", "--message", "a")
    git("mv", "config/minimal.yaml", "config/small.yaml")
    config = copy / "config" / "small.yaml"
    config.write_text(config.read_text().replace("steps: 20000", "steps: 30000"))
    assert main(["diff", str(config), "--against", "HEAD", "--markdown"]) == 10
    text = capsys.readouterr().out
    assert text.startswith("**Safe (10): trainer restarts in place; no risk to data")
    assert "training.config.steps: 20000 -> 30000" in text
    assert "the file was named config/minimal.yaml at" in text
