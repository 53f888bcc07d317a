from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from bootstrap.context import Context
from bootstrap.errors import BootstrapError
from bootstrap.supervise.trainers import results
from bootstrap.supervise.trainers.results import Results
from tests.bootstrap.account import Account
from tests.bootstrap.test_steps import real

LIMIT_SECONDS = 20.0


def write_results(context: Context) -> Path:
    directory = context.layout.run_directory("first", 2)
    for name, content in {
        "metrics.jsonl": b"{}\n",
        "outcomes/rank-00000.json": b"{}",
        "profiles/steps.json.gz": b"12345",
        "samples.txt": b"of the script ",
        "stop": b"{}",
        ".hidden": b"1",
    }.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)
    (directory / "link").symlink_to("/etc/hostname")
    os.mkfifo(directory / "collectives-pipe-0.pipe")  # without a writer: reading it would block
    return directory


def key(account: Account, name: str) -> str:
    return f"runs/{account.name}/first/results/gen-2/node-1/{name}"


def uploaded(account: Account) -> dict[str, bytes]:
    prefix = key(account, "")
    listed = account.s3.list_objects_v2(Bucket=account.checkpoints, Prefix=prefix).get("Contents", [])
    get = account.s3.get_object
    bodies = {each["Key"]: get(Bucket=account.checkpoints, Key=each["Key"])["Body"] for each in listed}
    return {key[len(prefix) :]: body.read() for key, body in bodies.items()}


def events(context: Context) -> list[dict[str, Any]]:
    return [json.loads(line) for line in context.layout.events.read_text().splitlines()]


def test_results_of_a_generation_are_uploaded(account: Account, tmp_path: Path) -> None:
    context = real(account, tmp_path)
    directory = write_results(context)
    work = Results(context)
    work.upload("first", 2, 1)
    work.finish(LIMIT_SECONDS)
    names = ["metrics.jsonl", "outcomes/rank-00000.json", "profiles/steps.json.gz", "samples.txt"]
    assert uploaded(account) == {name: (directory / name).read_bytes() for name in names}
    (event,) = events(context)
    assert (event["event"], event["files"], event["bytes"], event["skipped_files"]) == ("results_uploaded", 4, 24, [])


def test_files_over_the_limit_are_skipped_and_reported(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "LIMIT_BYTES", 12)
    context = real(account, tmp_path)
    write_results(context)
    work = Results(context)
    work.upload("first", 2, 1)
    work.upload("first", 2, 1)  # one after the other
    work.finish(LIMIT_SECONDS)
    assert sorted(uploaded(account)) == ["metrics.jsonl", "outcomes/rank-00000.json", "profiles/steps.json.gz"]
    assert [event["skipped_files"] for event in events(context)] == [["samples.txt"], ["samples.txt"]]


def test_a_bucket_that_refuses_is_said(account: Account, tmp_path: Path) -> None:
    context = real(account, tmp_path)
    write_results(context)
    account.s3.delete_bucket(Bucket=account.checkpoints)
    work = Results(context)
    work.upload("first", 2, 1)
    work.finish(LIMIT_SECONDS)
    (event,) = events(context)
    assert "NoSuchBucket" in event["message"] and event["bytes"] == 0


EVENT_FILE = "tensorboard/events.out.tfevents.1.node.2.0"


def test_event_files_are_uploaded_while_a_generation_trains(account: Account, tmp_path: Path) -> None:
    context = real(account, tmp_path)
    directory = write_results(context)
    work, file = Results(context), directory / EVENT_FILE
    work.upload_event_files()
    work.follow("first", 2, 1)
    work.upload_event_files()
    assert uploaded(account) == {}, "no event file yet"
    file.parent.mkdir()
    file.write_bytes(b"first")
    work.upload_event_files()
    assert uploaded(account) == {EVENT_FILE: b"first"}
    account.s3.delete_object(Bucket=account.checkpoints, Key=key(account, EVENT_FILE))
    work.upload_event_files()
    assert uploaded(account) == {}, "an unchanged file is not uploaded again"
    file.write_bytes(b"first second")
    work.upload_event_files()
    assert uploaded(account) == {EVENT_FILE: b"first second"}
    work.upload("first", 2, 1)
    work.finish(LIMIT_SECONDS)
    assert len(uploaded(account)) == 5
    file.write_bytes(b"after the end")
    work.upload_event_files()
    assert uploaded(account)[EVENT_FILE] == b"first second", "the generation has ended"


def test_files_of_trackers_are_uploaded_while_a_generation_trains(account: Account, tmp_path: Path) -> None:
    context = real(account, tmp_path)
    directory = write_results(context)
    wanted = ("wandb/offline-run-1/run-1.wandb", "mlruns/1/meta.yaml", "mlruns/1/2/metrics/step/loss")
    for name in (*wanted, "wandb/debug.log", "wandb/offline-run-1/files/requirements.txt", "own/mlruns"):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(b"x")
    work = Results(context)
    work.follow("first", 2, 1)
    work.upload_event_files()
    assert uploaded(account) == dict.fromkeys(wanted, b"x")


def test_a_large_event_file_is_uploaded_at_the_end_only(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "EVENT_FILE_LIMIT_BYTES", 10)
    context = real(account, tmp_path)
    file = write_results(context) / EVENT_FILE
    file.parent.mkdir()
    file.write_bytes(b"x" * 11)
    work = Results(context)
    work.follow("first", 2, 1)
    work.upload_event_files()
    assert uploaded(account) == {}
    work.upload("first", 2, 1)
    work.finish(LIMIT_SECONDS)
    assert uploaded(account)[EVENT_FILE] == b"x" * 11


def test_a_refused_event_file_is_tried_again(account: Account, tmp_path: Path) -> None:
    context = real(account, tmp_path)
    file = write_results(context) / EVENT_FILE
    file.parent.mkdir()
    file.write_bytes(b"first")
    work = Results(context)
    work.follow("first", 2, 1)
    account.s3.delete_bucket(Bucket=account.checkpoints)
    with pytest.raises(BootstrapError, match="tfevents.*cannot be uploaded"):
        work.upload_event_files()
    account.s3.create_bucket(Bucket=account.checkpoints)
    work.upload_event_files()
    assert uploaded(account) == {EVENT_FILE: b"first"}
