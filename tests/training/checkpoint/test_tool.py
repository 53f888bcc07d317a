"""``python -m training checkpoint`` as it is typed: what it says, what it leaves behind, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import boto3
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.training.checkpoint.runs import assert_holds, load, newest, same, save, start, state, whole_steps
from training.__main__ import main
from training.checkpoint.backend import open_backend
from training.checkpoint.directory import DirectoryBackend
from training.checkpoint.log import LogWriter
from training.checkpoint.store import list_checkpoints
from training.errors import SupersededError

pytestmark = pytest.mark.usefixtures("small_chunks")


@pytest.fixture
def store(tmp_path: Path) -> DirectoryBackend:
    """Five checkpoints of two starts of a run; nothing was collected yet."""
    backend = DirectoryBackend(tmp_path / "store")
    for generation, steps in ((1, (1, 2, 3)), (2, (4, 5))):
        writer = start(backend, generation, keep_last=9)
        for step in steps:
            save(writer, step, validation_loss=abs(step - 2.0))
    return backend


@pytest.fixture
def tool(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: object, expect: int = 0) -> Any:
        capsys.readouterr()
        code = main(["checkpoint", *map(str, arguments)])
        told = capsys.readouterr()
        assert code == expect, told
        if "--json" in arguments and not expect:
            return json.loads(told.out)
        return told.err if expect == 2 or not told.out else told.out

    return run


def test_ls_and_show_tell_what_is_there(store: DirectoryBackend, tool: Any) -> None:
    listed = tool("ls", "--json", store.url)
    assert [each["step"] for each in listed] == [5, 4, 3, 2, 1]
    assert {each["condition"] for each in listed} == {"whole"}
    assert "val. loss" in tool("ls", store.url)
    shown = tool("show", "--json", f"{store.url}#3")
    assert shown["step"] == 3 and shown["log_entry"]["sequence"] == 3
    assert shown["tensors"]["model/large"] == {"dtype": "float32", "shape": [50, 45], "bytes": 9000}
    assert "model/large" in tool("show", f"{store.url}#entry:3")
    assert list(shown["stored_bytes_by_tier"]) == [store.url]


@pytest.mark.parametrize(
    ("selector", "code", "told"),
    [
        ("#77", 1, "there is no such checkpoint"),
        ("#paper", 1, "has no tag 'paper'; tags there: none"),
        ("#entry:4", 1, "there is no such checkpoint"),
        ("#!", 2, "names no checkpoint after the last #"),
    ],
)
def test_what_is_not_there_is_said(
    store: DirectoryBackend, selector: str, code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["checkpoint", "show", store.url + selector]) == code
    assert told in capsys.readouterr().err


def test_verify_finds_damage_and_reads_shared_chunks_once(store: DirectoryBackend, tool: Any) -> None:
    assert tool("verify", store.url).count("every chunk is there") == 5
    listed = next(list_checkpoints(store))
    assert listed.manifest is not None
    victim = store.root / listed.manifest.chunks[1].key
    victim.write_bytes(victim.read_bytes()[:-1] + b"x")
    assert "is damaged" in tool("verify", store.url, expect=1)
    assert "step 3 (entry 3): every chunk" in tool("verify", f"{store.url}#3")


def test_diff_reads_what_changed(store: DirectoryBackend, tool: Any) -> None:
    assert tool("diff", "--json", f"{store.url}#3", f"{store.url}#3")["equal_state"]
    told = tool("diff", f"{store.url}#3", f"{store.url}#4", expect=1)
    assert "step: 3 -> 4" in told
    assert "model/large" in told and "model/frozen" not in told
    assert "1 tensors are equal, 3 changed" in told
    other = DirectoryBackend(store.root.parent / "other")
    changed = {**state(3), "model/small": torch.zeros(8), "model/new": torch.zeros(1)}
    save(start(other), 3, changed)
    told = tool("diff", f"{store.url}#3", other.url, expect=1)
    assert "model/small: float32 [7] -> float32 [8]" in told
    assert "model/new: only in B" in told


def test_gc_spares_the_newest_start_unless_it_is_ended(store: DirectoryBackend, tool: Any) -> None:
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
    assert whole_steps(store) == [5, 4, 2, 1]
    running = start(store, generation=2)
    save(running, 6)
    save(running, 7)
    assert "of the newest start of the run" not in tool("gc", store.url, "--keep-last", 2)
    tool("tag", "--remove", store.url, "first")
    tool("gc", store.url, "--keep-last", 2, "--exclusive")
    with pytest.raises(SupersededError):
        save(running, 8)
    assert whole_steps(store) == [7, 6]
    collected = [each for each in tool("ls", "--all", "--json", store.url) if each["condition"] == "collected"]
    assert [each["step"] for each in collected] == [5, 4, 3, 2, 1]


def test_gc_reads_the_newest_two_before_it_counts_on_them(store: DirectoryBackend, tool: Any) -> None:
    listed = next(list_checkpoints(store))
    assert listed.manifest is not None
    (store.root / listed.manifest.chunks[1].key).write_bytes(b"not a chunk")
    assert tool("gc", store.url, "--keep-last", 2, "--json")["damaged"] == [6]
    assert whole_steps(store) == [5, 4, 3], "the damaged one seems whole, and two that are stay"
    assert "give --keep-last" in tool("gc", store.url, expect=2)
    assert "keep_last: 1" in tool("gc", store.url, "--keep-last", 1, expect=2)


def test_a_copy_and_a_branch_and_a_mirror(store: DirectoryBackend, tool: Any, tmp_path: Path) -> None:
    tool("tag", f"{store.url}#2", "paper")
    assert "would copy" in tool("pull", f"{store.url}#paper", tmp_path / "copy", "--dry-run")
    assert not (tmp_path / "copy").exists()
    tool("pull", f"{store.url}#paper", tmp_path / "copy")
    copy = DirectoryBackend(tmp_path / "copy")
    assert_holds(copy, newest(copy))
    assert tool("ls", "--json", copy.url)[0]["tags"] == ["paper"]
    tool("push", store.url, copy.url, "--all")
    assert whole_steps(copy) == [5, 4, 3, 1, 2]
    assert "has it already" in tool("push", store.url, copy.url, "--all")
    save(start(store, generation=3, keep_last=9), 6)
    assert tool("push", store.url, copy.url, "--json")["reused_chunks"] == 1, "the frozen tensor"
    trainer = LogWriter(copy, 1)
    told = tool("push", f"{store.url}#1", copy.url, expect=2)
    assert "is the store of a run" in told and "--take-over" in told
    tool("push", f"{store.url}#1", copy.url, "--take-over")
    assert newest(copy).step == 1
    with pytest.raises(SupersededError):
        trainer.append_checkpoint(step=9)
    assert "is no directory" in tool("pull", store.url, "s3://bucket/x", expect=2)
    assert "drop one of the two" in tool("push", f"{store.url}#1", tmp_path / "x", "--all", expect=2)


def test_export_and_import(store: DirectoryBackend, tool: Any, tmp_path: Path) -> None:
    weights, whole = tmp_path / "weights.safetensors", tmp_path / "state.safetensors"
    tool("export", f"{store.url}#4", weights)
    found = load_file(weights)
    wanted = {name.removeprefix("model/"): tensor for name, tensor in state(4).items() if name.startswith("model/")}
    assert found.keys() == wanted.keys() and all(same(found[name], wanted[name]) for name in wanted)
    assert "exists; give another name" in tool("export", store.url, weights, expect=2)
    tool("export", "--state", store.url, whole)
    told = tool("import", whole, tmp_path / "again", "--json")
    assert told["step"] == 5
    tool("diff", store.url, tmp_path / "again")
    assert "is the store of a run" in tool("import", weights, store.url, expect=2)
    save_file({"weight": torch.ones(3)}, tmp_path / "foreign.safetensors")
    tool("import", tmp_path / "foreign.safetensors", tmp_path / "begun")
    begun = DirectoryBackend(tmp_path / "begun")
    assert same(load(begun, newest(begun))["model/weight"], torch.ones(3))
    (tmp_path / "text").write_text("no tensors")
    assert "cannot be read as safetensors" in tool("import", tmp_path / "text", tmp_path / "x", expect=2)
    assert "only S3 has storage classes" in tool("archive", store.url, expect=2)


def test_old_checkpoints_go_to_an_archive_and_come_back(
    bucket: str, tool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.checkpoint.cold_storage.SMALLEST_BYTES", 4096)
    url = f"s3://{bucket}/run"
    backend = open_backend(url)
    writer = start(backend, keep_last=9)
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
    assert "it is in an archive" in tool("verify", f"{url}#1", expect=2)
    assert tool("restore", f"{url}#1", "--days", 2, "--json")["chunks"] == 1
    tool("verify", f"{url}#1")
    assert "--days: 0" in tool("restore", f"{url}#1", "--days", 0, expect=2)


def test_branches_inside_s3_are_copied_there(bucket: str, tool: Any, tmp_path: Path) -> None:
    trunk, branch = open_backend(f"s3://{bucket}/trunk"), open_backend(f"s3://{bucket}/branch")
    save(start(trunk), 1)
    tool("push", trunk.url, branch.url)
    tool("verify", branch.url)
    tool("pull", branch.url, tmp_path / "copy")
    copy = DirectoryBackend(tmp_path / "copy")
    assert_holds(copy, newest(copy))
    assert newest(copy).origin == f"{branch.url}#entry:1"


def test_help_names_every_action_and_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["checkpoint", "--help"])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    for word in ("ls", "show", "verify", "diff", "tag", "gc", "archive", "restore", "pull", "push", "export", "import"):
        assert f"    {word} " in told
    assert "exit codes:" in told
    with pytest.raises(SystemExit) as refused:
        main(["checkpoint", "gc"])
    assert refused.value.code == 2
