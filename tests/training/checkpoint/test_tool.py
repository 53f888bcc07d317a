"""``python -m training checkpoint`` from its command line: output, effects and exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import boto3
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.training.checkpoint.runs import assert_holds, complete_steps, load, newest, same, save, start, state
from training.__main__ import main
from training.checkpoint.log import LogWriter
from training.checkpoint.retention import Retention
from training.checkpoint.storage.directory import DirectoryBackend
from training.checkpoint.storage.urls import open_backend
from training.checkpoint.store import list_checkpoints
from training.errors import SupersededError

pytestmark = pytest.mark.usefixtures("small_chunks")


@pytest.fixture
def store(tmp_path: Path) -> DirectoryBackend:
    """Five checkpoints of two starts of a run; none collected yet."""
    backend = DirectoryBackend(tmp_path / "store")
    for generation, steps in ((1, (1, 2, 3)), (2, (4, 5))):
        writer = start(backend, generation, retention=Retention(9))
        for step in steps:
            save(writer, step, validation_loss=abs(step - 2.0))
    return backend


@pytest.fixture
def tool(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: object, expect: int = 0) -> Any:
        capsys.readouterr()
        code = main(["checkpoint", *map(str, arguments)])
        output = capsys.readouterr()
        assert code == expect, output
        if "--json" in arguments and not expect:
            return json.loads(output.out)
        return output.err if expect == 2 or not output.out else output.out

    return run


def test_the_folder_of_a_run_selects_its_store(store: DirectoryBackend, tool: Any, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    store.root.rename(tmp_path / "run" / "checkpoints")
    assert [each["step"] for each in tool("ls", tmp_path / "run", "--json")] == [5, 4, 3, 2, 1]
    assert tool("show", f"{tmp_path / 'run'}#4", "--json")["step"] == 4
    assert "no complete checkpoint" in tool("ls", tmp_path, expect=1)


def test_ls_and_show(store: DirectoryBackend, tool: Any) -> None:
    listed = tool("ls", "--json", store.url)
    assert [each["step"] for each in listed] == [5, 4, 3, 2, 1]
    assert {each["condition"] for each in listed} == {"complete"}
    assert "val. loss" in tool("ls", store.url)
    shown = tool("show", "--json", f"{store.url}#3")
    assert shown["step"] == 3 and shown["log_entry"]["sequence"] == 3
    assert shown["tensors"]["model/large"] == {"dtype": "float32", "shape": [50, 45], "bytes": 9000}
    assert "model/large" in tool("show", f"{store.url}#entry:3")
    assert list(shown["stored_bytes_by_tier"]) == [store.url]


@pytest.mark.parametrize(
    ("selector", "code", "message"),
    [
        ("#77", 1, "no such checkpoint"),
        ("#paper", 1, "no tag 'paper'; existing tags: none"),
        ("#entry:4", 1, "no such checkpoint"),
        ("#!", 2, "is not a checkpoint selector"),
    ],
)
def test_reports_missing_checkpoints(
    store: DirectoryBackend, selector: str, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["checkpoint", "show", store.url + selector]) == code
    assert message in capsys.readouterr().err


def test_verify_finds_damage_and_reads_shared_chunks_once(store: DirectoryBackend, tool: Any) -> None:
    assert tool("verify", store.url).count("every chunk exists") == 5
    listed = next(list_checkpoints(store))
    assert listed.manifest is not None
    victim = store.root / listed.manifest.chunks[1].key
    victim.write_bytes(victim.read_bytes()[:-1] + b"x")
    assert "is damaged" in tool("verify", store.url, expect=1)
    assert "step 3 (entry 3): every chunk" in tool("verify", f"{store.url}#3")


def test_diff_reads_only_changed_tensors(store: DirectoryBackend, tool: Any) -> None:
    assert tool("diff", "--json", f"{store.url}#3", f"{store.url}#3")["equal_state"]
    output = tool("diff", f"{store.url}#3", f"{store.url}#4", expect=1)
    assert "step: 3 -> 4" in output
    assert "model/large" in output and "model/frozen" not in output
    assert "1 tensors are equal, 3 changed" in output
    other = DirectoryBackend(store.root.parent / "other")
    changed = {**state(3), "model/small": torch.zeros(8), "model/new": torch.zeros(1)}
    save(start(other), 3, changed)
    output = tool("diff", f"{store.url}#3", other.url, expect=1)
    assert "model/small: float32 [7] -> float32 [8]" in output
    assert "model/new: only in B" in output


def test_gc_keeps_chunks_of_the_newest_start_unless_exclusive(store: DirectoryBackend, tool: Any) -> None:
    tool("tag", f"{store.url}#1", "first")
    before = store.keys("")
    plan = tool("gc", store.url, "--keep-last", 2, "--keep-best", 1, "--dry-run", "--json")
    assert store.keys("") == before
    assert {each["entry"]: each["reasons"] for each in plan["kept"]} == {
        6: ["newest 1 of 2"],
        5: ["newest 2 of 2"],
        2: ["best 1 of 1"],
        1: ["tag first"],
    }
    assert [each["step"] for each in plan["dropped"]] == [3]
    assert tool("gc", store.url, "--keep-last", 2, "--keep-best", 1, "--json")["deleted_chunks"] == 3
    assert complete_steps(store) == [5, 4, 2, 1]
    running = start(store, generation=2)
    save(running, 6)
    save(running, 7)
    assert "belong to the newest start of the run" not in tool("gc", store.url, "--keep-last", 2)
    tool("tag", "--remove", store.url, "first")
    tool("gc", store.url, "--keep-last", 2, "--exclusive")
    with pytest.raises(SupersededError):
        save(running, 8)
    assert complete_steps(store) == [7, 6]
    collected = [each for each in tool("ls", "--all", "--json", store.url) if each["condition"] == "collected"]
    assert [each["step"] for each in collected] == [5, 4, 3, 2, 1]


def test_gc_verifies_the_newest_two_first(store: DirectoryBackend, tool: Any) -> None:
    listed = next(list_checkpoints(store))
    assert listed.manifest is not None
    (store.root / listed.manifest.chunks[1].key).write_bytes(b"not a chunk")
    assert tool("gc", store.url, "--keep-last", 2, "--json")["damaged"] == [6]
    assert complete_steps(store) == [5, 4, 3], "the damaged one has all chunks; two undamaged ones are kept"
    assert "use a --keep option" in tool("gc", store.url, expect=2)
    assert "keep_last: 1" in tool("gc", store.url, "--keep-last", 1, expect=2)


def test_copies_branches_and_mirrors(store: DirectoryBackend, tool: Any, tmp_path: Path) -> None:
    tool("tag", f"{store.url}#2", "paper")
    assert "would copy" in tool("pull", f"{store.url}#paper", tmp_path / "copy", "--dry-run")
    assert not (tmp_path / "copy").exists()
    tool("pull", f"{store.url}#paper", tmp_path / "copy")
    copy = DirectoryBackend(tmp_path / "copy")
    assert_holds(copy, newest(copy))
    assert tool("ls", "--json", copy.url)[0]["tags"] == ["paper"]
    tool("push", store.url, copy.url, "--all")
    assert complete_steps(copy) == [5, 4, 3, 1, 2]
    assert "already has it" in tool("push", store.url, copy.url, "--all")
    save(start(store, generation=3, retention=Retention(9)), 6)
    assert tool("push", store.url, copy.url, "--json")["reused_chunks"] == 1, "the frozen tensor"
    trainer = LogWriter(copy, 1)
    output = tool("push", f"{store.url}#1", copy.url, expect=2)
    assert "a run's store" in output and "--take-over" in output
    tool("push", f"{store.url}#1", copy.url, "--take-over")
    assert newest(copy).step == 1
    with pytest.raises(SupersededError):
        trainer.append_checkpoint(step=9)
    assert "not a directory" in tool("pull", store.url, "s3://bucket/x", expect=2)
    assert "remove # or --all" in tool("push", f"{store.url}#1", tmp_path / "x", "--all", expect=2)


def test_export_and_import(store: DirectoryBackend, tool: Any, tmp_path: Path) -> None:
    weights, full_state = tmp_path / "weights.safetensors", tmp_path / "state.safetensors"
    tool("export", f"{store.url}#4", weights)
    found = load_file(weights)
    wanted = {name.removeprefix("model/"): tensor for name, tensor in state(4).items() if name.startswith("model/")}
    assert found.keys() == wanted.keys() and all(same(found[name], wanted[name]) for name in wanted)
    assert "exists; choose another name" in tool("export", store.url, weights, expect=2)
    tool("export", "--state", store.url, full_state)
    output = tool("import", full_state, tmp_path / "again", "--json")
    assert output["step"] == 5
    tool("diff", store.url, tmp_path / "again")
    assert "a run's store" in tool("import", weights, store.url, expect=2)
    save_file({"weight": torch.ones(3)}, tmp_path / "foreign.safetensors")
    tool("import", tmp_path / "foreign.safetensors", tmp_path / "new")
    new = DirectoryBackend(tmp_path / "new")
    assert same(load(new, newest(new))["model/weight"], torch.ones(3))
    (tmp_path / "text").write_text("no tensors")
    assert "cannot be read as safetensors" in tool("import", tmp_path / "text", tmp_path / "x", expect=2)
    assert "storage classes exist only in S3" in tool("archive", store.url, expect=2)


def test_archives_and_restores_old_checkpoints(bucket: str, tool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.checkpoint.tool.archive.SMALLEST_BYTES", 4096)
    url = f"s3://{bucket}/run"
    backend = open_backend(url)
    writer = start(backend, retention=Retention(9))
    for step in (1, 2, 3):
        save(writer, step)
    assert tool("archive", url, "--storage-class", "GLACIER", "--dry-run", "--json")["chunks"] == 1
    tool("archive", url, "--storage-class", "GLACIER")
    assert tool("archive", url, "--storage-class", "GLACIER", "--json")["chunks"] == 0
    client = boto3.client("s3")
    objects = client.list_objects_v2(Bucket=bucket, Prefix="run/chunks/")["Contents"]
    assert [each["StorageClass"] for each in objects].count("GLACIER") == 1
    for step in (2, 3):
        tool("verify", f"{url}#{step}")
    assert "it is archived" in tool("verify", f"{url}#1", expect=2)
    assert tool("restore", f"{url}#1", "--days", 2, "--json")["chunks"] == 1
    tool("verify", f"{url}#1")
    assert "--days: 0" in tool("restore", f"{url}#1", "--days", 0, expect=2)


def test_copies_between_s3_prefixes(bucket: str, tool: Any, tmp_path: Path) -> None:
    trunk, branch = open_backend(f"s3://{bucket}/trunk"), open_backend(f"s3://{bucket}/branch")
    save(start(trunk), 1)
    tool("push", trunk.url, branch.url)
    tool("verify", branch.url)
    tool("pull", branch.url, tmp_path / "copy")
    copy = DirectoryBackend(tmp_path / "copy")
    assert_holds(copy, newest(copy))
    assert newest(copy).origin == f"{branch.url}#entry:1"


def test_help_lists_actions_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["checkpoint", "--help"])
    assert ended.value.code == 0
    output = capsys.readouterr().out
    for word in ("ls", "show", "verify", "diff", "tag", "gc", "archive", "restore", "pull", "push", "export", "import"):
        assert f"    {word} " in output
    assert "exit codes:" in output
    with pytest.raises(SystemExit) as refused:
        main(["checkpoint", "gc"])
    assert refused.value.code == 2
