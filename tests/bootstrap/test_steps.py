"""The boot steps: on a scripted machine, and against S3 and Parameter Store."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bootstrap.aws import Aws
from bootstrap.boot_steps.code import Code, remove_other_code
from bootstrap.boot_steps.python_env import PythonEnv
from bootstrap.boot_steps.run_document import FetchRunDocument
from bootstrap.boot_steps.staging import Staging, stage_dataset
from bootstrap.boot_steps.trainer_ready import TrainerReady
from bootstrap.context import Context
from bootstrap.documents import NodeDocument, RunDocument
from bootstrap.errors import CommandError, DocumentError, StepError
from bootstrap.events.log import EventLog
from bootstrap.fetch.transfer import Settings, settings_for
from bootstrap.imds import InstanceMetadata
from bootstrap.layout import Layout
from bootstrap.system import System
from tests.bootstrap.account import REGION, Account
from tests.bootstrap.fake_system import FakeSystem
from tests.bootstrap.metadata_server import MetadataServer
from tests.bootstrap.test_documents import node


def machine(root: Path, **changes: Any) -> tuple[FakeSystem, Context]:
    system, layout = FakeSystem(), Layout(root)
    document = NodeDocument.from_json({**node(), **changes})
    unused: Any = None
    return system, Context(system, layout, document, unused, InstanceMetadata(system), EventLog(system, layout.events))


def real(account: Account, root: Path, **run: Any) -> Context:
    system, layout = System(), Layout(root)
    document = NodeDocument.from_json(account.node(python={"interpreter": sys.executable, "packages": []}))
    context = Context(system, layout, document, Aws(REGION), InstanceMetadata(system), EventLog(system, layout.events))
    code = {"bucket": "assets", "key": "none", "sha256": "0" * 64}
    context.run = RunDocument.from_json(account.run(**{"code": code, **run}))
    return context


def failure(step: Any, context: Context) -> StepError:
    with pytest.raises(StepError) as caught:
        step.act(context)
        step.verify(context)
    assert caught.value.remedy
    return caught.value


@pytest.mark.parametrize(
    ("gpus", "output", "expected"),
    [
        (0, {"missing": {"flash_attn": "ModuleNotFoundError: no"}, "versions": {}, "gpus": None}, "flash_attn"),
        (
            8,
            {"missing": {}, "versions": {}, "gpus": 0, "cuda": "13.0"},
            "torch found 0 GPUs, expected 8",
        ),
        (8, {"missing": {}, "versions": {}, "gpus": 0, "cuda": None}, "torch is built without CUDA"),
    ],
)
def test_python_env_names_what_is_missing(tmp_path: Path, gpus: int, output: Any, expected: str) -> None:
    system, context = machine(tmp_path, gpus=gpus)
    system.programs["python3"] = "a warning on standard output\n" + json.dumps(output)
    assert expected in failure(PythonEnv(), context).message


def test_python_env_reports_each_failure(tmp_path: Path) -> None:
    system, context = machine(tmp_path)
    assert "python.interpreter: python3: not found on PATH" in failure(PythonEnv(), context).message
    system.programs["python3"] = "hello"
    assert "output of the import check is not JSON" in failure(PythonEnv(), context).message
    system.programs["python3"] = CommandError(["python3"], -11, "Segmentation fault", "exited with code -11")
    error = failure(PythonEnv(), context)
    assert (error.exit_code, error.output_tail) == (-11, "Segmentation fault")


def test_run_document_is_read_and_checked(account: Account, tmp_path: Path) -> None:
    context, step = real(account, tmp_path), FetchRunDocument()
    wanted = context.run
    assert wanted is not None
    error = failure(step, context)
    assert account.parameter in error.message and "ssm:GetParameter" in error.remedy
    account.put_run(wanted.to_json())
    step.act(context)
    step.verify(context)
    assert context.run == wanted
    account.put_run({**wanted.to_json(), "deployment": "other"})
    assert "found deployment other" in failure(step, context).message
    account.put_run({**wanted.to_json(), "nodes": 0, "extra": 1})
    with pytest.raises(DocumentError, match="2 problems"):
        step.act(context)


def test_code_is_downloaded_verified_and_unpacked_once(account: Account, tmp_path: Path) -> None:
    code = account.put_code({"training/__main__.py": "print('hello')", "training/__init__.py": ""})
    context, step = real(account, tmp_path, code=code), Code()
    assert not step.is_done(context)
    step.act(context)
    step.verify(context)
    assert step.is_done(context)
    assert (context.layout.code(code["sha256"]) / "training" / "__main__.py").read_text() == "print('hello')"
    account.s3.delete_object(Bucket=account.checkpoints, Key=code["key"])
    step.act(context)  # it exists: no download
    TrainerReady().verify(context)
    remove_other_code(context, frozenset())
    assert context.system.list_directory(tmp_path / "code") == []


@pytest.mark.parametrize(
    ("body", "sha256", "expected"),
    [
        (None, "0" * 64, "cannot download"),
        (b"changed", "0" * 64, f"found SHA-256 {hashlib.sha256(b'changed').hexdigest()}"),
        (b"no zip", hashlib.sha256(b"no zip").hexdigest(), "not a zip archive"),
    ],
)
def test_bad_code_bundle_is_refused(
    account: Account, tmp_path: Path, body: bytes | None, sha256: str, expected: str
) -> None:
    if body is not None:
        account.s3.put_object(Bucket=account.checkpoints, Key="c.zip", Body=body)
    context = real(account, tmp_path, code={"bucket": account.checkpoints, "key": "c.zip", "sha256": sha256})
    assert expected in failure(Code(), context).message
    assert list((tmp_path / "code").iterdir()) == []


def test_bundle_without_trainer_is_refused(account: Account, tmp_path: Path) -> None:
    context = real(account, tmp_path, code=account.put_code({"train.py": ""}))
    assert "no `training` package" in failure(Code(), context).message


def test_trainer_that_cannot_be_imported(account: Account, tmp_path: Path) -> None:
    files = {"training/__main__.py": "", "training/__init__.py": "import no_such_module"}
    context = real(account, tmp_path, code=account.put_code(files))
    Code().act(context)
    error = failure(TrainerReady(), context)
    assert "no_such_module" in error.output_tail and error.exit_code == 1


SHARDS = {"train-00000.bin": b"\1\0" * 5000, "train-00001.bin": b"\2\0" * 70000}


def test_staging_is_complete_incremental_and_follows_a_new_index(account: Account, tmp_path: Path) -> None:
    account.put_dataset(SHARDS)
    context, step = real(account, tmp_path), Staging()
    step.act(context)
    step.verify(context)
    directory = context.layout.dataset("words")
    assert {name: (directory / name).read_bytes() for name in SHARDS} == SHARDS
    assert (directory / "tokenizer.json").exists()
    untouched = directory.joinpath("train-00000.bin").stat().st_mtime_ns
    directory.joinpath("train-00001.bin").write_bytes(b"cut short")
    assert "train-00001.bin" in failure_of_verify(step, context)
    step.act(context)
    step.verify(context)
    assert directory.joinpath("train-00000.bin").stat().st_mtime_ns == untouched
    changed = {**SHARDS, "train-00000.bin": b"\3\0" * 5000}  # the same name, the same size
    account.put_dataset(changed)
    step.act(context)
    assert directory.joinpath("train-00000.bin").read_bytes() == changed["train-00000.bin"]
    assert [entry.name for entry in directory.iterdir() if entry.name.endswith(".part")] == []


def test_of_a_streamed_dataset_only_the_tokenizer_is_staged(account: Account, tmp_path: Path) -> None:
    account.put_dataset(SHARDS)
    context, step = real(account, tmp_path), Staging()
    assert context.run is not None
    context.run = replace(context.run, training={"data": {"stream_cache_gib": 1.0}})
    step.act(context)
    step.verify(context)
    directory = context.layout.dataset("words")
    assert {path.name for path in directory.iterdir() if not path.name.startswith(".")} == {
        "dataset.json",
        "tokenizer.json",
    }
    context.run = replace(context.run, training={})
    step.act(context)
    assert {name: (directory / name).read_bytes() for name in SHARDS} == SHARDS


def test_published_files_are_staged_without_a_tokenizer(account: Account, tmp_path: Path) -> None:
    from training.__main__ import main

    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(3):
        (folder / f"images-{number}.npz").write_bytes(bytes([number]) * 5000)
    arguments = ["--input", str(folder), "--output", f"s3://{account.datasets}/datasets", "--name", "words"]
    assert main(["publish", *arguments]) == 0
    context, step = real(account, tmp_path), Staging()
    step.act(context)
    step.verify(context)
    directory = context.layout.dataset("words")
    for path in folder.iterdir():
        assert (directory / path.name).read_bytes() == path.read_bytes()


def test_a_changed_index_keeps_unchanged_files(account: Account, tmp_path: Path) -> None:
    account.put_dataset({**SHARDS, "train-00002.bin": b"\4\0"})
    context, step = real(account, tmp_path), Staging()
    step.act(context)
    directory = context.layout.dataset("words")
    before = {name: (directory / name).stat().st_mtime_ns for name in SHARDS}
    account.put_dataset({**SHARDS, "train-00001.bin": b"\5\0" * 70000})
    step.act(context)
    step.verify(context)
    after = {name: (directory / name).stat().st_mtime_ns for name in SHARDS}
    assert [name for name in SHARDS if before[name] != after[name]] == ["train-00001.bin"]
    assert not (directory / "train-00002.bin").exists()


def test_complete_files_of_an_interrupted_staging_are_kept(account: Account, tmp_path: Path) -> None:
    account.put_dataset(SHARDS)
    context, step = real(account, tmp_path), Staging()
    directory = context.layout.dataset("words")
    directory.mkdir(parents=True)
    (directory / ".train-00000.bin.part").write_bytes(SHARDS["train-00000.bin"])
    kept = (directory / ".train-00000.bin.part").stat().st_ino
    (directory / ".train-00001.bin.part").write_bytes(rb"\9" * 140000)  # the right size, wrong contents
    (directory / ".train-00001.bin.part123456").write_bytes(b"\2\0")
    step.act(context)
    step.verify(context)
    assert (directory / "train-00000.bin").stat().st_ino == kept
    assert {name: (directory / name).read_bytes() for name in SHARDS} == SHARDS
    assert [entry.name for entry in directory.iterdir() if ".part" in entry.name] == []


@pytest.mark.parametrize(
    ("largest_mib", "count", "cores", "settings"),
    [
        (0.25, 2000, 2, Settings(64, 1, 16)),
        (1024, 1, 2, Settings(1, 64, 8)),
        (256, 1, 96, Settings(1, 32, 8)),  # at most one request per part
        (100, 8, 8, Settings(8, 13, 8)),
        (100, 5000, 192, Settings(64, 4, 8)),
        (0.01, 3, 64, Settings(3, 1, 16)),
    ],
)
def test_requests_follow_sizes_and_cores(largest_mib: float, count: int, cores: int, settings: Settings) -> None:
    assert settings_for(int(largest_mib * 1024**2), count, cores) == settings


def failure_of_verify(step: Staging, context: Context) -> str:
    with pytest.raises(StepError) as caught:
        step.verify(context)
    return caught.value.message


def test_without_blake3_staging_hashes_in_the_training_interpreter(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, interpreter = tmp_path / "calls", tmp_path / "python"
    interpreter.write_text(f'#!/bin/sh\necho "$1" >> {calls}\nexec {sys.executable} "$@"\n')
    interpreter.chmod(0o755)
    account.put_dataset(SHARDS)
    context = real(account, tmp_path / "root")
    python = {"interpreter": str(interpreter), "packages": []}
    context.node = NodeDocument.from_json({**context.node.to_json(), "python": python})
    monkeypatch.setitem(sys.modules, "blake3", None)
    Staging().act(context)
    Staging().verify(context)
    assert set(calls.read_text().split()) == {"-c"}
    calls.unlink()
    account.put_dataset({**SHARDS, "train-00001.bin": b"\5\0" * 70000})
    monkeypatch.delitem(sys.modules, "blake3")
    Staging().act(context)
    assert not calls.exists()


def test_role_credentials_come_from_instance_metadata(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account.put_dataset(SHARDS)
    server = MetadataServer("i-1")
    role = {"Code": "Success", "Type": "AWS-HMAC", "AccessKeyId": "ASIAX", "SecretAccessKey": "secret", "Token": "t"}
    role.update(LastUpdated="2026-01-01T00:00:00Z", Expiration="2126-01-01T00:00:00Z")
    server.paths["iam/security-credentials/"] = "node"
    server.paths["iam/security-credentials/node"] = json.dumps(role)
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", server.endpoint)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    context = real(account, tmp_path)
    Staging().act(context)
    Staging().verify(context)  # boto3 read the index, s5cmd the shards
    server.close()


def test_damaged_dataset_is_refused(account: Account, tmp_path: Path) -> None:
    account.put_dataset(SHARDS)
    bucket, prefix = account.datasets, "datasets/words"
    account.s3.put_object(Bucket=bucket, Key=f"{prefix}/train-00000.bin", Body=b"\x09\0" * 5000)
    account.s3.put_object(Bucket=bucket, Key=f"{prefix}/train-00001.bin", Body=b"short")
    context = real(account, tmp_path)
    message = failure(Staging(), context).message
    assert "train-00000.bin: found BLAKE3" in message
    assert "train-00001.bin: found 5 bytes, expected 140000" in message
    assert not (context.layout.dataset("words") / "dataset.json").exists()
    account.s3.delete_object(Bucket=bucket, Key=f"{prefix}/train-00001.bin")
    assert "cannot download" in failure(Staging(), context).message


BAD_SIZES = ("1e999", "-1", "true", "null", '"1"', "[]", "9" * 400, "NaN")


def test_a_missing_dataset_and_an_invalid_index_are_reported(account: Account, tmp_path: Path) -> None:
    context = real(account, tmp_path)
    error = failure(Staging(), context)
    assert "training.dataset: words" in error.message and "training tokenize" in error.remedy
    key = "datasets/words/dataset.json"
    traversal = {"splits": {"train": {"shards": [{"file": "../x", "bytes": 1, "blake3": "0"}]}}}
    tokenizer = {"tokenizer": {"file": "t", "sha256": "0"}}
    for index, expected in [
        ("{", "not JSON"),
        ("{}", "not a dataset index"),
        ("[" * 100_000, "not JSON"),
        ("\udcff", "not a dataset index (invalid start byte)"),
        *((json.dumps(traversal).replace(": 1,", f": {size},"), "not a dataset index") for size in BAD_SIZES),
        (json.dumps({**traversal, **tokenizer}), "without a directory"),
        (json.dumps({**traversal, **tokenizer}).replace("../x", "a\\u0000"), "without a directory"),
    ]:
        account.s3.put_object(Bucket=account.datasets, Key=key, Body=index.encode(errors="surrogateescape"))
        assert expected in failure(Staging(), context).message


def test_a_small_disk_is_reported_before_the_download(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account.put_dataset(SHARDS)
    context = real(account, tmp_path)
    monkeypatch.setattr(context.system, "free_bytes", lambda path: 1000)
    assert context.run is not None
    with pytest.raises(StepError, match="not enough disk space: 1000 bytes free, .* needed"):
        stage_dataset(context, context.run)


def on_a_volume(context: Context, mount: Path, *, warm: bool) -> Context:
    volume = {"kind": "dataset", "device": "/dev/sdf", "mount": str(mount), "read_only": True, "warm": warm}
    context.node = NodeDocument.from_json({**context.node.to_json(), "volumes": [volume]})
    return context


def test_a_dataset_on_a_volume_is_linked_not_copied(account: Account, tmp_path: Path) -> None:
    """The bucket has no such dataset; without it on the volume, staging falls back to S3."""
    source = tmp_path / "mnt" / "datasets" / "tiny"
    source.mkdir(parents=True)
    shard, tokenizer = b"\1\0" * 40, b"{}"
    (source / "train-00000.bin").write_bytes(shard)
    (source / "tokenizer.json").write_bytes(tokenizer)
    shards = [{"file": "train-00000.bin", "tokens": 40, "bytes": len(shard), "blake3": "0"}]
    index = {"splits": {"train": {"shards": shards}}, "tokenizer": {"file": "tokenizer.json", "sha256": "0"}}
    (source / "dataset.json").write_text(json.dumps(index))
    context = on_a_volume(real(account, tmp_path / "root", dataset="tiny"), tmp_path / "mnt", warm=False)
    Staging().act(context)
    Staging().verify(context)
    staged = context.layout.dataset("tiny")
    assert staged.is_symlink() and (staged / "train-00000.bin").read_bytes() == shard
    (source / "train-00000.bin").write_bytes(b"short")
    assert "train-00000.bin" in failure(Staging(), context).message
    (source / "dataset.json").unlink()
    assert "s3://" in failure(Staging(), context).message
    assert not staged.is_symlink()
