"""The other side of a comparison: a git revision, a folder, and invalid values."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stacks.changes.templates.revision import unpack
from stacks.changes.templates.synthesis import synthesise
from stacks.changes.templates.template_set import read_cloud_assembly
from stacks.errors import ConfigError

FILE = "name: a\ncapacity: {instance_types: [g6.xlarge]}\ntraining: {dataset: text}\n"
APP = """
import json, os, pathlib, sys
context = json.loads(os.environ["CDK_CONTEXT_JSON"])
out = pathlib.Path(os.environ["CDK_OUTDIR"])
text = pathlib.Path(context["config"]).read_text()
if "refuse" in text:
    sys.exit("Traceback\\nit refuses")
resources = {"Run": {"Type": "AWS::SSM::Parameter", "Properties": {"Value": text, "Flag": context.get("flag")}}}
(out / "T.json").write_text(json.dumps({"Resources": resources}))
stack = {"type": "aws:cloudformation:stack", "properties": {"templateFile": "T.json", "stackName": "a-TrainingStack"}}
(out / "manifest.json").write_text(json.dumps({"artifacts": {"TrainingStack": stack}}))
"""


class Repository:
    """A repository with an app that does not import the CDK, and one deployment file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = root / "config" / "a.yaml"
        self.config.parent.mkdir(parents=True)
        (root / "app.py").write_text(APP)
        (root / "cdk.json").write_text(json.dumps({"context": {"flag": "of cdk.json"}}))
        self.config.write_text(FILE)
        self.git("init", "--quiet", "--initial-branch", "main")
        self.commit()

    def git(self, *arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *identity, *arguments], cwd=self.root, check=True, capture_output=True)

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "a")


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[Repository]:
    yield Repository(tmp_path / "repository")


def test_old_revision_synthesises_old_templates(repository: Repository, tmp_path: Path) -> None:
    repository.config.write_text(FILE.replace("text", "other"))
    repository.commit()
    tree = unpack(repository.config, "HEAD~1", tmp_path / "old")
    assert tree.renamed_from is None
    stacks = synthesise(tree.config, {}, tree.root)
    properties = stacks["TrainingStack"].resources["Run"]["Properties"]
    assert "dataset: text" in properties["Value"]
    assert properties["Flag"] == "of cdk.json"
    assert (
        synthesise(tree.config, {"flag": "x"}, tree.root)["TrainingStack"].resources["Run"]["Properties"]["Flag"] == "x"
    )


@pytest.mark.parametrize("is_committed", [True, False])
def test_renamed_file_is_found_by_its_former_name(repository: Repository, tmp_path: Path, is_committed: bool) -> None:
    repository.git("mv", "config/a.yaml", "config/b.yaml")
    renamed = repository.config.with_name("b.yaml")
    renamed.write_text(FILE + "tags: {a: b}\n")
    if is_committed:
        repository.commit()
        repository.git("tag", "renamed")
    revision = "HEAD~1" if is_committed else "HEAD"
    tree = unpack(renamed, revision, tmp_path / "old")
    assert tree.renamed_from == "config/a.yaml"
    assert tree.config.read_text() == FILE


def test_file_missing_in_the_revision_raises(repository: Repository, tmp_path: Path) -> None:
    other = repository.config.with_name("other.yaml")
    other.write_text("name: b\n")
    with pytest.raises(ConfigError, match=r"does not contain config/other.yaml.* found config/a.yaml"):
        unpack(other, "HEAD", tmp_path / "old")


def test_unknown_revision_raises(repository: Repository, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'v9': is neither a revision of .* nor a folder; run `git fetch`"):
        unpack(repository.config, "v9", tmp_path / "old")


def test_file_outside_a_repository_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    config = tmp_path / "a.yaml"
    config.write_text(FILE)
    with pytest.raises(ConfigError, match="is not in a git repository"):
        unpack(config, "HEAD", tmp_path / "old")


def test_failing_app_raises_with_its_message(repository: Repository) -> None:
    repository.config.write_text("refuse")
    with pytest.raises(ConfigError, match="cannot be synthesized: it refuses"):
        synthesise(repository.config, {}, repository.root)


def test_folder_without_trainstack_templates_raises(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"does not contain manifest.json"):
        read_cloud_assembly(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read as JSON"):
        read_cloud_assembly(tmp_path)
    stack = {"type": "aws:cloudformation:stack", "properties": {"templateFile": "W.json"}}
    (tmp_path / "manifest.json").write_text(json.dumps({"artifacts": {"Website": stack}}))
    with pytest.raises(ConfigError, match=r"W.json.*cannot be read"):
        read_cloud_assembly(tmp_path)
    (tmp_path / "W.json").write_text(json.dumps({"Resources": {"B": {"Type": "AWS::S3::Bucket"}}}))
    with pytest.raises(ConfigError, match="contains none of EksStack, HyperPodStack, PcsStack, TrainingStack"):
        read_cloud_assembly(tmp_path)
    (tmp_path / "W.json").write_text(json.dumps({"Resources": {"B": {}}, "Outputs": {}}))
    with pytest.raises(ConfigError, match="has resources without a Type"):
        read_cloud_assembly(tmp_path)
