"""Data preparation runs once, on one node, for all nodes with the same inputs. Real processes use moto's S3."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import IncompleteReadError

from bootstrap.boot_steps.code import fetch_code
from bootstrap.boot_steps.staging import Staging
from bootstrap.context import Context
from bootstrap.documents import NodeDocument, Prepare, RunDocument
from bootstrap.errors import PermanentError, StepError
from bootstrap.prepare import dataset as prepared_dataset
from bootstrap.prepare.claims import Claim, ClaimStore
from bootstrap.prepare.code import code_digest
from bootstrap.prepare.dataset import prepare_data, stored_dataset
from bootstrap.prepare.inputs import MAX_SOURCE_OBJECTS, SourceObject, prepared_digest, source_objects
from tests.bootstrap import waiting
from tests.bootstrap.account import Account
from tests.bootstrap.prepared_node import node_context

DEADLINE_SECONDS = 60.0
ROOT = Path(__file__).resolve().parent.parent.parent
# The trainer's command line without torch: only `prepare` and `publish`.
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
    """Nodes of one deployment, each with a separate root."""

    account: Account
    directory: Path
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
        """Return the context of a node in this process, with its code downloaded."""
        context = node_context(self.directory / instance_id, instance_id, self.node(), run)
        fetch_code(context, run)
        return context

    def start(self, instance_id: str, run: RunDocument) -> subprocess.Popen[bytes]:
        root = self.directory / instance_id
        root.mkdir()
        (root / "node.json").write_text(json.dumps(self.node().to_json()))
        (root / "run.json").write_text(json.dumps(run.to_json()))
        command = [sys.executable, "-m", "tests.bootstrap.prepared_node", str(root), instance_id]
        process = subprocess.Popen(command, cwd=ROOT)
        self.processes.append(process)
        return process

    def events(self, instance_id: str) -> list[dict[str, Any]]:
        path = self.directory / instance_id / "events.jsonl"
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
    directory = gang.directory / instance_id / "datasets" / "words"
    return {path.name: path.read_text() for path in directory.glob("*.bin")}


def test_one_of_two_racing_nodes_prepares_the_data_for_both(gang: Gang) -> None:
    hold = gang.directory / "hold"
    run = gang.document(hold=str(hold))
    nodes = {name: gang.start(name, run) for name in ("i-a", "i-b")}
    wait(hold.exists)
    wait(lambda: any("waiting" in gang.states(name) for name in nodes))
    (gang.directory / "hold.go").touch()
    assert [process.wait(DEADLINE_SECONDS) for process in nodes.values()] == [0, 0]
    assert staged(gang, "i-a") == staged(gang, "i-b") == {"a.bin": "A.TXT", "b.bin": "DEEP/B.TXT"}
    assert len(hold.read_text().split()) == 1
    maker, other = sorted(nodes, key=lambda name: "waiting" in gang.states(name))
    assert gang.states(maker) == ["started", "finished"]
    assert gang.states(other) == ["waiting"]
    waiting = next(each for each in gang.events(other) if each["state"] == "waiting")
    assert waiting["owner_instance_id"] == maker
    stages = [each["stage"] for each in gang.events(maker) if each["state"] == "progress"]
    assert stages[0] == "fetching" and {"preparing", "publishing"} <= set(stages)
    assert not (gang.directory / maker / "datasets" / ".preparing").exists()


def test_the_work_of_a_killed_node_is_taken_over(gang: Gang) -> None:
    hold = gang.directory / "hold"
    run = gang.document(hold=str(hold))
    first = gang.start("i-a", run)
    program = int(wait(lambda: hold.exists() and hold.read_text().strip()))
    first.kill()
    os.killpg(program, signal.SIGKILL)  # a lost machine loses all of its processes
    second = gang.start("i-b", run)
    wait(lambda: "started" in gang.states("i-b"))
    (gang.directory / "hold.go").touch()
    assert second.wait(DEADLINE_SECONDS) == 0
    assert gang.states("i-b") == ["waiting", "taken_over", "started", "finished"]
    assert gang.states("i-a") == ["started"]
    assert staged(gang, "i-b") == {"a.bin": "A.TXT", "b.bin": "DEEP/B.TXT"}
    stored = stored_dataset(gang.context("i-b", run).layout, run)
    assert stored.endswith("/0002")


def test_only_changed_inputs_are_prepared_again(gang: Gang) -> None:
    """Inputs are the function's code, options and objects, not the model's code or other settings of the run."""
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
    # A boot stages existing data, and leaves the preparation to the supervisor.
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


def test_a_failing_function_is_reported_on_all_nodes_and_not_retried(gang: Gang) -> None:
    run = gang.document(function="fails")
    with pytest.raises(PermanentError) as caught:
        prepare_data(gang.context("i-a", run), run, lambda: False)
    assert "ValueError: the third line has no label" in caught.value.message
    assert "correct the function" in caught.value.remedy
    assert gang.states("i-a") == ["started", "failed"]
    with pytest.raises(PermanentError, match=r"data preparation failed on i-a: [\s\S]*no label"):
        prepare_data(gang.context("i-b", run), run, lambda: False)
    assert gang.states("i-b") == []
    renamed = RunDocument.from_json({**run.to_json(), "run": "second"})
    with pytest.raises(PermanentError, match=r"ours.data:fails: exited with code 1"):
        prepare_data(gang.context("i-c", renamed), renamed, lambda: False)


def test_a_cancelled_preparation_ends_and_releases_its_claim(gang: Gang) -> None:
    hold = gang.directory / "hold"
    run = gang.document(hold=str(hold))
    context = gang.context("i-a", run)
    with pytest.raises(StepError, match="the run changed"):
        prepare_data(context, run, hold.exists)
    program = int(hold.read_text())
    with pytest.raises(ProcessLookupError):
        os.killpg(program, 0)
    assert gang.states("i-a") == ["started", "released"]
    (gang.directory / "hold.go").touch()
    prepare_data(gang.context("i-b", run), run, lambda: False)
    assert gang.states("i-b") == ["started", "finished"]


def test_full_disks_and_missing_sources(gang: Gang, monkeypatch: pytest.MonkeyPatch) -> None:
    run = gang.document()
    context = gang.context("i-a", run)
    with monkeypatch.context() as patch:
        patch.setattr(context.system, "free_bytes", lambda path: 1000)
        with pytest.raises(PermanentError, match="not enough disk space for data preparation: 1000 bytes free"):
            prepare_data(context, run, lambda: False)
    absent = RunDocument.from_json({**run.to_json(), "prepare": {**run.to_json()["prepare"], "source": "raw/none"}})
    with pytest.raises(PermanentError, match=r"training.prepare.source: raw/none: no objects under s3://"):
        prepare_data(gang.context("i-b", absent), absent, lambda: False)


def test_too_many_claims_end_the_preparation(gang: Gang, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared_dataset, "MAX_CLAIMS", 1)
    run = gang.document(function="fails")
    context = gang.context("i-a", run)
    assert run.prepare is not None
    with pytest.raises(PermanentError):
        prepare_data(context, run, lambda: False)
    renamed = RunDocument.from_json({**run.to_json(), "run": "second"})
    with pytest.raises(PermanentError, match="1 nodes started preparing the data, and none finished"):
        prepare_data(context, renamed, lambda: False)


def test_the_first_commit_and_the_first_claim_win(account: Account) -> None:
    stores = [ClaimStore(account.s3, account.datasets, "d") for _ in range(2)]
    claims = [Claim(1, name, "run") for name in ("i-a", "i-b")]
    assert [store.create(claim) for store, claim in zip(stores, claims, strict=False)] == [True, False]
    assert stores[1].newest() == claims[0]
    assert stores[0].create(Claim(2, "i-b", "run"))
    assert stores[0].committed() is None
    assert [stores[0].commit(2, {}), stores[1].commit(1, {})] == [True, False]
    assert stores[1].committed() == "prepared/d/0002"


GARBAGE = [b"[]", b"", b"\xff", b"[" * 100_000, b'{"claim": 1e999}', b'{"claim": true}', b'{"claim": 10e400, "x": {}}']
GARBAGE += [
    b'{"claim": -1}',
    b'{"claim": "1"}',
    b'{"number": 2, "instance_id": "i-b", "run_digest": []}',
    b"1" * 100_000,
]


@pytest.mark.parametrize("content", GARBAGE, ids=lambda content: repr(content[:20]))
def test_objects_that_are_not_records(account: Account, content: bytes) -> None:
    store = ClaimStore(account.s3, account.datasets, "d")
    own = Claim(1, "i-a", "run", message="a message")
    assert store.create(own)

    def put(name: str) -> None:
        account.s3.put_object(Bucket=account.datasets, Key=f"datasets/prepared/d/{name}", Body=content)

    for name in ("claims/zz", "claims/9999.json", "claims/0000.json"):
        put(name)
    assert store.newest() == own
    put("claims/0002.json")
    newest = store.newest()
    assert newest is not None and (newest.number, newest.state) == (2, "released")
    assert "claims/0002.json: " in newest.message
    assert store.create(Claim(3, "i-b", "run"))
    assert store.newest() == Claim(3, "i-b", "run")
    put("prepared.json")
    with pytest.raises(StepError, match="not a record in this version's format"):
        store.committed()


def test_progress_belongs_to_the_owner_of_the_claim(account: Account) -> None:
    store = ClaimStore(account.s3, account.datasets, "d")
    own = Claim(1, "i-a", "run", "AROA1")
    assert store.create(own)
    store.report(replace(own, instance_id="i-b", state="failed", message="not the owner"))
    assert store.newest() == own
    failed = replace(own, sequence=3, state="failed", message="the third line")
    store.report(failed)
    assert store.newest() == failed
    claims = account.s3.list_objects_v2(Bucket=account.datasets, Prefix="datasets/prepared/d/claims/")["Contents"]
    assert len(claims) == 1, "the claim itself is written once"


@pytest.mark.parametrize("content", GARBAGE, ids=lambda content: repr(content[:20]))
def test_damaged_progress_releases_the_claim(account: Account, content: bytes) -> None:
    store = ClaimStore(account.s3, account.datasets, "d")
    assert store.create(Claim(1, "i-a", "run", "AROA1"))
    key = "progress/AROA1:i-a/0001.json"
    account.s3.put_object(Bucket=account.datasets, Key=f"datasets/prepared/d/{key}", Body=content)
    newest = store.newest()
    assert newest is not None and newest.state == "released" and f"{key}: " in newest.message


def test_a_truncated_claim_is_not_a_released_claim(account: Account) -> None:
    store = ClaimStore(account.s3, account.datasets, "d")
    assert store.create(Claim(1, "i-a", "run"))

    class Cut:
        def get_object(self, **arguments: str) -> dict[str, object]:
            answer = account.s3.get_object(**arguments)
            return {**answer, "Body": SimpleNamespace(read=lambda _: answer["Body"].read(20))}

    with pytest.raises(IncompleteReadError):
        ClaimStore(Cut(), account.datasets, "d").newest()


def digest_of(directory: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return code_digest(directory, "ours.data:make", "bundle")


def test_the_code_digest_covers_the_imports_of_the_function(tmp_path: Path) -> None:
    files = {"ours/__init__.py": "", "ours/data.py": "from . import words\nimport helper, json\n"}
    files |= {"ours/words.py": "def f():\n    from other.deep import x\n", "other/deep.py": "", "helper.py": ""}
    files |= {"model.py": "", "ours/list.txt": "one"}
    before = digest_of(tmp_path, files)
    assert digest_of(tmp_path, {"model.py": "import os\n"}) == before
    for name in ("ours/__init__.py", "ours/words.py", "other/deep.py", "helper.py", "ours/list.txt"):
        assert digest_of(tmp_path, {name: files[name] + "# edited\n"}) != before, name
        assert digest_of(tmp_path, {name: files[name]}) == before
    assert digest_of(tmp_path, {"helper.py": "import importlib\nimportlib.import_module('a')\n"}) == "bundle"
    assert digest_of(tmp_path, {"helper.py": "def\n"}) == "bundle"


def test_the_digest_covers_every_input() -> None:
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
    # The prefix of the source and the timeout are not part of it.
    moved = Prepare("a.b:c", "raw2", {"x": 1}, 6)
    assert prepared_digest("code", moved, objects) == prepared_digest("code", prepare, objects)


class Pages:
    """S3 with a million objects under each prefix, in pages of 1,000."""

    def __init__(self) -> None:
        self.read = 0

    def get_paginator(self, name: str) -> Pages:
        return self

    def paginate(self, **arguments: str) -> Iterator[dict[str, Any]]:
        for page in range(1000):
            self.read += 1
            names = [f"{arguments['Prefix']}{page * 1000 + number:07d}" for number in range(1000)]
            yield {"Contents": [{"Key": name, "Size": 1, "ETag": "e"} for name in names]}


def test_the_number_of_source_objects_is_limited() -> None:
    s3, pages = Pages(), []
    with pytest.raises(PermanentError, match=f"raw/words/: has more than {MAX_SOURCE_OBJECTS} objects"):
        source_objects(s3, "datasets", "raw/words", lambda: pages.append(s3.read))
    assert s3.read == MAX_SOURCE_OBJECTS // 1000 + 1
    assert len(pages) == MAX_SOURCE_OBJECTS // 1000
