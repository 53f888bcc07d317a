"""Prepared data: made once, by one node, for all that have the same inputs. Real processes against moto's S3."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bootstrap.documents import NodeDocument, Prepare, RunDocument
from bootstrap.errors import LastingError, StepError
from bootstrap.plan import Context
from bootstrap.prepared import dataset as prepared_dataset
from bootstrap.prepared.claims import Claim, ClaimStore
from bootstrap.prepared.code import code_digest
from bootstrap.prepared.dataset import prepare_data, stored_dataset
from bootstrap.prepared.inputs import SourceObject, prepared_digest
from bootstrap.steps.code import fetch_code
from bootstrap.steps.staging import Staging
from tests.bootstrap import waiting
from tests.bootstrap.account import Account
from tests.bootstrap.prepared_node import node_context

DEADLINE_SECONDS = 60.0
ROOT = Path(__file__).resolve().parent.parent.parent
# The trainer's own command line, without its imports of torch: the contract is `prepare` and `publish`.
TRAINING = f"""
import importlib, json, sys
from pathlib import Path
arguments = dict(zip(sys.argv[2::2], sys.argv[3::2]))
if sys.argv[1] == "prepare":
    module, _, name = arguments["--function"].partition(":")
    options = json.loads(Path(arguments["--options"]).read_text())
    getattr(importlib.import_module(module), name)(Path(arguments["--source"]), Path(arguments["--target"]), **options)
else:
    sys.path[:] = [{str(ROOT)!r}, *sys.path]
    del sys.modules["training"]
    from training.__main__ import main
    sys.exit(main())
"""
FUNCTIONS = """
import os, time
from pathlib import Path
from ours.case import change

def upper(source, target, suffix, hold=None):
    if hold:
        with open(hold, "a") as stream:
            stream.write(f"{os.getpid()}\\n")
        while not Path(hold + ".go").exists():
            time.sleep(0.02)
    for path in source.rglob("*.txt"):
        (target / (path.stem + suffix)).write_text(change(path.read_text()))

def fails(source, target, suffix):
    raise ValueError("the third line has no label")
"""
FILES = {
    "training/__init__.py": "",
    "training/__main__.py": TRAINING,
    "ours/__init__.py": "",
    "ours/data.py": FUNCTIONS,
    "ours/case.py": "def change(text):\n    return text.upper()\n",
    "model.py": "LAYERS = 2\n",
}


wait = partial(waiting.wait, limit_seconds=DEADLINE_SECONDS)


@dataclass
class Gang:
    """Nodes of one deployment, each with a root of its own."""

    account: Account
    folder: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def document(self, files: dict[str, str] | None = None, function: str = "upper", **options: Any) -> RunDocument:
        code = self.account.put_code(FILES if files is None else files)
        prepare = {"function": f"ours.data:{function}", "source": "raw/words", "timeout_minutes": 5}
        prepare["options"] = {"suffix": ".bin", **options}
        return RunDocument.from_json(self.account.run(code=code, prepare=prepare))

    def node(self) -> NodeDocument:
        document = self.account.node(python={"interpreter": sys.executable, "packages": []})
        document["supervise"]["heartbeat_timeout_seconds"] = 0.5
        return NodeDocument.from_json(document)

    def context(self, instance_id: str, run: RunDocument) -> Context:
        """Return what a node in this process works with, its code fetched."""
        context = node_context(self.folder / instance_id, instance_id, self.node(), run)
        fetch_code(context, run)
        return context

    def start(self, instance_id: str, run: RunDocument) -> subprocess.Popen[bytes]:
        root = self.folder / instance_id
        root.mkdir()
        (root / "node.json").write_text(json.dumps(self.node().to_json()))
        (root / "run.json").write_text(json.dumps(run.to_json()))
        command = [sys.executable, "-m", "tests.bootstrap.prepared_node", str(root), instance_id]
        process = subprocess.Popen(command, cwd=ROOT)
        self.processes.append(process)
        return process

    def events(self, instance_id: str) -> list[dict[str, Any]]:
        path = self.folder / instance_id / "events.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def states(self, instance_id: str) -> list[str]:
        return [each["state"] for each in self.events(instance_id) if each["state"] != "progress"]


@pytest.fixture
def gang(account: Account, tmp_path: Path) -> Iterator[Gang]:
    for name in ("a.txt", "deep/b.txt"):
        account.s3.put_object(Bucket=account.datasets, Key=f"raw/words/{name}", Body=name.encode())
    made = Gang(account, tmp_path)
    yield made
    for process in made.processes:
        process.kill()
        process.wait()


def staged(gang: Gang, instance_id: str) -> dict[str, str]:
    folder = gang.folder / instance_id / "datasets" / "words"
    return {path.name: path.read_text() for path in folder.glob("*.bin")}


def test_of_two_racing_nodes_one_makes_the_data_and_both_have_them(gang: Gang) -> None:
    hold = gang.folder / "hold"
    run = gang.document(hold=str(hold))
    nodes = {name: gang.start(name, run) for name in ("i-a", "i-b")}
    wait(hold.exists)
    wait(lambda: any("waiting" in gang.states(name) for name in nodes))
    (gang.folder / "hold.go").touch()
    assert [process.wait(DEADLINE_SECONDS) for process in nodes.values()] == [0, 0]
    assert staged(gang, "i-a") == staged(gang, "i-b") == {"a.bin": "A.TXT", "b.bin": "DEEP/B.TXT"}
    assert len(hold.read_text().split()) == 1
    maker, other = sorted(nodes, key=lambda name: "waiting" in gang.states(name))
    assert gang.states(maker) == ["started", "finished"]
    assert gang.states(other) == ["waiting"]
    waiting = next(each for each in gang.events(other) if each["state"] == "waiting")
    assert waiting["for_instance"] == maker
    stages = [each["stage"] for each in gang.events(maker) if each["state"] == "progress"]
    assert stages[0] == "fetching" and {"preparing", "publishing"} <= set(stages)
    assert not (gang.folder / maker / "datasets" / ".preparing").exists()


def test_a_killed_nodes_work_is_taken_over(gang: Gang) -> None:
    hold = gang.folder / "hold"
    run = gang.document(hold=str(hold))
    first = gang.start("i-a", run)
    program = int(wait(lambda: hold.exists() and hold.read_text().strip()))
    first.kill()
    os.killpg(program, signal.SIGKILL)  # with a machine, all of it is gone
    second = gang.start("i-b", run)
    wait(lambda: "started" in gang.states("i-b"))
    (gang.folder / "hold.go").touch()
    assert second.wait(DEADLINE_SECONDS) == 0
    assert gang.states("i-b") == ["waiting", "taken_over", "started", "finished"]
    assert gang.states("i-a") == ["started"]
    assert staged(gang, "i-b") == {"a.bin": "A.TXT", "b.bin": "DEEP/B.TXT"}
    stored = stored_dataset(gang.context("i-b", run).layout, run)
    assert stored.endswith("/0002")


def test_what_changed_is_prepared_anew_and_nothing_else(gang: Gang) -> None:
    """The model's code, and the run's other settings, are no inputs; code, options and objects are."""
    stored: list[str] = []

    def prepared(instance_id: str, run: RunDocument, *, work: bool) -> None:
        context = gang.context(instance_id, run)
        stored.append(prepare_data(context, run, lambda: False))
        assert gang.states(instance_id) == (["started", "finished"] if work else ["found"])

    prepared("i-1", gang.document(), work=True)
    prepared("i-2", gang.document({**FILES, "model.py": "LAYERS = 4\n"}), work=False)
    prepared("i-3", gang.document(suffix=".bytes"), work=True)
    prepared("i-4", gang.document({**FILES, "ours/case.py": FILES["ours/case.py"] + "# edited\n"}), work=True)
    gang.account.s3.put_object(Bucket=gang.account.datasets, Key="raw/words/a.txt", Body=b"other")
    prepared("i-5", gang.document(), work=True)
    assert stored[0] == stored[1]
    assert len(set(stored)) == 4
    # A boot stages what is there already, and leaves what is not to the supervisor.
    run = gang.document()
    context, step = gang.context("i-6", run), Staging()
    step.act(context)
    step.verify(context)
    assert staged(gang, "i-6") == {"a.bin": "OTHER", "b.bin": "DEEP/B.TXT"}
    context.run = gang.document(suffix=".new")
    fetch_code(context, context.run)
    step.act(context)
    step.verify(context)
    assert not context.layout.prepared_dataset.exists()


def test_a_failing_function_is_said_to_all_and_not_tried_again(gang: Gang) -> None:
    run = gang.document(function="fails")
    with pytest.raises(LastingError) as caught:
        prepare_data(gang.context("i-a", run), run, lambda: False)
    assert "ValueError: the third line has no label" in caught.value.message
    assert "correct the function" in caught.value.remedy
    assert gang.states("i-a") == ["started", "failed"]
    with pytest.raises(LastingError, match=r"i-a could not make the data: [\s\S]*no label"):
        prepare_data(gang.context("i-b", run), run, lambda: False)
    assert gang.states("i-b") == []
    renamed = RunDocument.from_json({**run.to_json(), "run": "second"})
    with pytest.raises(LastingError, match=r"ours.data:fails: ended with code 1"):
        prepare_data(gang.context("i-c", renamed), renamed, lambda: False)


def test_what_is_no_longer_wanted_is_ended_and_given_free(gang: Gang) -> None:
    hold = gang.folder / "hold"
    run = gang.document(hold=str(hold))
    context = gang.context("i-a", run)
    with pytest.raises(StepError, match="the run changed"):
        prepare_data(context, run, hold.exists)
    program = int(hold.read_text())
    with pytest.raises(ProcessLookupError):
        os.killpg(program, 0)
    assert gang.states("i-a") == ["started", "released"]
    (gang.folder / "hold.go").touch()
    prepare_data(gang.context("i-b", run), run, lambda: False)
    assert gang.states("i-b") == ["started", "finished"]


def test_full_disks_and_missing_sources(gang: Gang, monkeypatch: pytest.MonkeyPatch) -> None:
    run = gang.document()
    context = gang.context("i-a", run)
    with monkeypatch.context() as patch:
        patch.setattr(context.system, "free_bytes", lambda path: 1000)
        with pytest.raises(LastingError, match="the disk is too small to prepare data: .* bytes needed"):
            prepare_data(context, run, lambda: False)
    absent = RunDocument.from_json({**run.to_json(), "prepare": {**run.to_json()["prepare"], "source": "raw/none"}})
    with pytest.raises(LastingError, match=r"training.prepare.source: raw/none: there is no object below s3://"):
        prepare_data(gang.context("i-b", absent), absent, lambda: False)


def test_too_many_lost_nodes_end_it(gang: Gang, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared_dataset, "MOST_CLAIMS", 1)
    run = gang.document(function="fails")
    context = gang.context("i-a", run)
    assert run.prepare is not None
    with pytest.raises(LastingError):
        prepare_data(context, run, lambda: False)
    renamed = RunDocument.from_json({**run.to_json(), "run": "second"})
    with pytest.raises(LastingError, match="1 nodes began to make the data, and none came to an end"):
        prepare_data(context, renamed, lambda: False)


def test_the_first_commit_counts_and_only_one_wins_a_claim(account: Account) -> None:
    stores = [ClaimStore(account.s3, account.datasets, "d") for _ in range(2)]
    claims = [Claim(1, name, "run") for name in ("i-a", "i-b")]
    assert [store.make(claim) for store, claim in zip(stores, claims)] == [True, False]
    assert stores[1].newest() == claims[0]
    assert stores[0].make(Claim(2, "i-b", "run"))
    assert stores[0].committed() is None
    assert [stores[0].commit(2, {}), stores[1].commit(1, {})] == [True, False]
    assert stores[1].committed() == "prepared/d/0002"
    account.s3.put_object(Bucket=account.datasets, Key="datasets/prepared/d/prepared.json", Body=b"[]")
    with pytest.raises(StepError, match="is no record of this version"):
        stores[0].committed()


def digest_of(folder: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return code_digest(folder, "ours.data:make", "whole")


def test_the_code_that_counts_is_what_the_function_imports(tmp_path: Path) -> None:
    files = {"ours/__init__.py": "", "ours/data.py": "from . import words\nimport helper, json\n"}
    files |= {"ours/words.py": "def f():\n    from other.deep import x\n", "other/deep.py": "", "helper.py": ""}
    files |= {"model.py": "", "ours/list.txt": "one"}
    before = digest_of(tmp_path, files)
    assert digest_of(tmp_path, {"model.py": "import os\n"}) == before
    for name in ("ours/__init__.py", "ours/words.py", "other/deep.py", "helper.py", "ours/list.txt"):
        assert digest_of(tmp_path, {name: files[name] + "# edited\n"}) != before, name
        assert digest_of(tmp_path, {name: files[name]}) == before
    assert digest_of(tmp_path, {"helper.py": "import importlib\nimportlib.import_module('a')\n"}) == "whole"
    assert digest_of(tmp_path, {"helper.py": "def\n"}) == "whole"


def test_every_input_is_in_the_digest() -> None:
    prepare, objects = Prepare("a.b:c", "raw", {"x": 1}, 5), [SourceObject("a", 1, "e")]
    digests = {
        prepared_digest("code", prepare, objects),
        prepared_digest("other", prepare, objects),
        prepared_digest("code", Prepare("a.b:d", "raw", {"x": 1}, 5), objects),
        prepared_digest("code", Prepare("a.b:c", "raw", {"x": 2}, 5), objects),
        prepared_digest("code", prepare, [SourceObject("b", 1, "e")]),
        prepared_digest("code", prepare, [SourceObject("a", 2, "e")]),
        prepared_digest("code", prepare, [SourceObject("a", 1, "f")]),
    }
    assert len(digests) == 7
    # Neither is where the source lies, nor how long it may take.
    moved = Prepare("a.b:c", "raw2", {"x": 1}, 6)
    assert prepared_digest("code", moved, objects) == prepared_digest("code", prepare, objects)
